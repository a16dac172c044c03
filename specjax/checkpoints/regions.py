"""A part of a tensor, read without the rest of it.

A part is a range along every axis. In the file it is a number of runs of
bytes, all of one length: a slice of rows is one run, a slice of columns has a
run in each row.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from specjax.checkpoints import keymaps, tensor_files, transforms
from specjax.checkpoints.tensor_files import Entry

_PIECE = 1 << 24  # bytes read at once where they are not read in place


def read(
  entry: Entry,
  source: keymaps.Source,
  part: Sequence[slice],
  out: np.ndarray,
) -> None:
  """Reads a part of a parameter, of one layer where layers are stacked.

  Args:
    entry: the tensor.
    source: how the parameter lies in it.
    part: with start and stop, along every axis of the parameter as the
      checkpoint has it.
    out: an array of the part's shape, filled in place.

  Raises:
    As Entry.read.
  """
  shape = source.shape[1:] if source.stacked else source.shape
  transform = source.transform
  order = transform.order(len(shape))
  whose = slice(source.part, source.part + 1)
  ranges = [whose if axis == transforms.PART else part[axis] for axis in order]
  in_order = order == tuple(range(len(shape)))
  if in_order and out.flags.c_contiguous:
    _fill(entry, transform.view(shape), ranges, out.reshape(-1))
    return
  sizes = [r.stop - r.start for r in ranges]
  value = tensor_files.empty(sizes, out.dtype)
  _fill(entry, transform.view(shape), ranges, value.reshape(-1))
  if transform.parts > 1:
    value = value.squeeze(order.index(transforms.PART))
  axes = [axis for axis in order if axis != transforms.PART]
  out[...] = value.transpose(np.argsort(axes))


def runs(
  shape: Sequence[int], ranges: Sequence[slice]
) -> tuple[Iterator[int], int]:
  """Where a part of an array lies.

  Args:
    shape: of the array, in row-major order.
    ranges: with start and stop, along every axis.

  Returns:
    The first element of every run, and how many elements a run has.
  """
  inner = len(shape)
  while inner and (ranges[inner - 1].start, ranges[inner - 1].stop) == (
    0,
    shape[inner - 1],
  ):
    inner -= 1
  if not inner:
    return iter((0,)), math.prod(shape)
  strides = [math.prod(shape[axis + 1 :]) for axis in range(inner)]
  last = ranges[inner - 1]
  first = last.start * strides[-1]
  steps = [
    range(r.start * stride, r.stop * stride, stride)
    for r, stride in zip(ranges[: inner - 1], strides, strict=False)
  ]
  starts = (first + sum(at) for at in itertools.product(*steps))
  return starts, (last.stop - last.start) * strides[-1]


def _fill(
  entry: Entry, shape: Sequence[int], ranges: Sequence[slice], out: np.ndarray
) -> None:
  """Reads a part of the tensor, seen in `shape`, into a flat array."""
  if not out.size:
    return
  starts, length = runs(shape, ranges)
  done, size = 0, entry.dtype.itemsize
  for group in _spans(
    starts, length, entry.file.gap // size, max(_PIECE // size, length)
  ):
    if len(group) == 1:
      entry.read_into(out[done : done + length], group[0])
      done += length
      continue
    # What lies between is thrown away: cheaper than a request for each run.
    span = np.empty(group[-1] + length - group[0], entry.dtype)
    entry.read_into(span, group[0])
    for start in group:
      at = start - group[0]
      out[done : done + length] = span[at : at + length]
      done += length


def _spans(
  starts: Iterator[int], length: int, gap: int, most: int
) -> Iterator[list[int]]:
  """Runs that are read at once: `gap` apart at most, `most` long together."""
  group: list[int] = []
  for start in starts:
    if group and (
      start - group[-1] - length > gap or start + length - group[0] > most
    ):
      yield group
      group = []
    group.append(start)
  if group:
    yield group
