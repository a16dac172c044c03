"""What every command shares: errors are one line, exit codes mean something.

0 done · 1 failed while running · 2 the command line is wrong · 130 interrupted.
"""

import os
import sys
from collections.abc import Callable, Sequence


class UsageError(ValueError):
  """The command line asks for something that cannot be, or does nothing."""


def run(
  program: str,
  body: Callable[[Sequence[str]], int],
  argv: Sequence[str] | None = None,
) -> int:
  """Runs a command's body and turns its errors into a line and an exit code.

  Args:
    program: the command's name, which begins the line.
    body: gets the whole command line, program name first; gives the exit code.
    argv: that command line; sys.argv if None.

  Returns:
    The exit code. Errors that nobody foresaw pass through, with a traceback.
  """
  try:
    return body(list(sys.argv if argv is None else argv))
  except UsageError as error:
    return fail(program, error, code=2)
  except KeyboardInterrupt:
    print(f"\n{program}: interrupted", file=sys.stderr)
    return 130
  except BrokenPipeError:
    # The reader has gone (… | head). Python flushes stdout once more at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except (ValueError, OSError, RuntimeError, ImportError) as error:
    return fail(program, error, code=1)


def fail(program: str, error: object, *, code: int) -> int:
  """Prints an error as one line on stderr; gives back the exit code."""
  message = " ".join(str(error).split()) or type(error).__name__
  print(f"{program}: error: {message}", file=sys.stderr)
  return code
