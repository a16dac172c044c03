"""A checkpoint opened: model, tokenizer and, when asked for, its weights."""

import dataclasses
import functools
import os
import pathlib

import jax.numpy as jnp

from specjax import text
from specjax.checkpoints import folders, hf, locate
from specjax.models import decoder
from specjax.types import Params

DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A checkpoint: its model and tokenizer now, its weights when first asked.

  Attributes:
    name: as it was asked for.
    folder: where it lies.
    model: shapes and the pure function.
    tokenizer: with the ids that end a text.
  """

  name: str
  folder: str
  model: decoder.Model = dataclasses.field(repr=False)
  tokenizer: text.Tokenizer = dataclasses.field(repr=False)

  @functools.cached_property
  def params(self) -> Params:
    """The weights; read at first use, tensor by tensor."""
    return hf.load_params(self.folder, self.model)

  @property
  def loaded_bytes(self) -> int:
    """Bytes of the weights, if they have been read; else 0."""
    return sum(param.nbytes for param in vars(self).get("params", ()))

  def retyped(self, dtype: str) -> "Pretrained":
    """The same checkpoint in another dtype; itself where that is its own."""
    if jnp.dtype(dtype) == self.model.dtype:
      return self
    model = decoder.build(
      self.model.config, dtype=jnp.dtype(dtype), scan_layers=True
    )
    return dataclasses.replace(self, model=model)

  def save(
    self,
    folder: str | os.PathLike,
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    max_shard_bytes: int = folders.MAX_SHARD_BYTES,
  ) -> None:
    """Writes it as a Hugging Face folder, tokenizer and chat template too.

    A save that is killed leaves no config.json, so nothing that passes for a
    model.

    Args:
      folder: made if it is not there.
      dtype: of the weights, "float32", "bfloat16" or "float16"; the model's
        own unless given.
      overwrite: whether the folder may already hold files.
      max_shard_bytes: weights beyond it go into several files and an index.

    Raises:
      FileExistsError: the folder holds files and `overwrite` is false.
      ValueError: an unsupported dtype, or one the weights have no room in.
    """
    if dtype not in (None, "float16", *DTYPES):
      raise ValueError(
        f"dtype is {dtype!r}; give one of {', '.join(DTYPES)}, float16"
      )
    folders.check(pathlib.Path(folder), overwrite=overwrite)
    hf.save_params(
      folder,
      self.model,
      self.params,
      config=hf.read_config(self.folder),
      dtype=None if dtype is None else jnp.dtype(dtype),
      others=folders.companions(pathlib.Path(self.folder)),
      overwrite=overwrite,
      max_shard_bytes=max_shard_bytes,
    )


def load(
  name: str | os.PathLike, *, dtype: str = "float32", scan_layers: bool = False
) -> Pretrained:
  """Opens a checkpoint in Hugging Face's layout.

  Args:
    name: a folder, a hub id or a gs:// path.
    dtype: "float32" or "bfloat16".
    scan_layers: one loop over stacked layers; see `decoder.build`.

  Raises:
    ValueError: an unsupported dtype, architecture or setting, by name.
    FileNotFoundError, ConnectionError: the checkpoint cannot be had.
  """
  if dtype not in DTYPES:
    raise ValueError(f"dtype is {dtype!r}; give one of {', '.join(DTYPES)}")
  folder = locate.resolve(os.fspath(name))
  config = hf.read_decoder_config(folder)
  return Pretrained(
    name=str(name),
    folder=str(folder),
    model=decoder.build(
      config, dtype=jnp.dtype(dtype), scan_layers=scan_layers
    ),
    tokenizer=text.Tokenizer.from_folder(folder),
  )
