"""An output file on this machine: appended to, locked, safe against kills."""

import contextlib
import errno
import fcntl
import os
import pathlib
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any

from specjax.jobs import lines

# What a killed process has written is safe at once, what a machine that dies
# has written only once it is synced.
SYNC_EVERY_S = 1.0
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class File:
  """A file of rows; `jobs.output.Output` says what the methods promise.

  A device or a pipe (/dev/stdout, a FIFO) is written to and holds nothing.
  """

  def __init__(self, path: str | pathlib.Path, *, read_only: bool = False):
    """Remembers the path; `with` opens the file, and makes it if absent.

    A file that was made and never begun is removed again at the end.

    Args:
      path: of the file.
      read_only: whether it is there, and only to be read.
    """
    self._read_only = read_only
    self.name = str(path)
    self.count = 0
    self._path = pathlib.Path(path)
    self._manifest = self._path.with_name(self._path.name + lines.MANIFEST)
    self._file = -1
    self._new = self._regular = self._begun = self._unsynced = False
    self._end = 0
    self._synced_at = 0.0

  def __enter__(self) -> "File":
    while True:
      self._open()
      if not self._regular:
        return self
      try:
        self._lock()
        # Whoever held the lock may have removed the file just now.
        if os.path.samestat(os.fstat(self._file), os.stat(self._path)):
          break
      except FileNotFoundError:
        pass
      except BaseException:
        os.close(self._file)
        raise
      os.close(self._file)
    self._end = os.fstat(self._file).st_size
    return self

  def __exit__(self, *_) -> None:
    try:
      self.flush()
      if self._new and not self._begun:
        self._path.unlink()
    finally:
      os.close(self._file)

  @property
  def keeps(self) -> bool:
    """Whether it is a file, and not a device or a pipe."""
    return self._regular

  def holds_something(self) -> bool:
    """Whether there is anything in the file."""
    return self._end > 0

  def read(self) -> Iterator[tuple[str, bytes]]:
    """Its lines, from the beginning."""
    with open(self._path, "rb") as file:
      for number, line in enumerate(file, start=1):
        yield f"{self.name}, line {number}", line

  def manifest(self) -> bytes | None:
    """What lies beside it, in FILE.job.json."""
    try:
      return self._manifest.read_bytes()
    except FileNotFoundError:
      return None

  def begin(self, manifest: bytes) -> None:
    """Empties the file and writes the manifest, in this order."""
    self._begun = True
    if not self._regular:
      return
    # First, so that a manifest that cannot be written costs no row.
    partial = self._stage_manifest(manifest)
    # Rows beside a manifest that is not theirs would be taken for this job's.
    os.ftruncate(self._file, 0)
    os.fsync(self._file)
    self._end = 0
    self._replace_manifest(partial)

  def resume(self) -> None:
    """Cuts off what follows the last line break; touches nothing else."""
    self._begun = True
    end = self._end_of_last_line()
    if end < self._end:
      os.ftruncate(self._file, end)
      self._end, self._unsynced = end, True

  def write(self, row: Mapping[str, Any]) -> None:
    """Appends a row; a row that does not fit is taken back."""
    left = memoryview(lines.encode(row))
    size = len(left)
    try:
      while left:
        left = left[os.write(self._file, left) :]
    except OSError as error:
      with contextlib.suppress(OSError):  # Half a line is worth nothing.
        os.ftruncate(self._file, self._end)
      raise self._failure(error) from None
    self._end += size
    self.count += 1
    self._unsynced = True
    self.pulse()

  def flush(self) -> None:
    """Syncs."""
    self._sync()

  def pulse(self) -> None:
    """Syncs, at most once in SYNC_EVERY_S."""
    if time.monotonic() - self._synced_at >= SYNC_EVERY_S:
      self._sync()

  def _open(self) -> None:
    """Opens the file; never empties it."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    self._new = False
    if self._read_only:
      flags = os.O_RDONLY | os.O_CLOEXEC
    try:
      try:
        self._regular = stat.S_ISREG(os.stat(self._path).st_mode)
        if not self._regular:
          flags = os.O_WRONLY | os.O_CLOEXEC
        self._file = os.open(self._path, flags)
      except FileNotFoundError:
        self._file = os.open(self._path, flags | os.O_CREAT, 0o666)
        self._regular = self._new = True
    except OSError as error:
      raise self._failure(error) from None

  def _lock(self) -> None:
    try:
      kind = fcntl.LOCK_SH if self._read_only else fcntl.LOCK_EX
      fcntl.flock(self._file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
      raise ValueError(
        f"output {self.name} is being written by another process; wait for it,"
        " or name another file"
      ) from None
    except OSError as error:
      if error.errno not in _NO_LOCKS:  # Not every file system has locks.
        raise self._failure(error) from None

  def _sync(self) -> None:
    if not self._unsynced or not self._regular:
      return
    try:
      os.fsync(self._file)
    except OSError as error:
      raise self._failure(error) from None
    self._unsynced = False
    self._synced_at = time.monotonic()

  def _end_of_last_line(self) -> int:
    """Where the last whole line ends, looking back from the end."""
    end = self._end
    while end:
      start = max(end - 65536, 0)
      found = os.pread(self._file, end - start, start).rfind(b"\n")
      if found >= 0:
        return start + found + 1
      end = start
    return 0

  def _stage_manifest(self, data: bytes) -> pathlib.Path:
    """Writes the manifest into a file of its own."""
    partial = self._manifest.with_name(self._manifest.name + ".partial")
    try:
      with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
      raise self._failure(error, self._manifest) from None
    return partial

  def _replace_manifest(self, partial: pathlib.Path) -> None:
    """Puts it in its place at one stroke, and has the names on disk."""
    try:
      os.replace(partial, self._manifest)
      folder = os.open(self._path.parent, os.O_RDONLY)
      try:
        os.fsync(folder)
      finally:
        os.close(folder)
    except OSError as error:
      raise self._failure(error, self._manifest) from None

  def _failure(self, error: OSError, path=None) -> OSError:
    why = (error.strerror or str(error)).lower()
    held = f"; rows written: {self.count}" if self.count else ""
    return OSError(f"output {path or self.name}: {why}{held}")
