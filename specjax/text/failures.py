"""Failures of the `tokenizers` package, made into errors of one line."""

import contextlib
from collections.abc import Iterator


def line(error: BaseException) -> str:
  """An error's message on one line, or its type where it says nothing."""
  return " ".join(str(error).split()) or type(error).__name__


@contextlib.contextmanager
def guarded(what: str) -> Iterator[None]:
  """Turns whatever fails inside into a ValueError that begins with `what`.

  `tokenizers` raises bare Exception; where its code panics, as on an index
  out of range in a broken file, not even that, but a BaseException.
  """
  try:
    yield
  except (KeyboardInterrupt, SystemExit, GeneratorExit):
    raise
  except BaseException as error:
    raise ValueError(f"{what}: {line(error)}") from None


def check_characters(text: str, what: str) -> None:
  """Refuses a text that has no bytes: JSON and Python allow such.

  Args:
    text: the text.
    what: what the error begins with.

  Raises:
    ValueError: a part of it is half a surrogate pair.
  """
  try:
    text.encode()
  except UnicodeEncodeError as error:
    raise ValueError(
      f"{what}: the text cannot be encoded: at {error.start} it has "
      f"{text[error.start]!r}, half a surrogate pair, which is no character"
    ) from None
