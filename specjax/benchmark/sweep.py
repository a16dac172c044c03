"""What all sweeps share: a record of points, its text and its picture."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.benchmark import plan as plan_lib
from specjax.benchmark import plots, report

# Of a point: what is varied, and what was measured there.
_AXES = ("batch", "run", "live", "capacity", "start")
_VALUES = (
  "tokens_per_s",
  "tokens_per_s_with_prompt",
  "milliseconds",
  "seconds",
)
# Beside the points: what they come to.
_SUMS = ("ratio", "warm")


def record(
  plan: plan_lib.Plan, name: str, points: Sequence[Mapping[str, Any]], what: str
) -> dict[str, Any]:
  """A sweep's record, which grows with `points`.

  Args:
    plan: what is asked for.
    name: the sweep's.
    points: a mapping each, filled while measuring.
    what: what is measured, with its unit.
  """
  return {
    "complete": False,
    "sweep": name,
    "what": what,
    **plan.about(),
    "points": points,
  }


def table(result: Mapping[str, Any]) -> str:
  """A sweep's record as lines of text, without a final newline."""
  points = result["points"]
  axes = [key for key in _AXES if key in points[0]]
  values = [key for key in _VALUES if key in points[0]]
  rows = [[axes[0], *axes[1:], *(key.replace("_", " ") for key in values)]]
  rows += [
    [
      *(str(point[key]) for key in axes),
      *(_text(point[key]) for key in values),
    ]
    for point in points
  ]
  lines = [
    f"{result['model']}, {result['dtype']}: {result['what']},"
    f" {result['rounds']} rounds, median (least…most)",
    "",
    report.columns(rows),
  ]
  lines += [
    f"{name}: {_text(result[name])}" for name in _SUMS if result.get(name)
  ]
  return "\n".join(lines)


def plot(result: Mapping[str, Any], path: str | os.PathLike) -> None:
  """A sweep's record as a picture."""
  points, what = result["points"], result["what"]
  title = f"{result['model']}, {result['dtype']}"
  match result["sweep"]:
    case "batch":
      names = dict.fromkeys(point["run"] for point in points)
      series = {
        name: [
          (point["batch"], point["tokens_per_s"]["median"])
          for point in points
          if point["run"] == name and point["tokens_per_s"]
        ]
        for name in names
      }
      plots.lines(path, series, title=title, x="slots", y=what, log_x=True)
    case "live":
      line = [(p["live"], p["milliseconds"]["median"]) for p in points]
      plots.lines(
        path, {"plain": line}, title=title, x="tokens in the cache", y=what
      )
    case "capacity":
      values = {
        f"capacity {p['capacity']}": p["milliseconds"]["median"] for p in points
      }
      plots.bars(path, values, title=title, x=what)
    case "startup":
      values = {"cold": points[0]["seconds"], "warm": result["warm"]["median"]}
      plots.bars(path, values, title=title, x=what)


def _text(value: Any) -> str:
  if value is None:
    return "-"
  if isinstance(value, Mapping):
    return f"{value['median']:.2f} ({value['min']:.2f}…{value['max']:.2f})"
  return f"{value:.2f}"
