"""An output behind a URL: objects cannot be appended to, so numbered parts.

gs://bucket/out.jsonl becomes gs://bucket/out.jsonl.part-00000 and so on, each a
file of whole rows, written once.
"""

import io
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from specjax.jobs import lines, stopping, urls

# A part is written when it has so many rows, or its first row is so old.
ROWS = 1000
SECONDS = 60.0


class Parts:
  """Rows in numbered objects; `jobs.output.Output` says what methods promise.

  A row is kept in memory until its part is full, so a kill loses up to SECONDS
  of rows, and a resumed run makes them again.
  """

  keeps = True

  def __init__(self, url: str, *, rows: int = ROWS, seconds: float = SECONDS):
    """Remembers where to write and when: `with` looks what is there.

    Raises:
      ImportError: the URL's package is not installed; names it.
      ValueError: the URL's scheme is unknown, or it names no object.
    """
    self.name = url
    self.count = 0
    self._system, self._path = urls.filesystem(url)
    self._folder, slash, name = self._path.rpartition("/")
    if not (slash and name) or url.endswith("/"):
      raise ValueError(f"output {url} is a folder; name a file in it")
    self._pattern = re.compile(re.escape(name) + r"\.part-(\d{5,})")
    self._rows, self._seconds = rows, seconds
    self._parts: dict[int, str] = {}
    self._pending: list[bytes] = []
    self._since = 0.0

  def __enter__(self) -> "Parts":
    local = "file" in self._system.protocol
    if local and not self._system.isdir(self._folder):
      raise ValueError(
        f"output {self.name}: there is no folder {self._folder}; make it"
      )
    for path in urls.children(self._system, self._folder):
      match = self._pattern.fullmatch(path.rpartition("/")[2])
      if match:
        self._parts[int(match[1])] = path
    return self

  def __exit__(self, kind, *_) -> None:
    # Whoever asks twice to end has no time for the network.
    if kind is None or not issubclass(
      kind, (KeyboardInterrupt, stopping.Terminated)
    ):
      self.flush()

  def holds_something(self) -> bool:
    """Whether there are parts."""
    return bool(self._parts)

  def read(self) -> Iterator[tuple[str, bytes]]:
    """The lines of all parts, in the order of their numbers."""
    for number, data in self._contents():
      where = self._parts[number]
      for index, line in enumerate(io.BytesIO(data), start=1):
        yield f"{where}, line {index}", line

  def manifest(self) -> bytes | None:
    """The object NAME.job.json."""
    return urls.get(self._system, self._path + lines.MANIFEST)

  def begin(self, manifest: bytes) -> None:
    """Removes the parts and writes the manifest, in this order."""
    # Rows beside a manifest that is not theirs would be taken for this job's.
    for number in sorted(self._parts, reverse=True):
      urls.remove(self._system, self._parts.pop(number))
    path = self._path + lines.MANIFEST
    urls.put(self._system, path, manifest, replace=True)

  def resume(self) -> None:
    """Writes a part that was cut off again, without its half line."""
    # A store has an object whole or not at all; a mere file may be cut off.
    for number, data in self._contents():
      if not data.endswith(b"\n"):
        whole = data[: data.rfind(b"\n") + 1]
        urls.put(self._system, self._parts[number], whole, replace=True)

  def write(self, row: Mapping[str, Any]) -> None:
    """Keeps a row, and writes the part that it fills."""
    if not self._pending:
      self._since = time.monotonic()
    self._pending.append(lines.encode(row))
    self.count += 1
    if len(self._pending) >= self._rows:
      self.flush()

  def flush(self) -> None:
    """Writes what is pending as the next part."""
    if not self._pending:
      return
    number = max(self._parts, default=-1) + 1
    path = f"{self._path}.part-{number:05d}"
    try:
      urls.put(self._system, path, b"".join(self._pending), replace=False)
    except FileExistsError:
      raise ValueError(
        f"output {self.name}: part {number} is there already; is another"
        " process writing to it?"
      ) from None
    self._parts[number] = path
    self._pending = []

  def pulse(self) -> None:
    """Writes what has waited long enough."""
    if self._pending and time.monotonic() - self._since >= self._seconds:
      self.flush()

  def _contents(self) -> Iterator[tuple[int, bytes]]:
    for number in sorted(self._parts):
      data = urls.get(self._system, self._parts[number])
      if data:
        yield number, data
