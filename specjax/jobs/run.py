"""Runs a file of prompts through an engine, row by row, to an output file."""

import collections
import contextlib
import dataclasses
import heapq
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import tqdm

from specjax import metrics
from specjax.engine import request as request_lib
from specjax.jobs import output, prompts, requests, resume, stopping

# Errors that a result names; all are in the output.
ERRORS_KEPT = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """What a job did; nothing in it grows with the number of rows.

  Attributes:
    summary: the figures of the rows written.
    written: rows written, errors among them.
    before: rows that were there when it started.
    total: rows that there will be when all is done.
    failed: rows written as errors.
    errors: of the first of them by line, the line and the reason.
    interrupted: whether it ended early, because it was asked to.
  """

  summary: metrics.Summary
  written: int
  before: int
  total: int
  failed: int
  errors: Sequence[tuple[int, str]]
  interrupted: bool


def run(
  engine,
  rows: Sequence[prompts.Row | prompts.BadRow],
  *,
  encoder: requests.Encoder,
  defaults: requests.Defaults,
  out: output.Output,
  done: resume.Done = resume.NOTHING,
  stop: Callable[[], bool] = stopping.never,
  quiet: bool = False,
) -> Result:
  """Runs every row and writes each as it finishes, with a progress bar.

  Rows are encoded as slots fall free. A row that fails is written as an error
  row and the run goes on. Once asked to stop it ends after the step that is
  under way, keeping every row that finishes in it.

  Args:
    engine: an object with `run(requests)`, as `engine.loop.Engine`.
    rows: the prompt file, read.
    encoder: the target's tokenizer.
    defaults: settings of rows that do not bring their own.
    out: where rows go, begun or resumed.
    done: rows that are there already, and are not written again. Where some
      samples of a prompt are, all are drawn again: the same ones.
    stop: whether to end early.
    quiet: whether to show no progress bar.

  Returns:
    What was done, interrupted or not.

  Raises:
    OSError: if a row cannot be written.
  """
  return _Job(engine, rows, encoder, defaults, out, done, stop, quiet).run()


def total(
  rows: Sequence[prompts.Row | prompts.BadRow], defaults: requests.Defaults
) -> int:
  """How many answers the rows have, all samples counted."""
  return sum(samples(row, defaults) for row in rows)


def asked(
  rows: Sequence[prompts.Row | prompts.BadRow],
  defaults: requests.Defaults,
  done: resume.Done,
) -> resume.Done:
  """What is done, held against how many samples each prompt asks for.

  A prompt that was refused as a whole is done with all its samples.

  Raises:
    ValueError: a sample is there that no prompt asks for.
  """
  held: dict[int, set[int]] = {}
  for line, sample in done.keys:
    held.setdefault(line, set()).add(sample)
  keys = set()
  for row in rows:
    if row.line not in held:
      continue
    every = set(range(samples(row, defaults)))
    if wrong := held[row.line] - every:
      raise ValueError(
        f"the output holds sample {min(wrong)} of id {row.id!r}, which asks for"
        f" {len(every)}; remove that row, or give --overwrite to start anew"
      )
    here = every if row.line in done.refused else held[row.line]
    keys |= {(row.line, sample) for sample in here}
  return dataclasses.replace(done, keys=frozenset(keys))


def samples(
  row: prompts.Row | prompts.BadRow, defaults: requests.Defaults
) -> int:
  """How many answers a row asks for; 1 where it cannot be read."""
  unreadable = isinstance(row, prompts.BadRow)
  return 1 if unreadable else requests.samples(row, defaults)


class _Job:
  """One call of `run`."""

  def __init__(self, engine, rows, encoder, defaults, out, done, stop, quiet):
    self._engine, self._rows, self._encoder = engine, rows, encoder
    self._defaults, self._out, self._done = defaults, out, done
    self._stop, self._quiet = stop, quiet
    self._tally = metrics.Tally()
    self._lines: dict[str, int] = {}  # Of rows that run, by id.
    self._left: collections.Counter[str] = collections.Counter()  # samples
    self._errors: list[tuple[int, str]] = []
    self._failed = 0
    self._total = total(rows, defaults)
    self._early = False

  def run(self) -> Result:
    before = len(self._done.keys)
    with progress(self._total, before, self._quiet) as self._bar:
      start = time.perf_counter()
      events = self._engine.run(self._pending())
      with contextlib.closing(events):
        self._listen(events, start)
      wall_s = time.perf_counter() - start
    return Result(
      summary=self._tally.summary(wall_s),
      written=self._out.count,
      before=before,
      total=self._total,
      failed=self._failed,
      errors=self._errors,
      interrupted=self._early,
    )

  def _listen(self, events, start: float) -> None:
    tokens = 0
    heard: set[tuple[str, int]] = set()  # Rows that have spoken in this step.
    for event in events:
      self._out.pulse()
      if isinstance(event, request_lib.Completion):
        self._finish(event, self._line_of(event.id))
        continue
      # A row speaks once a step: whoever speaks again begins the next one.
      speaker = event.id, event.sample
      if speaker in heard:
        if self._stop():
          self._early = True
          return
        heard.clear()
      heard.add(speaker)
      tokens += len(event.token_ids)
      rate = tokens / (time.perf_counter() - start)
      self._bar.set_postfix_str(f"{rate:.1f} tok/s", refresh=False)

  def _pending(self) -> Iterator[request_lib.Request]:
    for row in self._rows:
      count = samples(row, self._defaults)
      keys = {(row.line, sample) for sample in range(count)}
      if keys <= self._done.keys:
        continue
      if self._stop():
        self._early = True
        return
      try:
        if isinstance(row, prompts.BadRow):
          raise ValueError(row.error)
        request = requests.build(row, self._defaults, self._encoder)
      except ValueError as error:
        refused = request_lib.Completion(
          id=row.id, finish_reason="error", error=str(error)
        )
        self._total -= count - 1  # One answer says it for all.
        self._bar.total = self._total
        self._finish(refused, row.line)
        continue
      self._lines[row.id] = row.line
      self._left[row.id] = count
      yield request

  def _line_of(self, id: str) -> int:
    """The line of a row of which a sample has finished."""
    line = self._lines[id]
    self._left[id] -= 1
    if not self._left[id]:
      del self._left[id], self._lines[id]
    return line

  def _finish(self, completion: request_lib.Completion, line: int) -> None:
    if (line, completion.sample) in self._done.keys:
      return
    self._out.write(output.row_of(completion, line))
    self._tally.add(completion)
    if completion.finish_reason == "error":
      self._failed += 1
      self._errors = heapq.nsmallest(
        ERRORS_KEPT,
        [*self._errors, (line, completion.error or "no reason given")],
      )
    self._bar.update()


def progress(total: int, done: int, quiet: bool) -> tqdm.tqdm:
  """A bar of rows on stderr.

  Args:
    total: rows there will be. done: rows there are.
    quiet: shows nothing.
  """
  # Into a log file a line every ten seconds is plenty.
  every = 0.2 if sys.stderr.isatty() else 10.0
  return tqdm.tqdm(
    total=total,
    initial=done,
    unit="row",
    mininterval=every,
    file=sys.stderr,
    disable=quiet,
  )
