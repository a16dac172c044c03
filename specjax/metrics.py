"""What a run of requests cost: speed, acceptance, waiting times.

Everything is computed from finished completions (`specjax.engine.request`,
by duck typing), so a summary of a saved run equals that of a live one. A Tally
takes them one by one and keeps none, so that a run may be of any length.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

# Times kept for percentiles: half a megabyte.
SAMPLE = 2**16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Percentiles:
  """The 50th, 90th and 99th percentile of a set of times, in seconds."""

  p50: float
  p90: float
  p99: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
  """The figures of one run; None where nothing was there to measure.

  Attributes:
    requests: completions summarised, failed ones included.
    errors: those that ended in an error. They count nowhere below but in
      ended_by.
    ended_by: how many ended by each reason.
    prompt_tokens: tokens of the prompts.
    tokens: tokens emitted.
    wall_s: seconds from the first request to the last completion.
    tokens_per_s: tokens over wall_s, all rows together.
    steps: propose–verify steps, summed over the rows.
    tokens_per_step: tokens over steps: 1 for plain decoding, at most C + 1.
    drafted: drafted tokens the target has judged.
    accepted: drafted tokens it accepted.
    drafted_per_position, accepted_per_position: the same by draft position. A
      position counts as drafted even where an earlier one was rejected. Empty
      where no row had a proposer.
    ttft_s: time from a request's start to its first token.
    inter_token_s: times between consecutive tokens of a row as they arrive.
      The tokens of one step arrive together, so most gaps of a good
      speculative run are 0 and the upper percentiles are its steps.
    per_token_s: mean over rows of the time per token after the first.
  """

  requests: int
  errors: int
  ended_by: Mapping[str, int]
  prompt_tokens: int
  tokens: int
  wall_s: float
  tokens_per_s: float | None
  steps: int
  tokens_per_step: float | None
  drafted: int
  accepted: int
  drafted_per_position: tuple[int, ...]
  accepted_per_position: tuple[int, ...]
  ttft_s: Percentiles | None
  inter_token_s: Percentiles | None
  per_token_s: float | None

  @property
  def acceptance(self) -> tuple[float | None, ...]:
    """By draft position, the share accepted of those drafted there."""
    return tuple(
      map(_ratio, self.accepted_per_position, self.drafted_per_position)
    )


def summarize(completions: Iterable, wall_s: float) -> Summary:
  """Summarises finished completions; see `Tally`.

  Args:
    completions: objects with the fields of `engine.request.Completion`.
    wall_s: seconds the whole run took, however many rows ran at once.

  Returns:
    The figures; rows that ended in an error are counted in `errors` alone.

  Raises:
    ValueError: if wall_s is negative.
  """
  tally = Tally()
  for completion in completions:
    tally.add(completion)
  return tally.summary(wall_s)


class Tally:
  """Sums up completions as they come, in memory that stays the same.

  Percentiles are exact up to `SAMPLE` times; of more, each has the same chance
  to be among the SAMPLE that they are computed from (Vitter, "Random sampling
  with a reservoir", 1985): what is called the 99th is then the 99 ± .04th.
  """

  def __init__(self):
    """Starts with nothing."""
    self._ended_by = collections.Counter()
    self._sums = collections.Counter()
    self._drafted: list[int] = []
    self._accepted: list[int] = []
    self._ttft, self._gaps = _Sample(), _Sample()
    self._means, self._several = 0.0, 0

  def add(self, completion) -> None:
    """Counts a completion in: an object with the fields of `Completion`."""
    c = completion
    self._ended_by[c.finish_reason] += 1
    if c.finish_reason == "error":
      return
    self._sums.update(
      prompt_tokens=c.prompt_tokens,
      tokens=len(c.token_ids),
      steps=c.steps,
      drafted=c.drafted,
      accepted=c.accepted,
    )
    _add(self._drafted, c.drafted_per_position)
    _add(self._accepted, c.accepted_per_position)
    if c.token_ids:
      self._ttft.add(np.asarray([c.ttft_s], np.float64))
    times = np.asarray(c.token_times_s, np.float64)
    if times.size > 1:
      self._gaps.add(np.diff(times))
      self._means += float(times[-1] - times[0]) / (times.size - 1)
      self._several += 1

  def summary(self, wall_s: float) -> Summary:
    """The figures so far.

    Args:
      wall_s: seconds the whole run took, however many rows ran at once.

    Raises:
      ValueError: if wall_s is negative.
    """
    if wall_s < 0:
      raise ValueError(f"wall_s={wall_s} is negative; give elapsed seconds")
    sums = self._sums
    return Summary(
      requests=self._ended_by.total(),
      errors=self._ended_by["error"],
      ended_by={why: n for why, n in self._ended_by.items() if n},
      prompt_tokens=sums["prompt_tokens"],
      tokens=sums["tokens"],
      wall_s=wall_s,
      tokens_per_s=_ratio(sums["tokens"], wall_s),
      steps=sums["steps"],
      tokens_per_step=_ratio(sums["tokens"], sums["steps"]),
      drafted=sums["drafted"],
      accepted=sums["accepted"],
      drafted_per_position=tuple(self._drafted),
      accepted_per_position=tuple(self._accepted),
      ttft_s=_percentiles(self._ttft.values),
      inter_token_s=_percentiles(self._gaps.values),
      per_token_s=_ratio(self._means, self._several),
    )


def table(summary: Summary) -> str:
  """The summary as lines of text, a figure a line, without a final newline."""
  s = summary
  ended = [f"{s.ended_by[why]} {why}" for why in sorted(s.ended_by)]
  rows = [
    ("requests", f"{s.requests}"),
    ("ended by", ", ".join(ended) or "-"),
    ("prompt tokens", f"{s.prompt_tokens}"),
    ("new tokens", f"{s.tokens}"),
    ("time", f"{s.wall_s:.2f} s, prompts included"),
    ("tokens/s", _number(s.tokens_per_s)),
    ("steps", f"{s.steps}"),
    ("tokens per step", _number(s.tokens_per_step)),
  ]
  if s.drafted_per_position:
    share = f" ({100 * s.accepted / s.drafted:.0f}%)" if s.drafted else ""
    rows.append(("accepted", f"{s.accepted} of {s.drafted}{share}"))
  if s.drafted:
    positions = " ".join(
      f"{accepted}/{drafted}"
      for accepted, drafted in zip(
        s.accepted_per_position, s.drafted_per_position, strict=True
      )
    )
    rows.append(("  at position 1, 2, …", positions))
  rows += [
    _milliseconds("first token", s.ttft_s),
    _milliseconds("inter-token", s.inter_token_s),
  ]
  if s.per_token_s is not None:
    rows.append(
      ("per token after first", f"{1e3 * s.per_token_s:.1f} ms, mean")
    )
  width = max(len(name) for name, _ in rows)
  return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _ratio(part: float, whole: float) -> float | None:
  return part / whole if whole else None


def _add(total: list[int], counts: Sequence[int]) -> None:
  """Adds per position; rows with a shorter lookahead have fewer positions."""
  total += [0] * (len(counts) - len(total))
  for position, count in enumerate(counts):
    total[position] += count


class _Sample:
  """Up to SAMPLE of the values it was given, each as likely as any other."""

  def __init__(self):
    self._kept = np.empty((0,), np.float64)
    self._count = 0
    self._random = np.random.default_rng(0)

  @property
  def values(self) -> np.ndarray:
    return self._kept[: self._count]

  def add(self, values: np.ndarray) -> None:
    room = max(SAMPLE - self._count, 0)
    first, later = values[:room], values[room:]
    end = self._count + first.size
    if self._kept.size < min(end, SAMPLE):
      # It doubles, so that short runs stay small.
      grown = np.empty((min(max(end, 2 * self._kept.size), SAMPLE),))
      grown[: self._kept.size] = self._kept
      self._kept = grown
    if first.size:
      self._kept[self._count : end] = first
    if later.size:
      # The value that comes as the i-th stays with a chance of SAMPLE / i.
      i = np.arange(later.size) + max(self._count, SAMPLE) + 1
      place = self._random.integers(0, i)
      stays = place < SAMPLE
      self._kept[place[stays]] = later[stays]
    self._count += values.size


def _percentiles(times: Sequence[float]) -> Percentiles | None:
  if len(times) == 0:
    return None
  p50, p90, p99 = np.percentile(np.asarray(times, np.float64), (50, 90, 99))
  return Percentiles(p50=float(p50), p90=float(p90), p99=float(p99))


def _number(value: float | None) -> str:
  return "-" if value is None else f"{value:.2f}"


def _milliseconds(name: str, times: Percentiles | None) -> tuple[str, str]:
  """A row of the table: one number where all percentiles are the same."""
  if times is None:
    return name, "-"
  parts = [f"{1e3 * p:.1f}" for p in (times.p50, times.p90, times.p99)]
  if times.p50 == times.p99:
    return name, f"{parts[0]} ms"
  return f"{name} p50/p90/p99", " / ".join(parts) + " ms"
