"""Rounds: every contestant answers every prompt, in an order that rotates."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence

import tqdm

from specjax.benchmark import compiles
from specjax.benchmark.answers import Contestant, Sample
from specjax.engine.request import Request

# Thread pools of others spin a while after their last task.
_REST_S = 0.2
_WARMUP_TOKENS = 8


def warm_up(
  contestants: Sequence[Contestant], requests: Sequence[Request]
) -> None:
  """Lets everyone answer the longest prompt, shortly and untimed."""
  longest = max(requests, key=lambda request: len(request.prompt))
  short = min(longest.max_new_tokens, _WARMUP_TOKENS)
  request = dataclasses.replace(longest, max_new_tokens=short)
  for contestant in contestants:
    contestant.answer([request])


def run(
  contestants: Sequence[Contestant],
  requests: Sequence[Request],
  rounds: int,
  *,
  together: bool = False,
  after: Callable[[dict[str, list[Sample]]], None] = lambda samples: None,
  between: Callable[[], None] = lambda: None,
  rest_s: float = _REST_S,
  quiet: bool = False,
) -> dict[str, list[Sample]]:
  """Runs the rounds, with a progress bar.

  Args:
    contestants: warmed up; in round r, the one at place r begins.
    requests: the prompts.
    rounds: how often everyone answers everything.
    together: all prompts in one call, side by side in the slots, instead of
      one after the other.
    after: is given all samples so far when a contestant has finished.
    between: is called after every round, untimed.
    rest_s: seconds of rest before each contestant.
    quiet: whether to leave the bar out.

  Returns:
    Of each contestant by name, a sample a round. The lists grow in place, so
    `after` has seen what an interrupted run leaves.

  Raises:
    RuntimeError: if a request ends in an error.
  """
  samples: dict[str, list[Sample]] = {c.name: [] for c in contestants}
  groups = [list(requests)] if together else [[r] for r in requests]
  with _bar(rounds * len(contestants) * len(groups), quiet) as bar:
    for number in range(rounds):
      start = number % len(contestants)
      for contestant in [*contestants[start:], *contestants[:start]]:
        bar.set_postfix_str(f"round {number + 1}, {contestant.name}")
        time.sleep(rest_s)
        answers = []
        with compiles.counted() as compiled:
          for group in groups:
            answers += contestant.answer(group)
            bar.update()
        samples[contestant.name].append(
          Sample(
            answers=tuple(answers), together=together, compiles=len(compiled)
          )
        )
        after(samples)
      between()
  return samples


def _bar(total: int, quiet: bool) -> contextlib.AbstractContextManager:
  # Into a log file a line every ten seconds is plenty.
  every = 0.2 if sys.stderr.isatty() else 10.0
  return tqdm.tqdm(
    total=total,
    unit="prompt",
    mininterval=every,
    file=sys.stderr,
    disable=quiet,
  )
