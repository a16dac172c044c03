"""What a run of requests cost: speed, acceptance, waiting times.

Everything is computed from finished completions (`specjax.engine.request`,
by duck typing), so a summary of a saved run equals that of a live one.
"""

import dataclasses
from collections.abc import Iterable, Sequence

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
    errors: those that ended in an error. They count nowhere below.
    prompt_tokens: tokens of the prompts.
    tokens: tokens emitted.
    wall_s: seconds from the first request to the last completion.
    tokens_per_s: tokens over wall_s, all rows together.
    steps: propose–verify steps, summed over the rows.
    tokens_per_step: tokens over steps: 1 for plain decoding, at most C + 1.
    drafted: drafted tokens the target has judged.
    accepted: drafted tokens it accepted.
    acceptance: per draft position, the share accepted of those drafted there.
      A position counts as drafted even where an earlier one was rejected.
    ttft_s: time from a request's start to its first token.
    inter_token_s: times between consecutive tokens of a row as they arrive.
      The tokens of one step arrive together, so most gaps of a good
      speculative run are 0 and the upper percentiles are its steps.
    per_token_s: mean over rows of the time per token after the first.
  """

  requests: int
  errors: int
  prompt_tokens: int
  tokens: int
  wall_s: float
  tokens_per_s: float | None
  steps: int
  tokens_per_step: float | None
  drafted: int
  accepted: int
  acceptance: tuple[float | None, ...]
  ttft_s: Percentiles | None
  inter_token_s: Percentiles | None
  per_token_s: float | None


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
    prompt_tokens=sum(c.prompt_tokens for c in done),
    tokens=tokens,
    wall_s=wall_s,
    tokens_per_s=_ratio(tokens, wall_s),
    steps=steps,
    tokens_per_step=_ratio(tokens, steps),
    drafted=sum(c.drafted for c in done),
    accepted=sum(c.accepted for c in done),
    acceptance=tuple(
      _ratio(accepted, drafted)
      for drafted, accepted in zip(
        _total([c.drafted_per_position for c in done]),
        _total([c.accepted_per_position for c in done]),
        strict=True,
      )
    ),
    ttft_s=_percentiles([c.ttft_s for c in done if c.token_ids]),
    inter_token_s=_percentiles(gaps),
    per_token_s=float(np.mean(means)) if means else None,
  )


def table(summary: Summary) -> str:
  """The summary as lines of text, a figure a line, without a final newline."""
  s = summary
  rows = [("requests", f"{s.requests}")]
  if s.errors:
    rows.append(("  of them failed", f"{s.errors}"))
  rows += [
    ("prompt tokens", f"{s.prompt_tokens}"),
    ("new tokens", f"{s.tokens}"),
    ("time", f"{s.wall_s:.2f} s"),
    ("tokens/s", _number(s.tokens_per_s)),
    ("tokens per step", _number(s.tokens_per_step)),
  ]
  if s.drafted:
    share = 100 * s.accepted / s.drafted
    rows.append(("accepted", f"{s.accepted} of {s.drafted} ({share:.0f}%)"))
    positions = " ".join(
      "-" if a is None else f"{100 * a:.0f}%" for a in s.acceptance
    )
    rows.append(("  at position 1, 2, …", positions))
  rows += [
    ("first token p50/p90/p99", _milliseconds(s.ttft_s)),
    ("inter-token p50/p90/p99", _milliseconds(s.inter_token_s)),
  ]
  if s.per_token_s is not None:
    rows.append(("time per token (mean)", f"{1e3 * s.per_token_s:.1f} ms"))
  width = max(len(name) for name, _ in rows)
  return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _ratio(part: float, whole: float) -> float | None:
  return part / whole if whole else None


def _total(counts: Sequence[Sequence[int]]) -> list[int]:
  """Sums per position; rows with a shorter lookahead have fewer positions."""
  total = [0] * max((len(row) for row in counts), default=0)
  for row in counts:
    for position, count in enumerate(row):
      total[position] += count
  return total


def _percentiles(times: Sequence[float]) -> Percentiles | None:
  if len(times) == 0:
    return None
  p50, p90, p99 = np.percentile(np.asarray(times, np.float64), (50, 90, 99))
  return Percentiles(p50=float(p50), p90=float(p90), p99=float(p99))


def _number(value: float | None) -> str:
  return "-" if value is None else f"{value:.2f}"


def _milliseconds(times: Percentiles | None) -> str:
  if times is None:
    return "-"
  parts = (1e3 * times.p50, 1e3 * times.p90, 1e3 * times.p99)
  return " / ".join(f"{part:.1f}" for part in parts) + " ms"
