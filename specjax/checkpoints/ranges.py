"""Files that are read by ranges of bytes: on this machine, or behind a URL."""

import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

_PIECE = 1 << 23  # bytes of one request
_AT_ONCE = 8  # requests


@dataclasses.dataclass
class Traffic:
  """What was read.

  Attributes:
    nbytes: bytes of tensors; headers are not counted.
  """

  nbytes: int = 0


class Local:
  """A file on this machine.

  Attributes:
    path: where.
    size: in bytes.
    gap: bytes that are rather read than left out between two ranges.
  """

  gap = 0

  def __init__(self, path: pathlib.Path):
    self.path = path
    # Not through a memory map: mapped pages stay resident beside the copy made
    # of them, and a load would hold the model twice.
    self._file = path.open("rb", buffering=0)
    self.size = os.fstat(self._file.fileno()).st_size

  def fill(self, buffer: np.ndarray, at: int) -> bool:
    """Reads bytes, from `at` on, until the buffer is full.

    Returns:
      False where the file ends before that.
    """
    view = memoryview(buffer)
    while view:
      count = os.preadv(self._file.fileno(), [view], at)
      if not count:
        return False
      view, at = view[count:], at + count
    return True

  def close(self) -> None:
    """Closes it."""
    self._file.close()


class Remote:
  """A file behind a URL, through fsspec; otherwise like `Local`."""

  # A request takes as long as some megabytes.
  gap = 1 << 22

  def __init__(self, url: str):
    import fsspec

    self.path = url
    try:
      self._system, self._path = fsspec.core.url_to_fs(url)
      self.size = self._system.size(self._path)
    except FileNotFoundError:
      raise
    except Exception as error:  # whatever the bucket's library raises
      raise self._failed(error) from None

  def fill(self, buffer: np.ndarray, at: int) -> bool:
    """As of `Local`; a few requests are under way at a time."""
    for first in range(0, buffer.size, _PIECE * _AT_ONCE):
      last = min(first + _PIECE * _AT_ONCE, buffer.size)
      starts = list(range(at + first, at + last, _PIECE))
      ends = [*starts[1:], at + last]
      paths = [self._path] * len(starts)
      try:
        pieces = self._system.cat_ranges(paths, starts, ends, on_error="raise")
      except Exception as error:  # whatever the bucket's library raises
        raise self._failed(error) from None
      for piece, start, end in zip(pieces, starts, ends, strict=True):
        if len(piece) != end - start:
          return False
        buffer[start - at : end - at] = np.frombuffer(piece, np.uint8)
    return True

  def close(self) -> None:
    """Nothing is held open."""

  def _failed(self, error: Exception) -> Exception:
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return ConnectionError(f"{self.path}: fetching failed ({line})")


def open_in(folder: pathlib.Path, name: str, url: str | None) -> Any:
  """Opens a file of a folder, or of a URL in its place."""
  if url is None:
    return Local(folder / name)
  return Remote(f"{url.rstrip('/')}/{name}")
