"""The lab's rows as one picture, drawn by matplotlib (extra `lab`)."""

import os
from collections.abc import Sequence

from specjax.lab.lower import PARTS
from specjax.lab.rows import Row, speed_up
from specjax.lab.table import beside_plain

_HEIGHT = 0.3  # inches a row of the bars


def draw(rows: Sequence[Row], path: str | os.PathLike) -> None:
  """Memory a chip, traffic by part, speed-ups and the trade-off of strategies.

  Args:
    rows: those that do not fit are left out of all but memory.
    path: of the picture.
  """
  from matplotlib.figure import Figure

  fits = [row for row in rows if row.fits]
  known = [row for row in rows if row.fits or row.needed_bytes]
  height = 8 + 2 * _HEIGHT * len(known)
  figure = Figure(figsize=(15, height), layout="constrained")
  panels = figure.subplots(2, 2)
  _memory(panels[0][0], known)
  _traffic(panels[0][1], fits)
  _speed_ups(panels[1][0], fits)
  _trade_off(panels[1][1], fits)
  figure.suptitle(
    "Of one chip and one step; nothing here is a measured latency"
  )
  figure.savefig(path, dpi=110)


def _name(row: Row) -> str:
  return (
    f"{row.topology} {row.strategy} {row.who} B {row.batch}"
    f" {row.drafted} {row.context}"
  )


def _bars(axes, rows: Sequence[Row]) -> None:
  axes.set_yticks(range(len(rows)), [_name(row) for row in rows], fontsize=7)
  axes.invert_yaxis()


def _memory(axes, rows: Sequence[Row]) -> None:
  for place, row in enumerate(rows):
    if row.fits:
      axes.barh(place, row.resident_bytes / 1e9, color="tab:blue")
      axes.barh(
        place,
        row.temp_bytes / 1e9,
        left=row.resident_bytes / 1e9,
        color="tab:orange",
      )
    else:
      axes.barh(place, row.needed_bytes / 1e9, color="tab:red")
    axes.plot([row.usable_bytes / 1e9] * 2, [place - 0.4, place + 0.4], "k")
  _bars(axes, rows)
  axes.set_xlabel(
    "GB a chip: arguments (blue), temporary (orange), needed without room (red)"
    "; line: usable"
  )
  axes.set_title("Memory")


def _traffic(axes, rows: Sequence[Row]) -> None:
  for place, row in enumerate(rows):
    left = 0.0
    for index, part in enumerate(PARTS):
      width = row.traffic[part] / 1e9
      label = part.replace("_", " ") if place == 0 else None
      axes.barh(place, width, left=left, color=f"C{index}", label=label)
      left += width
    ideal = row.ideal_traffic_bytes / 1e9
    axes.plot([ideal] * 2, [place - 0.4, place + 0.4], "k")
  _bars(axes, rows)
  axes.set_xlabel("GB a step between memory and chip; line: ideal")
  axes.set_title("Traffic by part")
  if rows:
    axes.legend(fontsize=7)


def _speed_ups(axes, rows: Sequence[Row]) -> None:
  steps = [step / 50 for step in range(51)]
  pairs = beside_plain(rows)
  for row, plain in pairs:
    ups = [speed_up(plain, row, step) for step in steps]
    axes.plot(steps, ups, label=_name(row))
  axes.axhline(1.0, color="gray", linewidth=0.5)
  axes.set_xlabel("acceptance of a draft")
  axes.set_ylabel("speed-up over lookahead 0, by the bounds alone")
  axes.set_title("Speed-up" if pairs else "Speed-up: needs --lookahead=0,…")
  if pairs:
    axes.legend(fontsize=6)


def _trade_off(axes, rows: Sequence[Row]) -> None:
  """Traffic against talk; of each case what nothing beats in both is circled.

  A case is all but topology and strategy.
  """
  points = [
    (row.bound_ms, sum(size for _, size in row.collectives.values()) / 1e6)
    for row in rows
  ]
  case = lambda row: (
    row.config, row.who, row.batch, row.drafted, row.context
  )  # fmt: skip
  for row, (x, y) in zip(rows, points, strict=True):
    axes.plot(x, y, "o", color="tab:blue", markersize=4)
    axes.annotate(_name(row), (x, y), fontsize=6)
    beaten = any(
      case(row) == case(other) and a <= x and b <= y and (a, b) != (x, y)
      for other, (a, b) in zip(rows, points, strict=True)
    )
    if not beaten:
      axes.plot(x, y, "o", color="tab:red", markersize=10, fillstyle="none")
  axes.set_xlabel("ms a step, lower bound by traffic and products")
  axes.set_ylabel("MB a chip gives or gets in collectives")
  axes.set_title("Strategies (circled: none is better in both, of its B, C, M)")
