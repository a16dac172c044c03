"""--profile_dir: a trace of some steps, for xprof or Perfetto.

In it draft, verify and commit are named scopes: the step's operations carry
their names, on a CPU as on a TPU.
"""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from specjax.cli import command

# Enough to see what a step spends, few enough to open: a TPU's trace of a
# model with 80 layers has thousands of events a step.
STEPS = 20


def check(folder: str) -> None:
  """Refuses a folder that cannot be written, before a model is loaded.

  Raises:
    UsageError: naming the flag, its value and the remedy.
  """
  if not folder.strip():
    raise command.UsageError(
      f"--profile_dir={folder} is empty; name a folder for the trace"
    )
  if "://" in folder:
    raise command.UsageError(
      f"--profile_dir={folder} is a URL; traces go to a local folder: name one"
      " and copy it afterwards"
    )
  try:
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except (OSError, ValueError) as error:
    why = getattr(error, "strerror", None) or str(error)
    raise command.UsageError(
      f"--profile_dir={folder} cannot be written ({why.lower()}); name another"
      " folder"
    ) from None


class Profiled:
  """An engine whose first steps of a run are traced, a prompt included.

  Compile it first: what compiles inside a trace drowns the rest.
  """

  def __init__(
    self, engine, folder: str, report: Callable[[str], None], steps: int = STEPS
  ):
    """Wraps an engine.

    Args:
      engine: an object with `run(requests)`, as `engine.loop.Engine`.
      folder: where the trace goes; see `check`.
      report: is told where the trace lies.
      steps: how many are traced, fewer if the run ends before.
    """
    self._engine, self._folder = engine, folder
    self._report, self._steps = report, steps

  def run(self, requests: Iterable) -> Iterator:
    """Runs requests as the engine does; traces the first steps.

    Raises:
      OSError: the trace cannot be written.
      Others as the engine.
    """
    import jax

    with contextlib.closing(self._engine.run(requests)) as events:
      if jax.process_index():  # One process writes; all run the same steps.
        yield from events
        return
      with self._trace() as stop:
        for step, event in _numbered(events):
          if step == self._steps:
            stop()
          yield event

  @contextlib.contextmanager
  def _trace(self) -> Iterator[Callable[[], None]]:
    """Traces until what it gives is called, or until its block ends."""
    import jax

    def stop():
      try:
        jax.profiler.stop_trace()
      except Exception as error:  # Of C++, whose kinds are many.
        raise OSError(
          f"--profile_dir={self._folder}: the trace cannot be written: {error}"
        ) from None
      self._report(f"trace written to {self._folder}")

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's calls would hide the steps.
    folder = os.path.abspath(self._folder)
    jax.profiler.start_trace(folder, profiler_options=options)
    with contextlib.ExitStack() as stack:
      stack.callback(stop)
      yield stack.close  # Once; the block's end then finds nothing to stop.


def _numbered(events: Iterable) -> Iterator[tuple[int, Any]]:
  """Events with the number of steps that had ended before theirs."""
  from specjax.engine import request

  heard: set[tuple[str, int]] = set()
  done = 0
  for event in events:
    if not isinstance(event, request.Completion):
      # A row speaks once a step: whoever speaks again begins the next one.
      speaker = event.id, event.sample
      if speaker in heard:
        done += 1
        heard.clear()
      heard.add(speaker)
    yield done, event
