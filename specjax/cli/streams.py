"""Standard streams that may be closed, full, gone, or not UTF-8."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def settled() -> Iterator[None]:
  """Makes the standard streams safe to use.

  What is told on standard error must never end the work: where it cannot be
  written it is dropped. What is left of standard output when the body ends is
  dropped too if it cannot be written, as Python would complain of it once more;
  see `say`. Characters that a stream's encoding lacks are escaped.
  """
  _fill_gaps()
  if sys.stderr is None:
    sys.stderr = open(os.devnull, "w", encoding="utf-8")
  for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(errors="backslashreplace")
  before, sys.stderr = sys.stderr, _Forgiving(sys.stderr)
  try:
    yield
  finally:
    sys.stderr = before
    if sys.stdout is not None:
      try:
        sys.stdout.flush()
      except OSError:
        _to_nothing(sys.stdout)


def say(text: str, end: str = "\n") -> None:
  """Prints on standard output, flushed.

  Raises:
    BrokenPipeError: its reader has gone.
    OSError: it cannot be written; says so in words.
  """
  if sys.stdout is None:
    raise OSError("standard output: it is closed")
  try:
    print(text, end=end, flush=True)
  except BrokenPipeError:
    raise
  except OSError as error:
    why = (error.strerror or str(error)).lower()
    raise OSError(f"standard output: {why}") from None


def _fill_gaps() -> None:
  """Opens what is closed of 0, 1, 2: the next file would get that number."""
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:
      # The lowest free number, which is this one.
      os.open(os.devnull, os.O_RDWR)


def _to_nothing(stream: Any) -> None:
  with contextlib.suppress(OSError, ValueError):  # It may have no number.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
    stream.flush()


class _Forgiving:
  """A text stream that drops what it cannot write."""

  def __init__(self, stream: Any):
    self._stream = stream

  def write(self, text: str) -> int:
    try:
      return self._stream.write(text)
    except (OSError, ValueError):
      _to_nothing(self._stream)
      return len(text)

  def flush(self) -> None:
    try:
      self._stream.flush()
    except (OSError, ValueError):
      _to_nothing(self._stream)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)
