"""A run's log as one picture, drawn by matplotlib (extra `plot`)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any


def draw(
  rows: Sequence[Mapping[str, Any]], path: str | os.PathLike, title: str
) -> None:
  """Losses, and acceptance and agreement, against the steps.

  Args:
    rows: of the log; see `trainer.read_log`.
    path: of the picture.
    title: what was trained.
  """
  from matplotlib.figure import Figure

  figure = Figure(figsize=(11, 4.5), layout="constrained")
  left, right = figure.subplots(1, 2)
  _lines(left, rows, ("loss", "held_out_loss"))
  left.set_ylabel("loss")
  names = sorted({name for row in rows for name in row})
  shares = [n for n in names if n.removeprefix("held_out_").startswith(_SHARES)]
  _lines(right, rows, shares)
  right.set_ylabel("share of positions (in training: of first rows)")
  right.set_ylim(0, 1)
  for panel in (left, right):
    panel.set_xlabel("step")
    panel.grid(alpha=0.3)
    if panel.lines:
      panel.legend(fontsize=8)
  figure.suptitle(title)
  figure.savefig(path, dpi=110)


_SHARES = ("acceptance", "agreement")


def _lines(panel, rows, names) -> None:
  for name in names:
    found = [(row["step"], row[name]) for row in rows if name in row]
    if found:
      held_out = name.startswith("held_out_")
      style = dict(marker="o", markersize=3) if held_out else dict(alpha=0.6)
      panel.plot(*zip(*found, strict=True), label=name, **style)
