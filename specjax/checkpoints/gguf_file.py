"""The GGUF container: a header of keys and tensors, then the tensors' bytes.

The layout is that of the specification (ggml, docs/gguf.md). Every length in
it is held against what the file still has, so that a damaged one costs neither
time nor memory; tensors are read with plain reads, rows at a time.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

_ALIGNMENT = "general.alignment"
_STRING, _ARRAY, _BOOL = 8, 9, 7
# Value type → how numpy spells it; the file is little-endian.
_SCALARS = {
  0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
  _BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_DEEPEST = 4  # arrays in arrays; no key in use has any
_MOST_AXES = 4
_PIECE = 1 << 22  # numbers dequantized at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class Type:
  """How a tensor's numbers are stored.

  Attributes:
    name: ggml's.
    code: ggml's number for it.
    block: numbers that are stored together.
    nbytes: bytes of such a block.
  """

  name: str
  code: int
  block: int
  nbytes: int


TYPES = {
  kind.code: kind
  for kind in (
    Type(name="F32", code=0, block=1, nbytes=4),
    Type(name="F16", code=1, block=1, nbytes=2),
    Type(name="BF16", code=30, block=1, nbytes=2),
    Type(name="Q8_0", code=8, block=32, nbytes=34),
    Type(name="Q4_0", code=2, block=32, nbytes=18),
    Type(name="Q4_1", code=3, block=32, nbytes=20),
    Type(name="Q4_K", code=12, block=256, nbytes=144),
    Type(name="Q6_K", code=14, block=256, nbytes=210),
  )
}
_PLAIN = {
  "F32": np.dtype("<f4"),
  "F16": np.dtype("<f2"),
  "BF16": np.dtype(ml_dtypes.bfloat16),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
  """One tensor, still on disk.

  Attributes:
    name: its GGUF name.
    path: the file.
    shape: slowest axis first, as numpy has it and as GGUF has not.
    kind: how its numbers are stored.
    start: where its bytes begin in the file.
  """

  name: str
  path: pathlib.Path
  shape: tuple[int, ...]
  kind: Type
  start: int

  @property
  def nbytes(self) -> int:
    """Its bytes in the file."""
    return math.prod(self.shape) // self.kind.block * self.kind.nbytes

  def read(self) -> np.ndarray:
    """Its numbers: float32, of its shape.

    Raises:
      ValueError: the file has shrunk since its header was read.
    """
    out = np.empty(self.shape, np.float32)
    width = self.shape[-1]
    rows = out.reshape(-1, width)
    row_bytes = width // self.kind.block * self.kind.nbytes
    step = max(_PIECE // width, 1)
    with self.path.open("rb", buffering=0) as file:
      file.seek(self.start)
      for at in range(0, len(rows), step):
        part = rows[at : at + step]
        packed = np.empty((len(part), row_bytes), np.uint8)
        view = memoryview(packed.reshape(-1))
        while view:
          if not (count := file.readinto(view)):
            raise ValueError(
              f"{self.path}: the file ends within tensor {self.name}"
            )
          view = view[count:]
        part[...] = self._unpacked(packed)
    return out

  def _unpacked(self, packed: np.ndarray) -> np.ndarray:
    if self.kind.name in _PLAIN:
      return packed.view(_PLAIN[self.kind.name])
    import gguf

    return gguf.dequantize(packed, gguf.GGMLQuantizationType(self.kind.code))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
  """What a file says before its weights.

  Attributes:
    metadata: key to value, in Python's types.
    tensors: name to tensor, in the file's order.
  """

  metadata: dict[str, Any]
  tensors: dict[str, Tensor]


def read(path: pathlib.Path) -> Header:
  """Reads a file's header and holds it to the file's size.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: names the file, and the key or tensor where there is one: it
      is no GGUF file, not a whole one, or a tensor has a type beyond TYPES.
  """
  try:
    file = path.open("rb")
  except OSError as error:
    raise FileNotFoundError(f"{path}: {error.strerror}") from None
  with file:
    try:
      return _Parser(path, file).header()
    except IsADirectoryError:
      raise ValueError(f"{path}: a folder, not a GGUF file") from None
    except _Damaged as error:
      raise ValueError(
        f"{path}: the GGUF file is truncated or damaged ({error}); fetch it "
        "again"
      ) from None


class _Damaged(Exception):
  """What about the file cannot be."""


class _Parser:
  """Reads a header front to back."""

  def __init__(self, path: pathlib.Path, file: BinaryIO):
    self._path = path
    self._file = file
    self._left = os.fstat(file.fileno()).st_size
    self._size = self._left
    self._what = "the header"  # that is being read, for errors

  def header(self) -> Header:
    """The whole header."""
    magic = self._file.read(4)
    if magic != b"GGUF":
      raise ValueError(
        f"{self._path}: not a GGUF file (it begins with {magic!r}, not b'GGUF')"
      )
    self._left -= 4
    version = self._number("<u4")
    if version not in (2, 3):
      swapped = version % 65536 == 0 and version > 0
      raise ValueError(
        f"{self._path}: GGUF version {version}"
        f"{' (a big-endian file?)' if swapped else ''} is not supported; "
        "versions 2 and 3 are"
      )
    tensor_count, key_count = self._number("<u8"), self._number("<u8")
    metadata: dict[str, Any] = {}
    for index in range(key_count):
      self._what = f"key {index} of {key_count}"
      key = self._string()
      self._what = f"the key {_shown(key)}"
      if key in metadata:
        raise _Damaged(f"{self._what} is there twice")
      metadata[key] = self._value(self._number("<u4"), 0)
    found: dict[str, tuple] = {}
    for index in range(tensor_count):
      self._what = f"tensor {index} of {tensor_count}"
      name = self._string()
      self._what = f"the tensor {_shown(name)}"
      if name in found:
        raise _Damaged(f"{self._what} is there twice")
      found[name] = self._tensor(name)
    start = self._size - self._left
    alignment = metadata.get(_ALIGNMENT, 32)
    if type(alignment) is not int or alignment < 1:
      raise _Damaged(f"the key {_ALIGNMENT} is {_shown(alignment)}")
    start += -start % alignment
    tensors = {
      name: Tensor(
        name=name, path=self._path, shape=shape, kind=kind, start=start + offset
      )
      for name, (shape, kind, offset) in found.items()
    }
    self._check_places(tensors, start)
    return Header(metadata=metadata, tensors=tensors)

  def _check_places(self, tensors: dict[str, Tensor], start: int) -> None:
    """Each tensor lies in the file, and none in another."""
    end = start
    for tensor in sorted(tensors.values(), key=lambda t: t.start):
      if tensor.start < end:
        raise _Damaged(
          f"the tensor {_shown(tensor.name)} begins within the one before it"
        )
      end = tensor.start + tensor.nbytes
      if end > self._size:
        raise _Damaged(
          f"the tensor {_shown(tensor.name)} ends at byte {end} of {self._size}"
        )

  def _tensor(self, name: str) -> tuple[tuple[int, ...], Type, int]:
    """(shape, type, offset) of the next tensor."""
    axes = self._number("<u4")
    if not 1 <= axes <= _MOST_AXES:
      raise _Damaged(f"{self._what} has {axes} axes")
    sizes = [int(size) for size in self._numbers("<u8", axes)]
    code, offset = self._number("<u4"), self._number("<u8")
    if not all(sizes):
      raise _Damaged(f"{self._what} has the shape {sizes[::-1]}")
    if code not in TYPES:
      known = ", ".join(kind.name for kind in TYPES.values())
      raise ValueError(
        f"{self._path}: {_shown(name)}: the type {_type_name(code)} is not "
        f"supported; only {known} are"
      )
    kind = TYPES[code]
    if sizes[0] % kind.block:
      raise _Damaged(
        f"{self._what} has rows of {sizes[0]}, no multiple of the {kind.block} "
        f"of {kind.name}"
      )
    return tuple(reversed(sizes)), kind, offset

  def _value(self, kind: int, depth: int) -> Any:
    if kind == _STRING:
      return self._string()
    if kind == _ARRAY:
      inner, count = self._number("<u4"), self._number("<u8")
      if inner in (_STRING, _ARRAY):
        if depth >= _DEEPEST:
          raise _Damaged(f"{self._what} is nested too deep")
        return list(self._values(inner, count, depth + 1))
      return self._scalars(inner, count)
    return self._scalars(kind, 1)[0]

  def _values(self, kind: int, count: int, depth: int) -> Iterator[Any]:
    if count * 8 > self._left:  # Each has a length of eight bytes or more.
      raise _Damaged(f"{self._what} has {count} entries, more than the file")
    for _ in range(count):
      yield self._value(kind, depth)

  def _scalars(self, kind: int, count: int) -> list:
    if kind not in _SCALARS:
      raise _Damaged(f"{self._what} is of the unknown type {kind}")
    values = self._numbers(_SCALARS[kind], count)
    if kind != _BOOL:
      return values.tolist()
    if values.size and values.max() > 1:
      raise _Damaged(f"{self._what} is neither true nor false")
    return values.astype(bool).tolist()

  def _string(self) -> str:
    data = self._bytes(self._number("<u8"))
    try:
      return data.decode()
    except UnicodeDecodeError as error:
      raise _Damaged(f"{self._what}: not UTF-8 text ({error})") from None

  def _number(self, kind: str) -> int:
    return int(self._numbers(kind, 1)[0])

  def _numbers(self, kind: str, count: int) -> np.ndarray:
    return np.frombuffer(self._bytes(count * np.dtype(kind).itemsize), kind)

  def _bytes(self, count: int) -> bytes:
    if count > self._left:
      raise _Damaged(
        f"{self._what} goes {count - self._left} bytes beyond the end"
      )
    self._left -= count
    data = self._file.read(count)
    if len(data) != count:
      raise _Damaged(f"{self._what} goes beyond the end")
    return data


def _type_name(code: int) -> str:
  """ggml's name of a type, where the gguf package knows it."""
  import gguf

  try:
    return gguf.GGMLQuantizationType(code).name
  except ValueError:
    return f"number {code}"


def _shown(value: Any) -> str:
  spelled = repr(value) if not isinstance(value, str) else value
  spelled = " ".join(spelled.split())
  return spelled if len(spelled) <= 60 else f"{spelled[:59]}…"
