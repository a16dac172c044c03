"""Runs a file of prompts through an engine, row by row, to an output file."""

import contextlib
import dataclasses
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import tqdm

from specjax.engine import request as request_lib
from specjax.jobs import output, prompts, requests


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """What a job did.

  Attributes:
    completions: one for each row written. Rows that could not become a
      request are among them, with their error.
    total: rows of the prompt file.
    errors: of each row written as an error, its line and the reason.
    wall_s: seconds from the first request to the last row.
    interrupted: whether it was asked to end early.
  """

  completions: Sequence[request_lib.Completion]
  total: int
  errors: Sequence[tuple[int, str]]
  wall_s: float
  interrupted: bool

  @property
  def failed(self) -> int:
    """Rows written as errors."""
    return len(self.errors)


def run(
  engine,
  rows: Sequence[prompts.Row | prompts.BadRow],
  *,
  encoder: requests.Encoder,
  defaults: requests.Defaults,
  out: output.Rows,
) -> Result:
  """Runs every row and writes each as it finishes, with a progress bar.

  Rows are encoded as slots fall free. A row that fails is written as an error
  row and the run goes on. The first SIGINT ends the run after the step that is
  under way, keeping every row that finishes in it; a second one ends it on the
  spot.

  Args:
    engine: an object with `run(requests)`, as `engine.loop.Engine`.
    rows: the prompt file, read.
    encoder: the target's tokenizer.
    defaults: settings of rows that do not bring their own.
    out: where rows go.

  Returns:
    What was done: a completion for each row written, interrupted or not.

  Raises:
    OSError: if a row cannot be written.
  """
  lines: dict[str, int] = {}
  completions: list[request_lib.Completion] = []
  errors: list[tuple[int, str]] = []
  with _progress(len(rows)) as bar, _interruptible() as interrupted:

    def finish(completion: request_lib.Completion, line: int) -> None:
      out.write(output.row_of(completion, line))
      completions.append(completion)
      if completion.finish_reason == "error":
        errors.append((line, completion.error or "no reason given"))
      bar.update()

    def pending() -> Iterator[request_lib.Request]:
      for row in rows:
        if interrupted():
          return
        try:
          if isinstance(row, prompts.BadRow):
            raise ValueError(row.error)
          request = requests.build(row, defaults, encoder)
        except ValueError as error:
          refused = request_lib.Completion(
            id=row.id, finish_reason="error", error=str(error)
          )
          finish(refused, row.line)
          continue
        lines[row.id] = row.line
        yield request

    tokens = 0
    heard: set[str] = set()  # Rows that have spoken in this step.
    start = time.perf_counter()
    events = engine.run(pending())
    with contextlib.closing(events):
      for event in events:
        if isinstance(event, request_lib.Completion):
          finish(event, lines.pop(event.id))
          continue
        # A row speaks once a step: whoever speaks again begins the next one.
        if event.id in heard:
          if interrupted():
            break
          heard.clear()
        heard.add(event.id)
        tokens += len(event.token_ids)
        rate = tokens / (time.perf_counter() - start)
        bar.set_postfix_str(f"{rate:.1f} tok/s", refresh=False)
    wall_s = time.perf_counter() - start
  return Result(
    completions=completions,
    total=len(rows),
    errors=sorted(errors),
    wall_s=wall_s,
    interrupted=interrupted(),
  )


def _progress(total: int) -> tqdm.tqdm:
  # Into a log file a line every ten seconds is plenty.
  every = 0.2 if sys.stderr.isatty() else 10.0
  return tqdm.tqdm(
    total=total, unit="row", mininterval=every, file=sys.stderr, leave=True
  )


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
  """Turns the first SIGINT into a flag; gives the function that reads it."""
  seen = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield seen.is_set  # Only the main thread may set handlers.
    return

  def note(signum, frame):
    del signum, frame
    if seen.is_set():
      raise KeyboardInterrupt
    seen.set()
    print(
      "\nending after this step; interrupt again to end on the spot",
      file=sys.stderr,
    )

  before = signal.signal(signal.SIGINT, note)
  try:
    yield seen.is_set
  finally:
    signal.signal(signal.SIGINT, before)
