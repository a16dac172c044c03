"""More attention heads than a checkpoint has, so that they divide over chips.

Attention cannot be split over more chips than divide its heads evenly. Two
ways make more heads of the same function:

  repeated  Each key/value head stands r times, and its query heads are dealt
            out to the copies (Megatron's and Pope et al. 2022's way). Query
            heads are added only where the group does not divide.
  zero      New key/value heads, each with a group of query heads.

Added heads have zeros for weights and biases, and zero columns in attention's
output product: whatever they attend to is multiplied by zero.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from specjax.models.config import DecoderConfig
from specjax.sharding import axes

ZERO = -1  # in `heads_of`: a head of zeros


def padded(config: DecoderConfig, ways: int) -> DecoderConfig:
  """The same model with heads that divide.

  Args:
    config: of the model; if it is padded, what it was padded from counts.
    ways: over how many chips the heads are to be split.

  Returns:
    A config whose `heads` and `kv_heads` are multiples of `ways`, which
    remembers the checkpoint's in `heads_in_file`; `config` as it was read
    where they divide as they are.

  Raises:
    ValueError: `ways` is less than one.
  """
  if ways < 1:
    raise ValueError(f"pad_heads to a multiple of {ways}; give at least 1")
  config = unpadded(config)
  heads, kv_heads = config.heads, config.kv_heads
  if kv_heads % ways == 0:
    return config
  group = heads // kv_heads
  if ways % kv_heads == 0 and group > 1:
    copies = ways // kv_heads
    new_kv, new_group = ways, -(-group // copies)
  else:
    new_kv, new_group = -(-kv_heads // ways) * ways, group
  return dataclasses.replace(
    config,
    heads=new_kv * new_group,
    kv_heads=new_kv,
    heads_in_file=(heads, kv_heads),
  )


def unpadded(config: DecoderConfig) -> DecoderConfig:
  """The config with the checkpoint's own heads."""
  if config.heads_in_file is None:
    return config
  heads, kv_heads = config.heads_in_file
  return dataclasses.replace(
    config, heads=heads, kv_heads=kv_heads, heads_in_file=None
  )


def heads_of(config: DecoderConfig, axis: str | None) -> tuple[int, ...] | None:
  """Which head of the checkpoint each head of the model is.

  Args:
    config: of the model.
    axis: a logical axis.

  Returns:
    For HEADS or KV_HEADS of a padded model, of each head its number in the
    checkpoint, or ZERO. None where every index is the checkpoint's own.
  """
  if config.heads_in_file is None or axis not in (axes.HEADS, axes.KV_HEADS):
    return None
  heads, kv_heads = config.heads_in_file
  group, new_group = heads // kv_heads, config.heads // config.kv_heads
  # A smaller group is one that was dealt out; see `padded`.
  copies = config.kv_heads // kv_heads if new_group < group else 1
  kv = [n // copies for n in range(config.kv_heads)]
  if axis == axes.KV_HEADS:
    return tuple(n if n < kv_heads else ZERO for n in kv)
  found = []
  for new in range(config.heads):
    new_kv, place = divmod(new, new_group)
    place += new_kv % copies * new_group  # within the old group
    real = place < group and kv[new_kv] < kv_heads
    found.append(kv[new_kv] * group + place if real else ZERO)
  return tuple(found)


def shape_in_file(
  config: DecoderConfig, names: Sequence[str | None], shape: Sequence[int]
) -> tuple[int, ...]:
  """A parameter's shape [..., N or K, ...] with the checkpoint's heads.

  Args:
    config: of the model.
    names: the parameter's logical axes.
    shape: its shape in the model.
  """
  if config.heads_in_file is None:
    return tuple(shape)
  own = dict(
    zip((axes.HEADS, axes.KV_HEADS), config.heads_in_file, strict=True)
  )
  pairs = zip(names, shape, strict=True)
  return tuple(own.get(name, size) for name, size in pairs)


def pad(
  config: DecoderConfig, names: Sequence[str | None], value: np.ndarray
) -> np.ndarray:
  """A checkpoint's parameter with the model's heads.

  Args:
    config: of the model.
    names: the parameter's logical axes.
    value: [..., N or K of the checkpoint, ...].

  Returns:
    [..., N or K of the model, ...]; `value` itself where it has no heads.
  """
  for dim, name in enumerate(names):
    heads = heads_of(config, name)
    if heads is None:
      continue
    at = np.asarray(heads)
    value = np.take(value, np.maximum(at, 0), axis=dim)
    value[(slice(None),) * dim + (at == ZERO,)] = 0
  return value


def cut(
  config: DecoderConfig, names: Sequence[str | None], value: np.ndarray
) -> np.ndarray:
  """The inverse of `pad`.

  Args:
    config: of the model.
    names: the parameter's logical axes.
    value: [..., N or K of the model, ...].

  Returns:
    [..., N or K of the checkpoint, ...].
  """
  for dim, name in enumerate(names):
    heads = heads_of(config, name)
    if heads is None:
      continue
    first = [heads.index(head) for head in range(max(heads) + 1)]
    value = np.take(value, np.asarray(first), axis=dim)
  return value
