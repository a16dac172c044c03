"""Tokens a second of all rows together against their number."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from specjax.benchmark import plan as plan_lib
from specjax.benchmark import record, rounds, runs, sweep
from specjax.benchmark.answers import Answer, Sample, rate
from specjax.engine.request import Request

BATCHES = (1, 2, 4, 8, 16, 32)


def measure(
  plan: plan_lib.Plan,
  rows: Sequence[Any],
  *,
  write: Callable[[dict[str, Any]], None],
  say: Callable[[str], None],
  batches: Sequence[int] = BATCHES,
) -> dict[str, Any]:
  """Runs as many prompts as slots, plainly and with ngram, in turns.

  Counted are the tokens that arrive while every slot is decoding: after the
  last row's first token, until the first row's last.

  Args:
    plan: what is asked for; its slots are not used.
    rows: the prompt file's; taken over and over to fill the slots.
    write: is given the record after each batch size.
    say: is given a line on what is going on.
    batches: the sizes.

  Raises:
    As `measure.measure`.
  """
  target, _ = runs.load(plan.model, dtype=plan.dtype)
  built = plan_lib.build(plan, rows, target.tokenizer)
  (lookahead,) = plan.lookahead
  points: list[dict[str, Any]] = []
  what = "tokens a second while all slots decode"
  made = sweep.record(plan, "batch", points, what)
  for size in batches:
    say(f"compiling {size} slots …")
    requests = [
      dataclasses.replace(built[index % len(built)], id=str(index))
      for index in range(size)
    ]
    run = runs.make(
      target,
      "ngram",
      lookahead,
      ngram_min=plan.ngram_min,
      ngram_max=plan.ngram_max,
      check=functools.partial(plan_lib.check_room, requests),
      **plan.engine_options() | {"slots": size},
    )
    # With a lookahead of 0 an engine runs its plain program.
    both = (_At(runs.PLAIN, run, 0), _At("ngram", run, lookahead))
    rounds.warm_up(both, requests)
    samples = rounds.run(both, requests, plan.rounds, together=True)
    points += [_point(size, at.name, samples[at.name]) for at in both]
    write(made)
  return made | {"complete": True}


def full_batch(sample: Sample) -> tuple[int, float]:
  """Tokens, and seconds, from the last row's start to the first row's end."""
  start = max(answer.times_s[0] for answer in sample.answers)
  end = min(answer.times_s[-1] for answer in sample.answers)
  times = (time for answer in sample.answers for time in answer.times_s)
  return sum(start < time <= end for time in times), end - start


@dataclasses.dataclass(frozen=True)
class _At:
  """A run whose rows all have one lookahead; an `answers.Contestant`."""

  name: str
  run: runs.Run
  lookahead: int

  def answer(self, requests: Sequence[Request]) -> list[Answer]:
    return self.run.answer(
      [dataclasses.replace(r, lookahead=self.lookahead) for r in requests]
    )


def _point(size: int, name: str, samples: Sequence[Sample]) -> dict[str, Any]:
  full = [found for found in map(rate, map(full_batch, samples)) if found]
  return {
    "batch": size,
    "run": name,
    "tokens_per_s": record.spread(full),
    "tokens_per_s_with_prompt": record.spread(
      [found for found in (rate(s.whole) for s in samples) if found]
    ),
    "compiles_after_warmup": sum(sample.compiles for sample in samples),
  }
