"""Model folders with random weights, to rehearse without a download.

A folder holds all that a real one does: config.json, the weights, and a
tokenizer whose tokens are the 256 bytes, a few pairs and the end of a text.
Ids beyond those, where a preset has them, decode to nothing.
"""

import math
import os
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from specjax.checkpoints import folders, keymaps
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


def size(preset: str, dtype: Any) -> int:
  """Bytes of a preset's weights; errors as `write`."""
  model = decoder.build(presets.get(preset), scan_layers=True)
  return model.parameter_count * np.dtype(dtype).itemsize


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
  config = presets.config_json(preset)
  model = decoder.build(presets.get(preset), scan_layers=True)
  tokenizer = byte_tokenizer()
  end = tokenizer.token_to_id(EOS)
  sources = keymaps.sources(
    model.paths,
    [spec.shape for spec in model.shapes],
    table=keymaps.layout_of(model.config).table,
  )
  folders.write(
    folder,
    {name: s.file_shape for s in sources for name in s.names},
    _tensors(sources, seed, model.config.norm),
    config=config | {"eos_token_id": end},
    dtype=dtype,
    others={
      "tokenizer.json": tokenizer.to_str().encode(),
      "tokenizer_config.json": folders.json_bytes({"eos_token": EOS}),
      "generation_config.json": folders.json_bytes({"eos_token_id": end}),
    },
    overwrite=overwrite,
  )


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
