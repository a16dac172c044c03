"""A command that runs in many processes: joining, speaking, ending."""

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any

from specjax.cli import command
from specjax.cli import settings as settings_lib
from specjax.jobs import stopping, urls
from specjax.sharding import hosts

# Settings that may differ from process to process.
_OWN = {
  "process_id",
  "coordinator_address",
  "compilation_cache",
  "profile_dir",
  "model",
  "draft_model",
  "max_memory",
  # By what is in it; and only process 0 writes.
  "prompts",
  "output",
}


@contextlib.contextmanager
def joined(
  settings: settings_lib.Settings, program: str
) -> Iterator[hosts.Group]:
  """Joins the processes that the settings or a TPU pod make this one part of.

  Where the body ends by an error or a signal the others are told, and end too.

  Raises:
    UsageError: what the process is told of the others is not complete.
  """
  try:
    told = hosts.given(
      settings.coordinator_address, settings.num_processes, settings.process_id
    )
  except ValueError as error:
    raise command.UsageError(str(error)) from None
  group = hosts.initialize(told, program=program)
  if not group.is_many:
    yield group
    return
  hosts.own_stdout()

  def farewell(code: int) -> None:
    group.watch.fail(f"was {stopping.NAMES_OF_CODES[code]}", code)

  with stopping.farewell(farewell):
    try:
      yield group
    except BaseException as error:
      group.fail(*_why(error))
      raise


def agree(given: settings_lib.Given, digest: str | None) -> None:
  """Holds what a process was started with against process 0's.

  Args:
    given: the settings.
    digest: of the prompt file, where there is one.

  Raises:
    ValueError: they differ; names where.
  """
  values: dict[str, Any] = {
    f"--{name}": value
    for name, value in vars(given.settings).items()
    if name not in _OWN
  }
  values["digest of --prompts"] = digest
  group = hosts.current()
  group.agree(values, "start all with the same settings and prompts")
  if given.settings.output is not None:
    group.advice = "--resume goes on"


def check_prompts(path: str, named: str) -> None:
  """Refuses prompts that only one process can read.

  Args:
    path: of the prompt file.
    named: how it was given.

  Raises:
    ValueError: it is no file or URL.
  """
  if not hosts.current().is_many or urls.is_url(path):
    return
  with contextlib.suppress(FileNotFoundError):
    if not stat.S_ISREG(os.stat(path).st_mode):
      raise ValueError(
        f"{named} is no file, and every process must read it; write the"
        " prompts into a file that all processes see, or to gs://"
      )


def report(text: str) -> None:
  """Tells on standard error, in process 0 alone."""
  if hosts.current().is_first:
    print(text, file=sys.stderr, flush=True)


def mesh(asked: str | None) -> str | None:
  """The mesh: what is asked for, or of many processes one over all devices."""
  if asked is None and hosts.current().is_many:
    import jax

    return f"model:{jax.device_count()}"
  return asked


def stop_of(asked: stopping.Stop) -> Callable[[], bool] | Any:
  """A stop that all processes make after the same step.

  Args:
    asked: this process's own.
  """
  group = hosts.current()
  if not group.is_many:
    return asked
  return group.stop(lambda: asked.signal, report)


def _why(error: BaseException) -> tuple[str, int]:
  """What the others are told of an error, and their exit code."""
  match error:
    case KeyboardInterrupt():
      return "was interrupted", 130
    case stopping.Terminated():
      return "was terminated", 143
    case BrokenPipeError():
      return "has ended: the reader of its standard output has gone", 141
    case command.UsageError():
      return f"has ended: {error}", 2
  return f"has ended: {str(error) or type(error).__name__}", 1
