"""Model folders with random weights, to rehearse with or to train.

A folder holds all that a real one does: config.json, the weights, and a
tokenizer whose tokens are the 256 bytes, a few pairs and the end of a text.
Ids beyond those, where a preset has them, decode to nothing.
"""

import dataclasses
import math
import os
import pathlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from specjax import text
from specjax.checkpoints import folders, keymaps
from specjax.models import config as config_lib
from specjax.models import decoder, presets

EOS = "<|endoftext|>"
# Frequent in English; they make 256 bytes and EOS a multiple of eight.
_PAIRS = (
  ("Ġ", "t"),
  ("h", "e"),
  ("i", "n"),
  ("e", "r"),
  ("a", "n"),
  ("o", "n"),
  ("r", "e"),
)


def byte_tokenizer() -> tokenizers.Tokenizer:
  """A byte-level tokenizer of 264 tokens; the last one is EOS."""
  letters = sorted(pre_tokenizers.ByteLevel.alphabet())
  tokens = letters + ["".join(pair) for pair in _PAIRS]
  made = tokenizers.Tokenizer(
    models.BPE(
      vocab={token: i for i, token in enumerate(tokens)}, merges=list(_PAIRS)
    )
  )
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoders.ByteLevel()
  made.add_special_tokens([EOS])
  return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """A folder that is still to be written.

  Attributes:
    config: the content of its config.json.
    model: of that config, with stacked layers.
    others: name to content of the files beside the weights.
  """

  config: dict[str, Any]
  model: decoder.Model
  others: dict[str, bytes]

  def size(self, dtype: Any) -> int:
    """Bytes of the weights."""
    return self.model.parameter_count * np.dtype(dtype).itemsize

  def write(
    self,
    folder: os.PathLike | str,
    *,
    seed: int = 0,
    dtype: Any = np.float32,
    overwrite: bool = False,
  ) -> None:
    """Writes random weights, tensor by tensor; see the module's `write`."""
    model = self.model
    sources = keymaps.sources(
      model.paths,
      [spec.shape for spec in model.shapes],
      table=keymaps.layout_of(model.config).table,
    )
    folders.write(
      folder,
      {name: s.file_shape for s in sources for name in s.names},
      _tensors(sources, seed, model.config.norm),
      config=self.config,
      dtype=dtype,
      others=self.others,
      overwrite=overwrite,
    )


def plan(
  preset: str,
  *,
  size: Mapping[str, int] | None = None,
  tokenizer: os.PathLike | str | None = None,
) -> Plan:
  """What a preset's folder will hold.

  Args:
    preset: one of `presets.PRESETS`.
    size: what changes its config.json.
    tokenizer: a folder whose tokenizer goes with it; `byte_tokenizer` if None.

  Raises:
    FileNotFoundError, ValueError: there is no such preset, size or tokenizer,
      or the tokenizer has no end of a text, or more tokens than the model.
  """
  config = presets.config_json(preset)
  for key, value in (size or {}).items():
    if type(config.get(key)) is not int:
      raise ValueError(
        f"--size={key}:{value}: {preset} has no such size; it has "
        + ", ".join(k for k, v in config.items() if type(v) is int)
      )
    config[key] = value
  if tokenizer is None:
    made = byte_tokenizer()
    end = made.token_to_id(EOS)
    others = {
      "tokenizer.json": made.to_str().encode(),
      "tokenizer_config.json": folders.json_bytes({"eos_token": EOS}),
    }
  else:
    own = text.Tokenizer.from_folder(tokenizer)
    if not own.eos_ids:
      raise ValueError(
        f"--tokenizer={tokenizer}: it names no eos_token, so no text would"
        " end; add one to its tokenizer_config.json"
      )
    if own.vocab_size > config["vocab_size"]:
      raise ValueError(
        f"--tokenizer={tokenizer}: it has {own.vocab_size} tokens and {preset}"
        f" {config['vocab_size']}; give --size=vocab_size:{own.vocab_size}"
      )
    end = own.eos_ids[0]
    others = folders.companions(pathlib.Path(tokenizer))
  generation = folders.json_bytes({"eos_token_id": end})
  return Plan(
    config=config | {"eos_token_id": end},
    model=decoder.build(config_lib.from_hugging_face(config), scan_layers=True),
    others=others | {"generation_config.json": generation},
  )


def size(preset: str, dtype: Any) -> int:
  """Bytes of a preset's weights; errors as `plan`."""
  return plan(preset).size(dtype)


def write(
  folder: os.PathLike | str,
  preset: str,
  *,
  seed: int = 0,
  dtype: Any = np.float32,
  overwrite: bool = False,
) -> None:
  """Writes a preset with random weights, tensor by tensor.

  Products are normal of deviation 1 / sqrt(in), norms the identity. A tensor
  depends on the seed and its own name alone.

  Args:
    folder: made if it is not there.
    preset: one of `presets.PRESETS`.
    seed: of the weights, at least 0.
    dtype: of the weights: float32, float16 or bfloat16.
    overwrite: whether the folder may already hold files.

  Raises:
    ValueError: there is no such preset.
    FileExistsError: the folder holds files and `overwrite` is false.
  """
  plan(preset).write(folder, seed=seed, dtype=dtype, overwrite=overwrite)


def _tensors(sources, seed: int, norm: str) -> Iterator[tuple]:
  """(name, value) of every tensor, in the order of `sources`."""
  for source in sources:
    # No preset has a bias, or shares a tensor between parameters.
    assert source.transform.parts == 1 and source.path.endswith(".weight")
    for name in source.names:
      if source.path.endswith("norm.weight"):
        plain = 0.0 if norm == "rms_plus_one" else 1.0
        yield name, np.full(source.file_shape, plain, np.float32)
        continue
      draws = np.random.default_rng([seed, zlib.crc32(name.encode())])
      value = draws.standard_normal(source.file_shape, np.float32)
      value /= np.float32(math.sqrt(source.file_shape[-1]))
      yield name, value
