"""A benchmark's record: everything measured, as the JSON file holds it."""

import dataclasses
import json
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.benchmark import answers as answers_lib
from specjax.benchmark import figures, traffic
from specjax.benchmark.answers import Sample
from specjax.benchmark.costs import Costs
from specjax.benchmark.runs import PLAIN


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """One contestant, as the record describes it.

  Attributes:
    name: its name.
    peer: the peer it belongs to; None for our own runs.
    kind: of runs.KINDS, or the peer's way of generating.
    lookahead: C, or None.
    settings: what else makes it.
    startup_s: seconds to load, and to compile.
    draft: the proposer of a run that has one.
  """

  name: str
  peer: str | None
  kind: str
  lookahead: int | None
  settings: Mapping[str, Any]
  startup_s: float
  draft: Any = None


def build(
  entries: Sequence[Entry],
  samples: Mapping[str, Sequence[Sample]],
  *,
  complete: bool,
  about: Mapping[str, Any],
  target: Any,
  costs: Mapping[str, Costs],
  bandwidth: Mapping[str, float],
  live_tokens: float | None,
  greedy: bool,
  differences: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
  """The record of what has been measured so far.

  Args:
    entries: the contestants; the plain run is among them.
    samples: of each by name, a sample a round.
    complete: whether this is all there will be.
    about: what the benchmark was asked for and where it ran.
    target: the model all runs share.
    costs: of our runs by name.
    bandwidth: bytes a second of each kernel that was tried.
    live_tokens: at which the costs were measured.
    greedy: whether all answers are greedy.
    differences: of each run by name, where its answers part from plain
      decoding's (see `differences.Judge`).
  """
  plain = samples.get(PLAIN, ())
  best = max(bandwidth, key=bandwidth.get) if bandwidth else None
  rows = []
  for entry in entries:
    own = samples.get(entry.name, ())
    rows.append(
      _entry(
        entry,
        own,
        plain,
        target=target,
        costs=costs.get(entry.name),
        bandwidth=bandwidth.get(best),
        greedy=greedy,
      )
      | {"first_differences": list(differences.get(entry.name, ()))}
    )
  return {
    "complete": complete,
    **about,
    "rounds_done": min(len(samples.get(e.name, ())) for e in entries),
    "live_tokens": live_tokens,
    "bandwidth_bytes_per_s": bandwidth.get(best),
    "bandwidth_kernel": best,
    "bandwidth_kernels": dict(bandwidth),
    "runs": rows,
    "ratios": _ratios(entries, samples),
    "best": _best(entries, rows, samples),
    "definitions": figures.DEFINITIONS,
  }


def write(path: str | os.PathLike, record: Mapping[str, Any]) -> None:
  """Writes a record; a reader meets the old file or the new one, whole."""
  path = pathlib.Path(path)
  partial = path.with_name(path.name + ".partial")
  text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
  partial.write_text(text + "\n", encoding="utf-8")
  partial.replace(path)


def _entry(
  entry: Entry, samples, plain, *, target, costs, bandwidth, greedy
) -> dict[str, Any]:
  is_peer = entry.peer is not None
  step_bytes = None
  if samples and not is_peer:
    share = 1.0
    if entry.lookahead:
      # Known only with the figures; they do not depend on the bytes.
      share = figures.compute(
        samples,
        plain,
        lookahead=entry.lookahead,
        costs=None,
        step_bytes=None,
        bandwidth=None,
        startup_s=0.0,
        greedy=False,
      ).wide_share
    if share is not None:
      step_bytes = traffic.step_bytes(
        target,
        samples[-1].answers,
        draft=entry.draft
        and traffic.drafting(
          entry.draft, target, entry.settings.get("draft_weights")
        ),
        wide_share=share,
      )
  made = figures.compute(
    samples,
    plain,
    lookahead=entry.lookahead,
    costs=costs,
    step_bytes=step_bytes,
    bandwidth=bandwidth,
    startup_s=entry.startup_s,
    greedy=greedy,
    is_peer=is_peer,
  )
  return {
    "name": entry.name,
    "peer": entry.peer,
    "kind": entry.kind,
    "lookahead": entry.lookahead,
    "settings": dict(entry.settings),
    **dataclasses.asdict(made),
    "bytes_per_step": step_bytes,
    "milliseconds": _milliseconds(samples, costs),
    "speedup_of_rounds": figures.ratios(samples, plain),
    "rounds": [_round(sample) for sample in samples],
  }


def _milliseconds(
  samples: Sequence[Sample], costs: Costs | None
) -> dict[str, float]:
  """Mean step as the run took it, and its parts as measured alone."""
  found = {}
  steps = [
    sample.decode[1] / sum(a.steps - 1 for a in sample.answers)
    for sample in samples
    if not sample.together
    and all(a.steps is not None for a in sample.answers)
    and any(a.steps > 1 for a in sample.answers)
  ]
  if steps:
    found["step"] = 1e3 * statistics.median(steps)
  if costs is not None:
    found |= {
      name.removesuffix("_s"): 1e3 * value
      for name, value in dataclasses.asdict(costs).items()
    }
  return found


def _round(sample: Sample) -> dict[str, Any]:
  tokens, seconds = sample.decode
  all_tokens, all_seconds = sample.whole
  return {
    "tokens": tokens,
    "seconds": seconds,
    "tokens_with_prompt": all_tokens,
    "seconds_with_prompt": all_seconds,
    "prompts": [
      {
        "id": answer.id,
        "prompt_tokens": answer.prompt_tokens,
        "tokens": len(answer.token_ids),
        "steps": answer.steps,
        "first_token_s": answer.times_s[0],
        "last_token_s": answer.times_s[-1],
      }
      for answer in sample.answers
    ],
  }


def spread(values: Sequence[float]) -> dict[str, float] | None:
  """Median, least and most of some values; None where there are none."""
  if not values:
    return None
  return {
    "median": statistics.median(values),
    "min": min(values),
    "max": max(values),
  }


def _ratios(entries, samples) -> dict[str, dict[str, Any]]:
  """Decoding speed of each run of ours over each peer's, by round."""
  return {
    own.name: {
      peer.name: spread(
        figures.ratios(samples.get(own.name, ()), samples.get(peer.name, ()))
      )
      for peer in entries
      if peer.peer is not None
    }
    for own in entries
    if own.peer is None
  }


def _best(entries, rows, samples) -> dict[str, Any]:
  """The fastest of ours over the fastest of each peer."""
  fastest: dict[str | None, dict[str, Any]] = {}
  for row in rows:
    speed = row["tokens_per_s"]
    known = fastest.get(row["peer"])
    if speed and (known is None or speed > known["tokens_per_s"]):
      fastest[row["peer"]] = row
  ours = fastest.pop(None, None)
  if ours is None:
    return {}
  own = samples[ours["name"]]
  return {
    "ours": ours["name"],
    "over": {
      peer: {
        "name": row["name"],
        **(spread(figures.ratios(own, samples[row["name"]])) or {}),
        "with_prompt": spread(
          figures.ratios(own, samples[row["name"]], "whole")
        ),
      }
      for peer, row in fastest.items()
    },
  }


def rates(row: Mapping[str, Any]) -> list[float]:
  """Decoding tokens a second of each round of a record's run."""
  known = [(r["tokens"], r["seconds"]) for r in row["rounds"]]
  return [found for found in map(answers_lib.rate, known) if found]
