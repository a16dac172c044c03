"""What every command shares: errors are one line, exit codes mean something.

0 done · 1 failed while running · 2 the command line is wrong · 130 interrupted
· 141 the reader of standard output has gone · 143 terminated.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from specjax.cli import streams
from specjax.jobs import stopping
from specjax.sharding import hosts


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
  with streams.settled():
    try:
      with stopping.prompt(program):
        return body(list(sys.argv if argv is None else argv))
    except UsageError as error:
      return fail(program, error, code=2)
    except KeyboardInterrupt:
      print(f"\n{program}: interrupted", file=sys.stderr)
      return 130
    except stopping.Terminated:
      print(f"\n{program}: terminated", file=sys.stderr)
      return 143
    except BrokenPipeError:
      return 141  # … | head: as SIGPIPE would end it, which Python ignores.
    except (ValueError, OSError, RuntimeError, ImportError) as error:
      return fail(program, error, code=1)


def leave(code: int) -> NoReturn:
  """Ends the process, for console scripts.

  After a signal at once: XLA may be compiling in threads of its own, which
  Python's way out would wait for, and which crash it. One of many processes
  too, where it has failed: jax would wait for the others on its way out.
  """
  group = hosts.current()
  stuck = group.is_many and not group.is_over
  if stuck or code in stopping.EXIT_CODES.values():
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError, AttributeError):
        stream.flush()
    os._exit(code)
  sys.exit(code)


def fail(program: str, error: object, *, code: int) -> int:
  """Prints an error as one line on stderr; gives back the exit code."""
  message = " ".join(str(error).split()) or type(error).__name__
  print(f"{program}: error: {message}", file=sys.stderr)
  return code
