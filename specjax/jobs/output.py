"""Where rows go: standard output, a file, or numbered parts behind a URL."""

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TextIO

from specjax.jobs import lines, local_file, parts, urls

MANIFEST = lines.MANIFEST


class Output(Protocol):
  """What a job needs of the place that its rows go to.

  Used in this order: `with` claims the place and looks at it, nothing is
  changed yet. Then `begin` or `resume`, `write` for every row, and `flush`.

  Attributes:
    name: as the user has called it.
    count: rows written by this job.
    keeps: whether what is written can be read again, and so resumed.
  """

  name: str
  keeps: bool
  count: int

  def __enter__(self) -> "Output":
    """Claims the place.

    Raises:
      ValueError: another process is writing there.
    """

  def __exit__(self, *exception) -> None:
    """Flushes, unless on a second signal, and gives the place up."""

  def holds_something(self) -> bool:
    """Whether an earlier job has left anything."""

  def read(self) -> Iterator[tuple[str, bytes]]:
    """What it holds, line by line: where each is, and its bytes.

    A line without a line break at its end is half-written.
    """

  def manifest(self) -> bytes | None:
    """What the job that began this output has left about itself."""

  def begin(self, manifest: bytes) -> None:
    """Empties the place for a job of this manifest."""

  def resume(self) -> None:
    """Drops half-written lines and makes ready to go on after the rest."""

  def write(self, row: Mapping[str, Any]) -> None:
    """Appends a row: one write, so that a kill leaves at most half a line.

    Raises:
      OSError: it cannot be written, a full disk for example.
    """

  def flush(self) -> None:
    """Writes what is pending, so that even a dying machine leaves it.

    Raises:
      OSError: it cannot be written.
    """

  def pulse(self) -> None:
    """Called often; writes what should not wait any longer."""


@contextlib.contextmanager
def claim(
  name: str | pathlib.Path | None,
  *,
  overwrite: bool = False,
  resume: bool = False,
  source: str | pathlib.Path | None = None,
) -> Iterator[Output]:
  """Claims an output, before anything is loaded.

  Args:
    name: a path, a URL of fsspec's, or None for standard output.
    overwrite: whether what it holds may be replaced.
    resume: whether what it holds may be added to.
    source: the prompt file, which must be another file.

  Yields:
    The output, as it was found.

  Raises:
    ValueError: if it is taken, is the prompt file, is no place for a file, may
      not be written or is being written.
  """
  if name is None:
    yield Stream(sys.stdout)
    return
  if urls.is_url(name):
    made = parts.Parts(os.fspath(name))
  else:
    check(name, source=source)
    made = local_file.File(name)
  with made as output:
    if resume and not output.keeps:
      raise ValueError(
        f"output {name} keeps nothing that a job could go on with; leave out"
        " --resume"
      )
    if output.holds_something() and not (overwrite or resume):
      raise ValueError(
        f"output {name} holds something already; give --resume to go on with"
        " it, --overwrite to replace it, or name another file"
      )
    yield output


@contextlib.contextmanager
def reading(name: str) -> Iterator[Output]:
  """An output that a job has left, to be read only.

  Args:
    name: a path or a URL.

  Raises:
    ValueError: there is none, or it is being written.
  """
  if not urls.is_url(name) and not pathlib.Path(name).is_file():
    raise ValueError(f"{name} is no file; name the output of a job")
  if urls.is_url(name):
    made = parts.Parts(name)
  else:
    made = local_file.File(name, read_only=True)
  with made as output:
    yield output


def check(
  path: str | pathlib.Path, *, source: str | pathlib.Path | None = None
) -> None:
  """Refuses a path that no job should write.

  Args:
    path: the output file to be.
    source: the prompt file, which must be another file.

  Raises:
    ValueError: if the path is the prompt file, is no place for a file or may
      not be written.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    raise ValueError(f"output {path} is a folder; name a file in it")
  if not path.parent.is_dir():
    raise ValueError(
      f"output {path}: there is no folder {path.parent}; make it"
    )
  source = None if source is None else urls.local_path(source)
  beside = path.with_name(path.name + lines.MANIFEST)
  for own in (path, beside):
    if source is not None and own.exists() and os.path.samefile(own, source):
      raise ValueError(
        f"output {path}: {own} is the prompt file; name another file"
      )
  if beside.is_dir():
    raise ValueError(
      f"output {path}: {beside} is a folder, and a job keeps its file there;"
      " remove it"
    )
  if not os.access(path if path.exists() else path.parent, os.W_OK):
    raise ValueError(f"output {path} may not be written; check its permissions")


class Nowhere:
  """Counts rows and writes none: another process does. See `Output`."""

  name = "nowhere"
  keeps = False

  def __init__(self):
    """Has counted none."""
    self.count = 0

  def __enter__(self) -> "Nowhere":
    return self

  def __exit__(self, *_) -> None:
    pass

  def holds_something(self) -> bool:
    """It keeps nothing."""
    return False

  def read(self) -> Iterator[tuple[str, bytes]]:
    """Nothing."""
    return iter(())

  def manifest(self) -> bytes | None:
    """None."""
    return None

  def begin(self, manifest: bytes) -> None:
    """Nothing to do."""

  def resume(self) -> None:
    """Nothing to do."""

  def write(self, row: Mapping[str, Any]) -> None:
    """Counts it."""
    self.count += 1

  def flush(self) -> None:
    """Nothing to do."""

  def pulse(self) -> None:
    """Nothing to do."""


class Stream(Nowhere):
  """A text stream that rows go to: it keeps nothing. See `Output`."""

  name = "standard output"

  def __init__(self, file: TextIO | None):
    """Writes to `file`.

    Raises:
      ValueError: there is none: it was closed before the start.
    """
    if file is None:
      raise ValueError(f"{self.name} is closed; give --output")
    super().__init__()
    self._file = file
    encoding = (getattr(file, "encoding", None) or "utf-8").lower()
    self._ascii = encoding not in ("utf-8", "utf8")

  def write(self, row: Mapping[str, Any]) -> None:
    """Writes a row and flushes it."""
    try:
      self._file.write(lines.encode(row, ascii=self._ascii).decode())
      self._file.flush()
    except BrokenPipeError:
      raise
    except OSError as error:
      why = (error.strerror or str(error)).lower()
      raise OSError(f"{self.name}: {why}; rows written: {self.count}") from None
    self.count += 1


def row_of(completion, line: int) -> dict[str, Any]:
  """The output row of a finished request (`engine.request.Completion`).

  Args:
    completion: the request's; its error may be that it never was one.
    line: the prompt's line in its file, which an error row carries.
  """
  row = {"id": completion.id}
  if completion.samples > 1:
    row["sample"] = completion.sample
  row |= {
    "text": completion.text,
    "token_ids": list(completion.token_ids),
    "finish_reason": completion.finish_reason,
    "prompt_tokens": completion.prompt_tokens,
    "steps": completion.steps,
    "drafted": completion.drafted,
    "accepted": completion.accepted,
  }
  if completion.logprobs is not None:
    row["logprobs"] = list(completion.logprobs)
  if completion.top_logprobs is not None:
    row["top_logprobs"] = list(completion.top_logprobs)
  if completion.error is not None:
    row |= {"error": completion.error, "line": line}
  return row
