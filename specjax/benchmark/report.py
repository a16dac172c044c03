"""A record as text: a table of figures, and ours over the peers."""

from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = (
  ("tokens/s", "tokens_per_s", "{:.1f}"),
  ("with prompt", "tokens_per_s_with_prompt", "{:.1f}"),
  ("speed-up", "speedup", "{:.2f}"),
  ("of rounds", "speedup_of_rounds", None),
  ("per prompt", "spec_bench_speedup", "{:.2f}"),
  ("per step", "tokens_per_step", "{:.2f}"),
  ("accepted", "acceptance", "{:.0%}"),
  ("equal", "tokens_equal", "{:.1%}"),
)
_MODEL = (
  ("alpha", "alpha", "{:.2f}"),
  ("c", "draft_cost", "{:.3f}"),
  ("v", "verify_cost", "{:.2f}"),
  ("w", "wide_share", "{:.2f}"),
  ("predicted", "predicted_speedup", "{:.2f}"),
  ("paper's", "paper_speedup", "{:.2f}"),
  ("efficiency", "efficiency", "{:.2f}"),
  ("bandwidth", "bandwidth_fraction", "{:.2f}"),
  ("compiles", "compiles_after_warmup", "{}"),
  ("start, s", "startup_s", "{:.1f}"),
)


def table(record: Mapping[str, Any]) -> str:
  """The record's figures as lines of text, without a final newline."""
  runs = record["runs"]
  own = [run for run in runs if run["peer"] is None]
  parts = [_heading(record), _table(runs, _COLUMNS), _table(own, _MODEL)]
  parts += [_places(own), _over(record), _differences(runs)]
  return "\n\n".join(part for part in parts if part)


def columns(rows: Sequence[Sequence[str]]) -> str:
  """Rows of cells as aligned text: the first to the left, others right."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = []
  for first, *others in rows:
    cells = [first.ljust(widths[0])]
    cells += [
      cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)
    ]
    lines.append("  ".join(cells).rstrip())
  return "\n".join(lines)


def _heading(record: Mapping[str, Any]) -> str:
  size = record["bandwidth_bytes_per_s"]
  read = "" if size is None else f", memory read at {size / 1e9:.1f} GB/s"
  rounds = record["rounds_done"]
  plural = "" if rounds == 1 else "s"
  state = "" if record["complete"] else ", NOT COMPLETE"
  return (
    f"{record['model']}, {record['dtype']}, {len(record['prompts'])} prompts,"
    f" medians of {rounds} round{plural}{read}{state}"
  )


def _table(runs, wanted) -> str:
  rows = [["", *(title for title, _, _ in wanted)]]
  for run in runs:
    rows.append(
      [run["name"], *(_cell(run[key], form) for _, key, form in wanted)]
    )
  return columns(rows)


def _cell(value: Any, form: str | None) -> str:
  if value is None or value == []:
    return "-"
  if form is None:
    return f"{min(value):.2f}…{max(value):.2f}"
  return form.format(value)


def _places(runs: Sequence[Mapping[str, Any]]) -> str:
  """Acceptance by place in the proposal, a line for each run that drafts."""
  return "\n".join(
    f"{run['name']}, accepted at place 1, 2, …: "
    + " ".join(_cell(share, "{:.0%}") for share in shares)
    for run in runs
    if (shares := run["acceptance_per_position"])
  )


def _over(record: Mapping[str, Any]) -> str:
  """Decoding speed of each of ours over each of the peers'."""
  ratios = record["ratios"]
  peers = [run["name"] for run in record["runs"] if run["peer"] is not None]
  if not peers:
    return ""
  rows = [["tokens/s over that of", *peers]]
  for name, found in ratios.items():
    rows.append([name, *(_spread(found[peer]) for peer in peers)])
  lines = [columns(rows)]
  for peer, best in record["best"].get("over", {}).items():
    lines.append(
      f"best of ours ({record['best']['ours']}) over best of {peer}"
      f" ({best['name']}): {_spread(best)}"
    )
  return "\n".join(lines)


def _differences(runs: Sequence[Mapping[str, Any]]) -> str:
  """How decided the target was where answers part from plain decoding's."""
  return "\n".join(
    f"{run['name']} parts from plain in {len(found)} answers, where the"
    f" target's logits differ by at most"
    f" {max(abs(one['margin']) for one in found):.3g}"
    for run in runs
    if (found := run["first_differences"])
  )


def _spread(found: Mapping[str, float] | None) -> str:
  if not found or "median" not in found:
    return "-"
  return f"{found['median']:.2f} ({found['min']:.2f}…{found['max']:.2f})"
