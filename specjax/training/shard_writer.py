"""Writes the folders of `training.shards`: claimed, appended to, resumed."""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specjax.training import shards

SHARD_BYTES = 64_000_000
# A kill costs the rows of so many seconds, which are then made again.
FLUSH_EVERY_S = 5.0
_SHARDS = re.compile(r"((shard|open)-\d{5,}\.npz|manifest\.json)(\.partial)?")
# Beside the shards, of whoever makes the rows.
_OTHERS = {"self_prompts.jsonl"}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


class Writer:
  """Appends rows to a folder; `with` claims it, and flushes in the end.

  Attributes:
    folder: where.
    ids: names of the rows that it holds.
    tokens, answer_tokens: how many, in all rows.
  """

  def __init__(
    self,
    folder: str | os.PathLike,
    about: Mapping[str, Any],
    *,
    overwrite: bool = False,
    resume: bool = False,
    shard_bytes: int = SHARD_BYTES,
  ):
    """Remembers what to do; nothing is touched before `with`.

    Args:
      folder: made if it is not there.
      about: what shapes the rows, as JSON has it: "target", "settings",
        "hidden" (the layers' numbers). A resumed folder must have the same.
      overwrite: whether rows that are there may go.
      resume: whether to go on with them.
      shard_bytes: a shard is closed when it holds so much.
    """
    self.folder = pathlib.Path(folder)
    self.ids: set[str] = set()
    self.tokens = self.answer_tokens = 0
    self._about = json.loads(json.dumps(dict(about)))  # As it comes back.
    self._overwrite, self._resume = overwrite, resume
    self._limit = shard_bytes
    self._closed: list[dict[str, Any]] = []
    self._tail: dict[str, Any] | None = None
    self._rows: list[shards.Row] = []
    self._turn = self._pending = 0
    self._dirty = self._complete = False
    self._flushed_at = time.monotonic()
    self._lock: int | None = None

  def __enter__(self) -> "Writer":
    """Claims the folder.

    Raises:
      ValueError: another process writes to it, it holds something and neither
        `resume` nor `overwrite` is set, or it was made otherwise.
    """
    self.folder.mkdir(parents=True, exist_ok=True)
    self._lock = _locked(self.folder)
    try:
      self._claim()
    except BaseException:
      os.close(self._lock)
      raise
    return self

  def __exit__(self, *_) -> None:
    try:
      self.flush()
    finally:
      os.close(self._lock)

  @property
  def complete(self) -> bool:
    """Whether `finish` was called, now or in an earlier run."""
    return self._complete

  def append(self, row: shards.Row) -> None:
    """Takes a row; it is on disk within FLUSH_EVERY_S, if `pulse` is called."""
    if row.id in self.ids:
      raise ValueError(f"row {row.id!r} is there already")
    if not 0 <= row.answer < len(row.tokens):
      raise ValueError(
        f"row {row.id!r} of {len(row.tokens)} tokens has its answer at"
        f" {row.answer}"
      )
    self._rows.append(row)
    self._pending += row.bytes
    self._dirty = True
    self._count(row)
    if self._pending >= self._limit:
      self._close_shard()

  def pulse(self) -> None:
    """Writes what has waited long enough."""
    if time.monotonic() - self._flushed_at >= FLUSH_EVERY_S:
      self.flush()

  def flush(self) -> None:
    """Writes what is pending."""
    if self._dirty:
      self._turn += 1
      self._publish(f"open-{self._turn:05d}.npz", is_open=True)

  def finish(self) -> None:
    """Closes the last shard and says that nothing is missing."""
    self._complete = True
    if self._rows:
      self._close_shard()
    else:
      self._write_manifest()

  def _claim(self) -> None:
    there = sorted(path.name for path in self.folder.iterdir())
    ours = [name for name in there if _SHARDS.fullmatch(name)]
    if there and not (self._resume or self._overwrite):
      raise ValueError(
        f"{self.folder} holds something already; name another folder, or go on"
        " with --resume, or start anew with --overwrite"
      )
    if self._resume and shards.MANIFEST in there:
      self._go_on()
      kept = {one["file"] for one in self._listed()} | {shards.MANIFEST}
      self._remove([name for name in ours if name not in kept])
      return
    if shards.MANIFEST in there:  # First, so that half a folder is never whole.
      self._remove([shards.MANIFEST])
    self._remove([*(set(ours) - {shards.MANIFEST}), *_OTHERS])
    self._write_manifest()

  def _go_on(self) -> None:
    reader = shards.Reader(self.folder)
    if found := differences(reader.about, self._about):
      raise ValueError(
        f"{self.folder} was begun with {'; '.join(found)}; give the same again,"
        " name another folder, or start anew with --overwrite"
      )
    for row in reader:
      self._count(row)
    listed = reader.manifest["shards"]
    self._complete = reader.complete
    self._closed = [one for one in listed if not one["open"]]
    if listed and listed[-1]["open"]:
      self._tail = listed[-1]
      self._turn = int(re.findall(r"\d+", self._tail["file"])[0])
      last = shards.Reader(self.folder, only=self._tail["file"])
      last.verify()
      self._rows = [_copied(row) for row in last]
      self._pending = sum(row.bytes for row in self._rows)

  def _count(self, row: shards.Row) -> None:
    self.ids.add(row.id)
    self.tokens += len(row.tokens)
    self.answer_tokens += len(row.tokens) - row.answer

  def _close_shard(self) -> None:
    self._publish(f"shard-{len(self._closed):05d}.npz", is_open=False)

  def _publish(self, name: str, *, is_open: bool) -> None:
    data = shards.encode(self._rows)
    write(self.folder / name, data)
    entry = {
      "file": name,
      "open": is_open,
      "rows": len(self._rows),
      "tokens": sum(len(row.tokens) for row in self._rows),
      "sha256": hashlib.sha256(data).hexdigest(),
    }
    before, self._tail = self._tail, entry if is_open else None
    if not is_open:
      self._closed.append(entry)
      self._rows, self._pending = [], 0
    self._write_manifest()
    self._dirty = False
    if before is not None:
      self._remove([before["file"]])

  def _listed(self) -> list[dict[str, Any]]:
    return self._closed + ([self._tail] if self._tail else [])

  def _write_manifest(self) -> None:
    fields = {
      "version": shards.VERSION,
      **self._about,
      "complete": self._complete,
      "rows": len(self.ids),
      "tokens": self.tokens,
      "answer_tokens": self.answer_tokens,
      "shards": self._listed(),
    }
    text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False)
    write(self.folder / shards.MANIFEST, (text + "\n").encode())
    self._flushed_at = time.monotonic()

  def _remove(self, names: Sequence[str]) -> None:
    for name in names:
      with contextlib.suppress(FileNotFoundError):
        (self.folder / name).unlink()


def differences(before: Any, now: Any, name: str = "") -> list[str]:
  """What of two JSON values is not the same, in words: name=old, not new."""
  if isinstance(before, dict) and isinstance(now, dict):
    found = []
    for key in sorted({*before, *now}):
      below = f"{name}.{key}" if name else key
      found += differences(before.get(key), now.get(key), below)
    return found
  if before == now:
    return []
  short = [json.dumps(one, ensure_ascii=False)[:60] for one in (before, now)]
  return [f"{name}={short[0]}, not {short[1]}"]


def _copied(row: shards.Row) -> shards.Row:
  """The row in memory: the file that it is mapped from will be removed."""
  hidden = None if row.hidden is None else np.array(row.hidden)
  return dataclasses.replace(row, tokens=np.array(row.tokens), hidden=hidden)


def _locked(folder: pathlib.Path) -> int:
  """A descriptor of the folder, which one process may hold."""
  handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
  try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    if isinstance(error, BlockingIOError):
      os.close(handle)
      raise ValueError(
        f"{folder} is being written by another process; wait for it, or name"
        " another folder"
      ) from None
    if error.errno not in _NO_LOCKS:  # Not every file system has locks.
      os.close(handle)
      raise
  return handle


def write(path: pathlib.Path, data: bytes) -> None:
  """Puts a file in its place at one stroke: a kill leaves the one before.

  Raises:
    OSError: it cannot be written; names it.
  """
  partial = path.with_name(path.name + ".partial")
  try:
    with open(partial, "wb") as file:
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    os.replace(partial, path)
  except OSError as error:
    with contextlib.suppress(OSError):
      partial.unlink()
    why = (error.strerror or str(error)).lower()
    raise OSError(f"output {path}: {why}") from None
