"""What a run of requests cost: speed, acceptance, waiting times.

Everything is computed from finished completions (`specjax.engine.request`,
by duck typing), so a summary of a saved run equals that of a live one.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np


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
  """Summarises finished completions.

  Args:
    completions: objects with the fields of `engine.request.Completion`.
    wall_s: seconds the whole run took, however many rows ran at once.

  Returns:
    The figures; rows that ended in an error are counted in `errors` alone.

  Raises:
    ValueError: if wall_s is negative.
  """
  if wall_s < 0:
    raise ValueError(f"wall_s={wall_s} is negative; give elapsed seconds")
  everything = list(completions)
  done = [c for c in everything if c.finish_reason != "error"]
  tokens = sum(len(c.token_ids) for c in done)
  steps = sum(c.steps for c in done)
  times = [np.asarray(c.token_times_s, np.float64) for c in done]
  several = [t for t in times if t.size > 1]
  gaps = np.concatenate([np.diff(t) for t in several]) if several else []
  means = [(t[-1] - t[0]) / (t.size - 1) for t in several]
  return Summary(
    requests=len(everything),
    errors=len(everything) - len(done),
    ended_by=dict(collections.Counter(c.finish_reason for c in everything)),
    prompt_tokens=sum(c.prompt_tokens for c in done),
    tokens=tokens,
    wall_s=wall_s,
    tokens_per_s=_ratio(tokens, wall_s),
    steps=steps,
    tokens_per_step=_ratio(tokens, steps),
    drafted=sum(c.drafted for c in done),
    accepted=sum(c.accepted for c in done),
    drafted_per_position=_total([c.drafted_per_position for c in done]),
    accepted_per_position=_total([c.accepted_per_position for c in done]),
    ttft_s=_percentiles([c.ttft_s for c in done if c.token_ids]),
    inter_token_s=_percentiles(gaps),
    per_token_s=float(np.mean(means)) if means else None,
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


def _total(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
  """Sums per position; rows with a shorter lookahead have fewer positions."""
  total = [0] * max((len(row) for row in counts), default=0)
  for row in counts:
    for position, count in enumerate(row):
      total[position] += count
  return tuple(total)


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
