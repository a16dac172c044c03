"""Output files: a JSON object a row, each on disk as soon as it is finished."""

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO


def check(
  path: str | pathlib.Path,
  *,
  overwrite: bool,
  source: str | pathlib.Path | None = None,
) -> None:
  """Refuses a path that a job should not write, before anything is loaded.

  Args:
    path: the output file to be.
    overwrite: whether a file that holds something may be replaced.
    source: the prompt file, which must be another file.

  Raises:
    ValueError: if the path is taken, is the prompt file, is no place for a
      file or may not be written.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    raise ValueError(f"output {path} is a folder; name a file in it")
  if not path.parent.is_dir():
    raise ValueError(
      f"output {path}: there is no folder {path.parent}; make it"
    )
  if path.exists():
    if source is not None and os.path.samefile(path, source):
      raise ValueError(f"output {path} is the prompt file; name another file")
    if path.stat().st_size and not overwrite:
      raise ValueError(
        f"output {path} holds something already; name another file or give"
        " --overwrite"
      )
  if not os.access(path if path.exists() else path.parent, os.W_OK):
    raise ValueError(f"output {path} may not be written; check its permissions")


@contextlib.contextmanager
def open_rows(path: str | pathlib.Path | None) -> Iterator["Rows"]:
  """Opens an output file, emptying it; None stands for standard output."""
  if path is None:
    yield Rows(sys.stdout)
    return
  with open(path, "w", encoding="utf-8") as file:
    yield Rows(file)


class Rows:
  """Writes rows to a file, flushed one by one.

  Attributes:
    count: rows written so far.
  """

  def __init__(self, file: TextIO):
    """Writes to `file`, a text file open for writing in UTF-8."""
    self.count = 0
    self._file = file

  def write(self, row: Mapping[str, Any]) -> None:
    """Appends one row and flushes it.

    Raises:
      OSError: if the file cannot be written, a full disk for example.
    """
    self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
    self._file.flush()
    self.count += 1


def row_of(completion, line: int) -> dict[str, Any]:
  """The output row of a finished request (`engine.request.Completion`).

  Args:
    completion: the request's; its error may be that it never was one.
    line: the prompt's line in its file, which an error row carries.
  """
  row = {
    "id": completion.id,
    "text": completion.text,
    "token_ids": list(completion.token_ids),
    "finish_reason": completion.finish_reason,
    "prompt_tokens": completion.prompt_tokens,
    "steps": completion.steps,
    "drafted": completion.drafted,
    "accepted": completion.accepted,
  }
  if completion.error is not None:
    row |= {"error": completion.error, "line": line}
  return row
