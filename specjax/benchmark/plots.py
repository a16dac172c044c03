"""Figures as image files, drawn by matplotlib (extra `plot`)."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specjax.benchmark import record as record_lib

_OURS, _PEERS = "tab:blue", "tab:gray"


def runs(record: Mapping[str, Any], path: str | os.PathLike) -> None:
  """Bars of decoding speed, with the rounds' least and most."""
  rows = [row for row in record["runs"] if row["tokens_per_s"]][::-1]
  with _figure(path, height=1.2 + 0.45 * len(rows)) as axes:
    for place, row in enumerate(rows):
      middle, rates = row["tokens_per_s"], record_lib.rates(row)
      axes.barh(
        place,
        middle,
        color=_OURS if row["peer"] is None else _PEERS,
        xerr=[[middle - min(rates)], [max(rates) - middle]],
        ecolor="black",
        capsize=3,
      )
      axes.text(max(rates), place, f"  {middle:.1f}", va="center")
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set_xlabel("tokens a second, decoding; median, least and most")
    axes.set_title(f"{record['model']}, {record['dtype']}")
    axes.margins(x=0.12)


def lines(
  path: str | os.PathLike,
  series: Mapping[str, Sequence[tuple[float, float]]],
  *,
  title: str,
  x: str,
  y: str,
  log_x: bool = False,
) -> None:
  """Lines through points, from 0 upwards.

  Args:
    path: the file to write.
    series: name of each line to its (x, y).
    title, x, y: what the figure and its axes say.
    log_x: whether x doubles from tick to tick.
  """
  with _figure(path, height=4.0) as axes:
    for name, points in series.items():
      axes.plot(*zip(*points, strict=True), marker="o", label=name)
    if log_x:
      axes.set_xscale("log", base=2)
      ticks = sorted({at for points in series.values() for at, _ in points})
      axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()


def bars(
  path: str | os.PathLike, values: Mapping[str, float], *, title: str, x: str
) -> None:
  """Horizontal bars with their values."""
  with _figure(path, height=1.2 + 0.45 * len(values)) as axes:
    for place, value in enumerate(reversed(values.values())):
      axes.barh(place, value, color=_OURS)
      axes.text(value, place, f"  {value:.2f}", va="center")
    axes.set_yticks(range(len(values)), list(values)[::-1])
    axes.set_xlabel(x)
    axes.set_title(title)
    axes.margins(x=0.12)


@contextlib.contextmanager
def _figure(path: str | os.PathLike, *, height: float) -> Iterator[Any]:
  """Axes of a figure that is written to `path` at the end."""
  # Without pyplot: no window system, and no state of its own.
  from matplotlib import figure

  made = figure.Figure(figsize=(8, height), layout="constrained")
  yield made.subplots()
  made.savefig(path, dpi=150)
