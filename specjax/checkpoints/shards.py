"""Parameters put on their devices shard by shard, and gathered again."""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from specjax.checkpoints import tensor_files
from specjax.models import padding
from specjax.models.config import DecoderConfig

Part = tuple[slice, ...]  # each with start and stop


def shardings_of(model: Any) -> Sequence[jax.sharding.Sharding | None]:
  """Where a model's parameters go, in their order; None for one device."""
  shardings = getattr(model, "shardings", None)
  return [None] * len(model.shapes) if shardings is None else shardings


def load(
  shape: Sequence[int],
  sharding: jax.sharding.Sharding | None,
  read: Callable[[Part], np.ndarray],
) -> jax.Array:
  """Makes an array of the parts that this process's devices hold.

  Args:
    shape: of the array.
    sharding: how it is split, or None for the whole on one device.
    read: gives a part as a new array. Asked once for a part that several
      devices hold.

  Returns:
    The array, on its devices: nothing on the host is still waiting for it.
  """
  if sharding is None:
    return jax.device_put(read(tuple(slice(0, size) for size in shape)))
  holders: dict[tuple, list[jax.Device]] = {}
  for device, index in sharding.addressable_devices_indices_map(
    tuple(shape)
  ).items():
    pairs = zip(index, shape, strict=True)
    part = tuple(axis.indices(size)[:2] for axis, size in pairs)
    holders.setdefault(part, []).append(device)
  arrays = []
  for part, devices in holders.items():
    value = read(tuple(slice(*ends) for ends in part))
    arrays += [jax.device_put(value, device) for device in devices]
    # Or the next shards would be read while these wait in the host's memory.
    jax.block_until_ready(arrays)
  return jax.make_array_from_single_device_arrays(
    tuple(shape), sharding, arrays
  )


def assemble(
  config: DecoderConfig,
  names: Sequence[str | None],
  part: Part,
  dtype: Any,
  fill: Callable[[Part, np.ndarray], None],
) -> np.ndarray:
  """Makes a part of a parameter from a checkpoint with fewer heads.

  Args:
    config: of the model.
    names: the parameter's logical axes.
    part: which part, in the model.
    dtype: of the result.
    fill: reads a part of the checkpoint's parameter into an array.
  """
  out = tensor_files.empty([axis.stop - axis.start for axis in part], dtype)
  places = [
    list(_places(padding.heads_of(config, name), axis))
    for name, axis in zip(names, part, strict=True)
  ]
  filled = [sum(own.stop - own.start for own, _ in axis) for axis in places]
  if tuple(filled) != out.shape:
    out[...] = 0
  for block in itertools.product(*places):
    own, theirs = zip(*block, strict=True)
    fill(theirs, out[own])
  return out


def _places(
  heads: Sequence[int] | None, axis: slice
) -> Iterator[tuple[slice, slice]]:
  """Which indices of a part are which of the checkpoint, run by run."""
  if heads is None:
    yield slice(0, axis.stop - axis.start), axis
    return
  at = axis.start
  while at < axis.stop:
    end, head = at + 1, heads[at]
    if head != padding.ZERO:
      while end < axis.stop and heads[end] == head + end - at:
        end += 1
      yield (
        slice(at - axis.start, end - axis.start),
        slice(head, head + end - at),
      )
    at = end


def gathered(value: jax.Array) -> np.ndarray:
  """The whole of an array, on every host; all processes must call this."""
  if isinstance(value, jax.Array) and not value.is_fully_addressable:
    return multihost_utils.process_allgather(value, tiled=True)
  return np.asarray(value)


def write_once(
  stream: Iterable[Any], write: Callable[[Iterable[Any]], None]
) -> None:
  """Lets process 0 write what all processes have to take part in making.

  Args:
    stream: what is written; making an item may need every process.
    write: writes the items. Called on process 0 alone.

  Raises:
    RuntimeError: on the other processes, where writing failed.
    Whatever `write` raises, on process 0.
  """
  if jax.process_count() == 1:
    write(stream)
    return
  error = None
  try:
    if jax.process_index() == 0:
      write(stream)
  except Exception as raised:
    error = raised
  # The others wait for process 0 in every item.
  collections.deque(stream, maxlen=0)
  failed = multihost_utils.process_allgather(np.int32(error is not None))
  if error is not None:
    raise error
  if failed.any():
    raise RuntimeError("process 0 could not save the model; it says why")
