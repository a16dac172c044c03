"""A checkpoint opened: model, tokenizer and, when asked for, its weights."""

import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specjax import text
from specjax.checkpoints import (
  folders,
  heads,
  hf,
  locate,
  orbax,
  shards,
  weights,
)
from specjax.checkpoints.ranges import Traffic
from specjax.models import decoder, padding
from specjax.sharding import axes
from specjax.sharding import mesh as mesh_lib
from specjax.sharding import rules as rules_lib
from specjax.sharding.placement import Placement
from specjax.sharding.rules import Rules
from specjax.types import Params

DTYPES = ("float32", "bfloat16")
FORMATS = ("safetensors", "orbax")


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A checkpoint: its model and tokenizer now, its weights when first asked.

  Attributes:
    name: as it was asked for.
    folder: where it lies.
    model: shapes and the pure function.
    tokenizer: with the ids that end a text.
    url: where the weights lie, if not in the folder.
    traffic: counts the bytes of weights that this process has read.
  """

  name: str
  folder: str
  model: decoder.Model = dataclasses.field(repr=False)
  tokenizer: text.Tokenizer = dataclasses.field(repr=False)
  url: str | None = None
  traffic: Traffic = dataclasses.field(
    default_factory=Traffic, repr=False, compare=False
  )

  @functools.cached_property
  def params(self) -> Params:
    """The weights; read at first use, tensor by tensor.

    With a mesh each process reads its devices' shards alone.
    """
    return weights.load_params(
      self.folder, self.model, url=self.url, traffic=self.traffic
    )

  @property
  def is_padded(self) -> bool:
    """Whether the model has more heads than the checkpoint; see `load`."""
    return self.model.config.heads_in_file is not None

  @property
  def loaded_bytes(self) -> int:
    """Bytes of the weights in this process, if they have been read; else 0."""
    return sum(
      shard.data.nbytes
      for param in vars(self).get("params", ())
      for shard in param.addressable_shards
    )

  def require_decoder(self, doing: str) -> None:
    """Refuses a model with an encoder where only decoders will do.

    Args:
      doing: what is for decoders alone, as a sentence begins with it.

    Raises:
      ValueError: it has one.
    """
    if self.model.reads_source:
      raise ValueError(
        f"--model={self.name} is an encoder-decoder; {doing} is for decoders"
        " alone: give one"
      )

  def retyped(self, dtype: str) -> "Pretrained":
    """The same checkpoint in another dtype; itself where that is its own."""
    if jnp.dtype(dtype) == self.model.dtype:
      return self
    model = decoder.build(
      self.model.config,
      dtype=jnp.dtype(dtype),
      scan_layers=True,
      placement=self.model.placement,
    )
    return dataclasses.replace(self, model=model)

  def save(
    self,
    folder: str | os.PathLike,
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    max_shard_bytes: int = folders.MAX_SHARD_BYTES,
    format: str = "safetensors",
  ) -> None:
    """Writes it as a model folder, tokenizer and chat template too.

    A save that is killed leaves no config.json, so nothing that passes for a
    model. Where there are many processes all must call this, with a folder
    that all of them see.

    Args:
      folder: made if it is not there.
      dtype: of the weights, "float32", "bfloat16" or, of safetensors,
        "float16"; the model's own unless given.
      overwrite: whether the folder may already hold files.
      max_shard_bytes: weights beyond it go into several files and an index.
      format: "safetensors", Hugging Face's: gathered tensor by tensor on
        process 0; or "orbax": every process writes its own shards.

    Raises:
      FileExistsError: the folder holds files and `overwrite` is false.
      ValueError: an unsupported dtype, or one the weights have no room in.
    """
    if dtype not in (None, "float16", *DTYPES):
      raise ValueError(
        f"dtype is {dtype!r}; give one of {', '.join(DTYPES)}, float16"
      )
    if format not in FORMATS:
      raise ValueError(
        f"format is {format!r}; give one of {', '.join(FORMATS)}"
      )
    if format == "orbax" and dtype == "float16":
      raise ValueError(
        "dtype is 'float16', which no model runs in; give float32 or bfloat16 "
        "for the format orbax"
      )
    if format == "orbax" and max_shard_bytes != folders.MAX_SHARD_BYTES:
      raise ValueError(
        f"max_shard_bytes is {max_shard_bytes}, but the format orbax has no "
        "such files; leave it out"
      )
    shards.write_once(  # before a model is read in vain
      (),
      lambda _: folders.check(pathlib.Path(folder), overwrite=overwrite),
    )
    how = dict(
      config=_of_base(hf.read_model_config(self.folder, url=self.url)),
      others=folders.companions(pathlib.Path(self.folder)),
      overwrite=overwrite,
    )
    typed = self.model.dtype if dtype is None else jnp.dtype(dtype)
    if format == "orbax":
      params = [param.astype(typed) for param in self.params]
      orbax.save(folder, self.model, params, **how)
      return
    how |= dict(dtype=typed, max_shard_bytes=max_shard_bytes)
    hf.save_params(folder, self.model, self.params, **how)


def _of_base(config: Mapping[str, Any]) -> dict[str, Any]:
  """A saved model's config.json: modules beside it are not saved with it."""
  modules = "num_nextn_predict_layers"
  return {**config, modules: 0} if modules in config else dict(config)


def load(
  name: str | os.PathLike,
  *,
  dtype: str = "float32",
  scan_layers: bool = False,
  mesh: str | Mapping[str, int] | jax.sharding.Mesh | None = None,
  strategy: str | Rules | Mapping[str, Any] | None = None,
  cache_sharding: str | None = None,
  pad_heads: bool = False,
) -> Pretrained:
  """Opens a checkpoint: a model folder with safetensors or Orbax's arrays.

  Args:
    name: a folder, a hub id or a gs:// path. What drafts for a target, and
      borrows from it, is opened by `load_head`.
    dtype: "float32" or "bfloat16".
    scan_layers: one loop over stacked layers; see `decoder.build`.
    mesh: splits it over devices: "data:2,model:4", the same as a mapping, or a
      Mesh. One device has all of it unless given.
    strategy: which axis of the model is split over which of the mesh:
      "tensor" (the default), "tensor2d", "fsdp", "replicated", or rules of
      your own; see `sharding.rules`.
    cache_sharding: caches by "heads" (the default), "rows" or "sequence".
    pad_heads: adds heads of zeros, or repeats key heads, where heads do not
      divide over the mesh; nothing changes in the result.

  Raises:
    ValueError: an unsupported dtype, architecture or setting, by name; or a
      size that does not divide over the mesh, with what would.
    FileNotFoundError, ConnectionError: the checkpoint cannot be had.
  """
  if dtype not in DTYPES:
    raise ValueError(f"dtype is {dtype!r}; give one of {', '.join(DTYPES)}")
  placement = placed(mesh, strategy, cache_sharding, pad_heads)
  found = locate.find(name, ranged=placement is not None)
  if heads.needs_target(found.folder):
    raise ValueError(
      f"{name}: it drafts for a target and is no model by itself; give it as "
      "--draft_model, or open it with specjax.load_head(name, target)"
    )
  config = hf.read_decoder_config(found.folder, url=found.url)
  if pad_heads:
    ways = [
      placement.ways(axis, kind)
      for axis in (axes.HEADS, axes.KV_HEADS)
      for kind in ("parameters", "arrays", "caches")
    ]
    config = padding.padded(config, math.lcm(*ways))
  return Pretrained(
    name=str(name),
    folder=str(found.folder),
    url=found.url,
    model=decoder.build(
      config,
      dtype=jnp.dtype(dtype),
      scan_layers=scan_layers,
      placement=placement,
      name=str(name),
    ),
    tokenizer=text.Tokenizer.from_folder(found.folder),
  )


def placed(
  mesh: Any, strategy: Any, cache_sharding: str | None, pad_heads: bool = False
) -> Placement | None:
  """The placement that `load`'s arguments ask for; None without a mesh.

  Raises:
    ValueError: names the argument, its value and the fix.
  """
  if mesh is None:
    given = dict(
      strategy=strategy, cache_sharding=cache_sharding, pad_heads=pad_heads
    )
    for name, value in given.items():
      if value not in (None, False):
        raise ValueError(
          f"{name} does nothing without a mesh; give one, or leave it out"
        )
    if jax.process_count() > 1:
      raise ValueError(
        f"mesh is not given, and there are {jax.process_count()} processes "
        f"with {jax.device_count()} devices; give --mesh=model:"
        f"{jax.device_count()} or another of that size"
      )
    return None
  if not isinstance(mesh, jax.sharding.Mesh):
    mesh = mesh_lib.make(mesh)
  found = rules_lib.find("tensor" if strategy is None else strategy)
  return Placement(mesh, found.with_caches(cache_sharding or "heads"))
