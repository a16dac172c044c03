"""What a contestant gave for the prompts, and when: the raw material."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from specjax.engine.request import Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """One prompt's answer.

  Attributes:
    id: the request's.
    prompt_tokens: length of the prompt.
    token_ids: the answer, with the end token where there was one.
    times_s: seconds from the call to the arrival of each token; tokens of one
      step arrive at one time.
    steps: decoding steps; None where the contestant does not say.
    drafted_at, accepted_at: drafts judged and kept, by place in the proposal.
    first_drafted: whether the first step, which no rate counts, drafted.
  """

  id: str
  prompt_tokens: int
  token_ids: tuple[int, ...]
  times_s: tuple[float, ...]
  steps: int | None = None
  drafted_at: tuple[int, ...] = ()
  accepted_at: tuple[int, ...] = ()
  first_drafted: bool = False

  @property
  def after_first(self) -> int:
    """Tokens that came after the first step's."""
    return sum(time > self.times_s[0] for time in self.times_s)

  @property
  def decode_s(self) -> float:
    """Seconds from the first token to the last."""
    return self.times_s[-1] - self.times_s[0]

  @property
  def live_tokens(self) -> float:
    """Tokens in the cache at the middle of the answer."""
    return self.prompt_tokens + len(self.token_ids) / 2


class Contestant(Protocol):
  """Whoever answers prompts greedily, or samples them, and is timed.

  Attributes:
    name: unique among the contestants of a benchmark.
  """

  name: str

  def answer(self, requests: Sequence[Request]) -> list[Answer]:
    """Answers all requests, in their order.

    Raises:
      RuntimeError: if a request ends in an error.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
  """One contestant's answers to all prompts in one round.

  Attributes:
    answers: in the order of the prompts.
    together: whether they ran side by side in several slots. Then times count
      from one common start.
    compiles: programs compiled meanwhile.
  """

  answers: tuple[Answer, ...]
  together: bool = False
  compiles: int = 0

  @property
  def decode(self) -> tuple[int, float]:
    """Tokens after the first step, and the seconds they took.

    One prompt at a time: sums over the prompts, prompts' own time excluded.
    Together: from the first token of any row to the last of all, so prefill
    of later rows is within.
    """
    if not self.together:
      tokens = sum(answer.after_first for answer in self.answers)
      return tokens, sum(answer.decode_s for answer in self.answers)
    times = sorted(t for answer in self.answers for t in answer.times_s)
    return sum(time > times[0] for time in times), times[-1] - times[0]

  @property
  def whole(self) -> tuple[int, float]:
    """All tokens, and the seconds from the request to the last of them."""
    tokens = sum(len(answer.token_ids) for answer in self.answers)
    ends = [answer.times_s[-1] for answer in self.answers]
    return tokens, max(ends) if self.together else sum(ends)


def rate(tokens_and_seconds: tuple[int, float]) -> float | None:
  """Tokens a second; None where nothing was there to measure."""
  tokens, seconds = tokens_and_seconds
  return tokens / seconds if tokens and seconds > 0 else None
