"""Training data from the target itself: it answers prompts, rows are kept.

A draft is accepted where it says what the target says, so it learns best from
what the target says, at the temperatures at which it will be used (DistillSpec:
Zhou et al. 2024). Every prompt is answered at every temperature; a row depends
on its prompt, its temperature, its sample and the engine's seed alone.
"""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from specjax import metrics
from specjax.engine import request as request_lib
from specjax.jobs import prompts, requests
from specjax.jobs.run import progress
from specjax.proposers import recorder
from specjax.training import shard_writer, shards


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
  """Which answers are wanted.

  Attributes:
    temperatures: each prompt is answered at each; a row that brings its own is
      answered at that alone.
    samples: at each temperature above 0 (at 0 all are the same); a row's own n
      wins.
    max_new_tokens: the longest answer.
    chat: whether prompts go through the chat template.
    lookahead: the engine's.
  """

  temperatures: tuple[float, ...] = (0.0, 1.0)
  samples: int = 1
  max_new_tokens: int = 256
  chat: bool = False
  lookahead: int = 0

  def of(self, row: prompts.Row) -> list[tuple[float, int]]:
    """(temperature, samples) of each request of a row."""
    own = row.settings.get("temperature")
    temperatures = self.temperatures if own is None else (float(own),)
    many = row.settings.get("n", self.samples)
    if not 1 <= many <= request_lib.MAX_SAMPLES:
      many = 1  # One error says it for all.
    return [(t, many if t > 0 else 1) for t in temperatures]

  def request(
    self, row: prompts.Row, temperature: float, encoder: requests.Encoder
  ) -> request_lib.Request:
    """The request of a row at a temperature.

    Raises:
      ValueError: a setting of the row is out of its range, or does nothing.
    """
    if "logprobs" in row.settings:
      raise ValueError("logprobs does nothing for training data; leave it out")
    settings = dict(row.settings)
    many = settings.pop("n", self.samples) if temperature > 0 else 1
    if temperature == 0 and len(self.temperatures) > 1:
      # They shape the answers at the other temperatures.
      for name in requests.RANDOM:
        settings.pop(name, None)
    return requests.build(
      dataclasses.replace(
        row, id=f"{row.id}@{temperature:g}", settings=settings
      ),
      requests.Defaults(
        chat=self.chat,
        lookahead=self.lookahead,
        settings={"max_new_tokens": self.max_new_tokens}
        | {"temperature": temperature, "n": many},
      ),
      encoder,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """What a run has done.

  Attributes:
    summary: of this run.
    rows: rows in the folder, and tokens and answer_tokens in them.
    wanted: rows there will be in the end, without those that cannot run.
    failed: (row, why) of answers that could not be had.
    interrupted: whether `stop` ended it.
  """

  summary: metrics.Summary
  rows: int
  tokens: int
  answer_tokens: int
  wanted: int
  failed: tuple[tuple[str, str], ...]
  interrupted: bool


class Hidden:
  """Reads what a `Recorder` holds of the row that leaves the engine."""

  def __init__(self, loop: Any):
    """Compiles at the first call.

    Args:
      loop: an `engine.loop.Engine` whose proposer is a `Recorder`.
    """
    self._loop = loop
    self._kept = jax.jit(recorder.kept)

  def __call__(self, count: int) -> np.ndarray:
    """States bfloat16 [T, n, D] after each of the row's `count` tokens.

    To be called while the row's completion is being yielded. The last token's
    are zeros; see `training.shards`.
    """
    state, slot = self._loop.state, np.int32(self._loop.leaving)
    written, length, last = jax.device_get(
      self._kept(state.draft, state.committed.features, slot)
    )
    if written.dtype == np.uint16:
      written = written.view(ml_dtypes.bfloat16)
    made = np.zeros((count, *written.shape[::2]), ml_dtypes.bfloat16)
    # Position i holds what predicted token i: the state after token i - 1.
    some = min(int(length), count)
    made[: some - 1] = written[:, 1:some].swapaxes(0, 1)
    if some < count:  # The last block waits for the next step to be written.
      made[some - 1 : count - 1] = last[: count - some]
    return made


def run(
  engine: Any,
  rows: Sequence[prompts.Row],
  answers: Answers,
  *,
  encoder: requests.Encoder,
  writer: shard_writer.Writer,
  hidden: Callable[[int], np.ndarray] | None = None,
  stop: Callable[[], bool],
  quiet: bool = False,
) -> Result:
  """Answers what is not answered yet, and writes rows as they finish.

  Args:
    engine: runs requests.
    rows: the prompts, ids all different.
    answers: which answers are wanted.
    encoder: the target's tokenizer.
    writer: claimed; rows that it holds are not made again.
    hidden: gives the states of the row that has just finished, or None.
    stop: whether to end.
    quiet: without a progress bar.
  """
  return _Run(engine, rows, answers, encoder, writer, hidden, stop).run(quiet)


class _Run:
  """One call of `run`."""

  def __init__(self, engine, rows, answers, encoder, writer, hidden, stop):
    self._engine, self._rows, self._answers = engine, rows, answers
    self._encoder, self._writer, self._hidden = encoder, writer, hidden
    self._stop = stop
    self._tally = metrics.Tally()
    self._waiting: dict[str, request_lib.Request] = {}
    self._left: collections.Counter[str] = collections.Counter()  # samples
    self._failed: list[tuple[str, str]] = []
    self._wanted = sum(many for row in rows for _, many in answers.of(row))
    # Whoever was ended before may lack prompts, and so must not be complete.
    self._early = stop()

  def run(self, quiet: bool) -> Result:
    with progress(self._wanted, len(self._writer.ids), quiet) as self._bar:
      start, tokens = time.perf_counter(), 0
      events = self._engine.run(self._pending())
      with contextlib.closing(events):
        for event in events:
          self._writer.pulse()
          if isinstance(event, request_lib.Completion):
            self._finish(event)
          else:
            tokens += len(event.token_ids)
            rate = tokens / (time.perf_counter() - start)
            self._bar.set_postfix_str(f"{rate:.1f} tok/s", refresh=False)
          if self._stop():
            self._early = True
            break
      wall_s = time.perf_counter() - start
    return Result(
      summary=self._tally.summary(wall_s),
      rows=len(self._writer.ids),
      tokens=self._writer.tokens,
      answer_tokens=self._writer.answer_tokens,
      wanted=self._wanted,
      failed=tuple(self._failed),
      interrupted=self._early,
    )

  def _pending(self) -> Iterator[request_lib.Request]:
    for row in self._rows:
      for temperature, many in self._answers.of(row):
        name = f"{row.id}@{temperature:g}"
        ids = {_id(name, sample, many) for sample in range(many)}
        if ids <= self._writer.ids:
          continue
        if self._stop():
          self._early = True
          return
        try:
          request = self._answers.request(row, temperature, self._encoder)
        except ValueError as error:
          self._fail(name, str(error), many)
          continue
        self._waiting[name], self._left[name] = request, many
        yield request

  def _finish(self, done: request_lib.Completion) -> None:
    request = self._waiting[done.id]
    self._left[done.id] -= 1
    if not self._left[done.id]:
      del self._waiting[done.id], self._left[done.id]
    id = _id(done.id, done.sample, done.samples)
    if id in self._writer.ids:
      return  # Another sample of its prompt was missing.
    self._tally.add(done)
    if done.error is not None or not done.token_ids:
      self._fail(id, done.error or "an empty answer", 1)
      return
    tokens = np.asarray(request.prompt + done.token_ids, np.int32)
    self._writer.append(
      shards.Row(
        id=id,
        tokens=tokens,
        answer=len(request.prompt),
        temperature=request.sampling.temperature,
        hidden=None if self._hidden is None else self._hidden(len(tokens)),
      )
    )
    self._bar.update()

  def _fail(self, name: str, why: str, many: int) -> None:
    self._failed.append((name, why))
    self._wanted -= many
    self._bar.total = self._wanted


def _id(name: str, sample: int, many: int) -> str:
  return name if many == 1 else f"{name}#{sample}"
