"""The safetensors format: named arrays in a file, opened and read.

The format (safetensors, "Format"): the header's length as 8 bytes, the header
in JSON, the bytes of all tensors. `regions` reads parts of them, and
`tensor_writer` writes such files.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from specjax import text
from specjax.checkpoints import ranges
from specjax.checkpoints.ranges import Local, Remote, Traffic

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# The names safetensors gives to the types a checkpoint may hold and we read.
DTYPES = {
  "F32": np.dtype(np.float32),
  "F16": np.dtype(np.float16),
  "BF16": np.dtype(ml_dtypes.bfloat16),
}
# Bytes of an entry of the other types, whose tensors may be there unread.
_SIZES = {
  **{code: dtype.itemsize for code, dtype in DTYPES.items()},
  **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
  **dict.fromkeys(("U16", "I16"), 2),
  **dict.fromkeys(("U32", "I32"), 4),
  **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
# A shard lies beside its index. What else an index says is not followed: it
# comes with a downloaded model.
_SHARD = re.compile(r"[^/\\\0]+\.safetensors")
_LONGEST_HEADER = 100_000_000  # bytes, as safetensors has it
PIECE = 1 << 24  # bytes at once where a cast needs a second buffer
_ALIGNED = 64  # bytes; jax's CPU arrays lie so, and take such buffers over
_SHOWN = 60  # characters of a name or a value that an error shows


class CheckpointError(ValueError):
  """A checkpoint does not hold exactly the model's parameters."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """One tensor, still on disk.

  Attributes:
    name: its name.
    path: the file it lies in, as errors name it.
    shape: its shape.
    code: safetensors' name of its type.
    start: where its bytes begin in the file.
    nbytes: how many they are.
    file: the open file.
    traffic: where the bytes that are read are counted.
  """

  name: str
  path: str
  shape: tuple[int, ...]
  code: str
  start: int
  nbytes: int
  file: Local | Remote = dataclasses.field(repr=False)
  traffic: Traffic = dataclasses.field(repr=False)

  @property
  def dtype(self) -> np.dtype:
    """Its type.

    Raises:
      CheckpointError: it is none of DTYPES.
    """
    if self.code not in DTYPES:
      raise CheckpointError(
        f"{self.path}: tensor {self.name} is of the type {self.code}; only "
        f"{', '.join(DTYPES)} are read"
      )
    return DTYPES[self.code]

  def read(self) -> np.ndarray:
    """Reads the whole tensor.

    Raises:
      CheckpointError: the type is none of DTYPES, or the file has shrunk.
    """
    out = empty(self.shape, self.dtype)
    self.read_into(out.reshape(-1), 0)
    return out

  def read_into(self, out: np.ndarray, first: int) -> None:
    """Reads numbers that follow one another.

    Args:
      out: a flat array of any type, filled in place.
      first: how many of the tensor's numbers come before them.

    Raises:
      CheckpointError: as read.
    """
    own = self.dtype
    if out.dtype == own:
      self.fill(out.view(np.uint8), first * own.itemsize)
      return
    piece = np.empty(min(out.size, PIECE // own.itemsize), own)
    for at in range(0, out.size, max(piece.size, 1)):
      part = piece[: out.size - at]
      self.fill(part.view(np.uint8), (first + at) * own.itemsize)
      out[at : at + part.size] = part

  def same_bytes(self, other: "Entry", share: tuple[int, int]) -> bool:
    """Whether another tensor is of this type and holds the same numbers.

    Args:
      other: the other tensor.
      share: (i, n): only the i-th n-th of them is looked at.
    """
    if (self.code, self.nbytes) != (other.code, other.nbytes):
      return False
    number, count = share
    start, end = (self.nbytes * n // count for n in (number, number + 1))
    mine, theirs = np.empty((2, min(end - start, PIECE)), np.uint8)
    for at in range(start, end, max(mine.size, 1)):
      size = min(mine.size, end - at)
      self.fill(mine[:size], at)
      other.fill(theirs[:size], at)
      if not np.array_equal(mine[:size], theirs[:size]):
        return False
    return True

  def fill(self, buffer: np.ndarray, at: int) -> None:
    """Reads bytes of the tensor, from `at` on, until the buffer is full.

    Raises:
      CheckpointError: the file has shrunk.
    """
    if not self.file.fill(buffer, self.start + at):
      raise CheckpointError(
        f"{self.path}: the file ends within tensor {self.name}; fetch it again"
      )
    self.traffic.nbytes += buffer.size


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
  """An array that jax's CPU backend takes over without a copy.

  Use `jax.device_put`, which shares an aligned buffer; `jnp.asarray` copies.
  """
  dtype = np.dtype(dtype)
  size = math.prod(shape) * dtype.itemsize
  raw = np.empty(size + _ALIGNED, np.uint8)
  skip = -raw.ctypes.data % _ALIGNED
  return raw[skip : skip + size].view(dtype).reshape(shape)


def open_folder(
  folder: pathlib.Path,
  stack: contextlib.ExitStack,
  *,
  url: str | None = None,
  traffic: Traffic | None = None,
) -> dict[str, Entry]:
  """Opens the tensors of a model folder, none of them read yet.

  Args:
    folder: with model.safetensors, or with the shards that its
      model.safetensors.index.json names.
    stack: closes the files.
    url: where the safetensors lie, if not in the folder.
    traffic: counts the bytes that are read.

  Raises:
    FileNotFoundError: there are no safetensors, or a shard is absent.
    ConnectionError: the URL cannot be read.
    CheckpointError: a file is damaged, or two shards have the same tensor.
    ValueError: the index is not JSON.
  """
  entries: dict[str, Entry] = {}
  traffic = Traffic() if traffic is None else traffic
  for name in _files(folder, url):
    path = str(folder / name) if url is None else f"{url}/{name}"
    try:
      file = ranges.open_in(folder, name, url)
      stack.callback(file.close)
      found = _read_header(path, file, traffic)
    except FileNotFoundError:
      raise FileNotFoundError(
        f"{path}: no such file"
        + (f", but {INDEX} names it" if name != FILE else "")
      ) from None
    except (CheckpointError, ConnectionError):
      raise
    except (OSError, ValueError) as error:  # a folder, or no name of a file
      raise CheckpointError(f"{path}: cannot be read ({error})") from None
    for twice in found.keys() & entries.keys():
      other = os.path.basename(entries[twice].path)
      raise CheckpointError(f"{path}: tensor {shown(twice)} is in {other} too")
    entries |= found
  return entries


def _files(folder: pathlib.Path, url: str | None) -> list[str]:
  """The names of a folder's safetensors files."""
  if (folder / FILE).is_file():
    return [FILE]
  if (folder / INDEX).is_file():
    index = text.read_json(folder / INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
      raise CheckpointError(f"{folder / INDEX}: weight_map is missing or empty")
    for name in index.values():
      if not isinstance(name, str) or not _SHARD.fullmatch(name):
        raise CheckpointError(
          f"{folder / INDEX}: {shown(name)} is not the name of a .safetensors "
          "file beside it"
        )
    return sorted(set(index.values()))
  if url is not None:
    return [FILE]
  hint = ""
  if any(folder.glob("pytorch_model*.bin")):
    hint = "; its pytorch_model.bin must be converted to safetensors first"
  raise FileNotFoundError(f"{folder}: neither {FILE} nor {INDEX} in it{hint}")


def _read_header(
  path: str, file: Local | Remote, traffic: Traffic
) -> dict[str, Entry]:
  """The tensors of an open file, all of them held to its size."""

  def damaged(what: str) -> CheckpointError:
    return CheckpointError(
      f"{path}: the file is truncated or damaged ({what}); fetch it again"
    )

  size = file.size
  length = int.from_bytes(_bytes(file, 0, min(size, 8)), "little")
  if size < 8 or length > min(size - 8, _LONGEST_HEADER):
    raise damaged(
      f"it has {size} bytes, too few for the header's length"
      if size < 8
      else f"a header of {length} bytes in a file of {size}"
    )
  try:
    header = json.loads(
      _bytes(file, 8, length).decode(), object_pairs_hook=_once
    )
  except RecursionError:
    raise damaged("the header is nested too deep") from None
  except ValueError as error:  # not UTF-8, not JSON, a key given twice
    raise damaged(f"the header: {str(error).partition(';')[0]}") from None
  if not isinstance(header, dict):
    raise damaged("the header is no JSON object")
  header.pop("__metadata__", None)
  start, entries = 8 + length, {}
  for name, entry in header.items():
    try:
      shape, code, begin, end = _checked(entry)
    except ValueError as error:
      raise damaged(f"tensor {shown(name)}: {error}") from None
    entries[name] = Entry(
      name=name,
      path=path,
      shape=shape,
      code=code,
      start=start + begin,
      nbytes=end - begin,
      file=file,
      traffic=traffic,
    )
  at = start
  for entry in sorted(entries.values(), key=lambda e: (e.start, e.nbytes)):
    if entry.start != at:
      raise damaged(
        f"tensor {shown(entry.name)} begins at byte {entry.start}, where the "
        f"one before it ends at {at}"
      )
    at += entry.nbytes
  if at != size:
    raise damaged(f"its tensors end at byte {at} of {size}")
  return entries


def _bytes(file: Local | Remote, at: int, count: int) -> bytes:
  buffer = np.zeros(count, np.uint8)
  file.fill(buffer, at)
  return buffer.tobytes()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  fields = dict(pairs)
  if len(fields) != len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f"the key {shown(twice)} is given twice")
  return fields


def _checked(entry: Any) -> tuple[tuple[int, ...], str, int, int]:
  """(shape, type, begin, end) of a header's entry; ValueErrors name the key."""
  if not isinstance(entry, dict):
    raise ValueError(f"it is {shown(entry)}, no object")
  code, shape = entry.get("dtype"), entry.get("shape")
  offsets = entry.get("data_offsets")
  if not isinstance(code, str):
    raise ValueError(f"dtype is {shown(code)}")
  if not isinstance(shape, list) or not all(map(_is_size, shape)):
    raise ValueError(f"shape is {shown(shape)}")
  if not isinstance(offsets, list) or not all(map(_is_size, offsets)):
    raise ValueError(f"data_offsets is {shown(offsets)}")
  if len(offsets) != 2 or offsets[0] > offsets[1]:
    raise ValueError(f"data_offsets is {shown(offsets)}")
  wanted = math.prod(shape) * _SIZES.get(code, 0)
  if code in _SIZES and offsets[1] - offsets[0] != wanted:
    raise ValueError(
      f"data_offsets is {shown(offsets)}, but {code} of the shape "
      f"{shown(shape)} takes another number of bytes"
    )
  return tuple(shape), code, offsets[0], offsets[1]


def _is_size(value: Any) -> bool:
  return type(value) is int and 0 <= value < 2**63


def shown(value: Any) -> str:
  """A value as errors spell it: a file may hold one of any length."""
  spelled = repr(value)
  return spelled if len(spelled) <= _SHOWN else f"{spelled[: _SHOWN - 1]}…"
