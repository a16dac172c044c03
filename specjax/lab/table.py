"""The lab's rows as text, with units and what the numbers are not."""

import textwrap
from collections.abc import Callable, Sequence

from specjax.lab.rows import Row, draft_cost, speed_up

CAVEATS = (
  "Of one chip and one step, read from what the TPU compiler made; nothing here"
  " is a measured latency.",
  "traffic and flops: lower bounds in ms, at the chip's full bandwidth and"
  " bfloat16 peak. What collectives, small operations and waiting take comes on"
  " top.",
  "Loops are counted; of a condition, its dearest branch (rows that sample,"
  " with every filter). ideal: weights as often as passes go over them (the"
  " target's once, a draft's C times), live caches once a pass.",
  "talk: collectives (those of sampling apart), their number and the bytes that"
  " one chip gives or gets.",
)
ACCEPTANCES = (0.6, 0.7, 0.8, 0.9)


def table(
  rows: Sequence[Row], acceptances: Sequence[float] = ACCEPTANCES
) -> str:
  """All rows, one a line, and the speed-ups that their bounds allow.

  Args:
    rows: of the table.
    acceptances: which speed-ups are for; see `rows.speed_up`.
  """
  shown = [_cells(row) for row in rows]
  lines = _aligned([_HEAD, _UNITS, *shown])
  lines += [""] + _reasons(rows)
  curves = _curves(rows, acceptances)
  if curves:
    unsaid = " (siblings cost, and give nothing)"
    lines += [
      "by the bounds alone: what a draft takes of a plain step (c), and the"
      " speed-up over lookahead 0, at an acceptance of"
      + unsaid
      * any(row.siblings for row in rows),
      *_aligned(curves),
      "",
    ]
  return "\n".join([*lines, *_caveats()])


def _caveats() -> list[str]:
  return [line for text in CAVEATS for line in textwrap.wrap(text, 100)]


_HEAD = (
  "topology", "strategy", "proposer", "B", "C", "M", "context", "live", "fits",
  "args", "temp", "in place", "caches", "traffic", "of ideal", "traffic",
  "flops", "talk", "sampling", "compile",
)  # fmt: skip
_UNITS = (
  "", "", "", "", "", "", "", "", "", "GB", "MB", "GB", "in place", "GB", "x",
  "ms", "ms", "n  MB", "n  MB", "s",
)  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
  begin = (
    row.topology, row.strategy, row.who, str(row.batch),
    str(row.lookahead), str(row.siblings), str(row.context), str(row.live),
  )  # fmt: skip
  if row.refused:
    return (*begin, "refused")
  if not row.fits:
    return (*begin, f"no, {row.short_bytes / 1e9:.2f} GB short")
  return (
    *begin,
    "yes",
    f"{row.resident_bytes / 1e9:.2f}",
    f"{row.temp_bytes / 1e6:.1f}",
    f"{row.donated_bytes / 1e9:.3f}",
    f"{row.cache_leaves_aliased} of {row.cache_leaves}",
    f"{row.hbm_traffic_bytes / 1e9:.2f}",
    f"{row.hbm_traffic_bytes / row.ideal_traffic_bytes:.2f}",
    f"{row.traffic_ms:.2f}",
    f"{row.flops_ms:.2f}",
    _talk(row.collectives),
    _talk(row.sampling),
    f"{row.compile_s:.0f}",
  )


def _talk(said) -> str:
  count = sum(count for count, _ in said.values())
  size = sum(size for _, size in said.values())
  return f"{count}  {size / 1e6:.2f}"


def _reasons(rows: Sequence[Row]) -> list[str]:
  """Why what was refused was, each reason once."""
  reasons = dict.fromkeys(
    f"{row.topology} {row.strategy}: {row.refused}"
    for row in rows
    if row.refused
  )
  return [*reasons, ""] if reasons else []


def _curves(
  rows: Sequence[Row], acceptances: Sequence[float]
) -> list[tuple[str, ...]]:
  """Speed-ups of the rows whose plain row is there too."""
  found = []
  for row, plain in beside_plain(rows):
    case = (row.topology, row.strategy, row.who, f"B {row.batch}",
            row.drafted)  # fmt: skip
    ups = (f"{speed_up(plain, row, one):.2f}x" for one in acceptances)
    cost = f"{draft_cost(plain, row):.3f}"
    found.append((*case, f"context {row.context}", cost, *ups))
  if not found:
    return []
  return [("", "", "", "", "", "", "c", *map(str, acceptances)), *found]


def beside_plain(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
  """Rows that draft, each with its case at lookahead 0, where both fit."""
  key: Callable = lambda row: (
    row.config, row.topology, row.strategy, row.proposer, row.variant,
    row.batch, row.context, row.live
  )  # fmt: skip
  plain = {key(row): row for row in rows if row.fits and not row.lookahead}
  return [
    (row, plain[key(row)])
    for row in rows
    if row.fits and row.lookahead and key(row) in plain
  ]


def against(rows: Sequence[Row], others: Sequence[Row]) -> str:
  """Two configs' rows of the same cases, side by side."""
  names = [some[0].config for some in (rows, others)]
  head = ("topology", "strategy", "proposer", "B", "C", "M", "context",
          "args GB", "traffic GB", "bound ms", "collectives MB")  # fmt: skip
  lines = [head]
  for one, other in zip(rows, others, strict=True):
    case = (one.topology, one.strategy, one.who, str(one.batch),
            str(one.lookahead), str(one.siblings),
            str(one.context))  # fmt: skip
    pairs = [
      " | ".join(_figure(row, figure) for row in (one, other))
      for figure in _FIGURES
    ]
    lines.append((*case, *pairs))
  return "\n".join([f"{names[0]} | {names[1]}", *_aligned(lines), *_caveats()])


_FIGURES: tuple[Callable[[Row], float], ...] = (
  lambda row: row.resident_bytes / 1e9,
  lambda row: row.hbm_traffic_bytes / 1e9,
  lambda row: row.bound_ms,
  lambda row: sum(size for _, size in row.collectives.values()) / 1e6,
)


def _figure(row: Row, figure: Callable[[Row], float]) -> str:
  if row.fits:
    return f"{figure(row):.2f}"
  return "refused" if row.refused else "no room"


_NAMES = 3  # columns of a slice, a strategy and a proposer


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
  """Columns side by side, names to the left and numbers to the right."""
  # A row that ends early says something long there; it widens no column.
  full = [row for row in rows if len(row) == max(map(len, rows))]
  widths = [max(map(len, column)) for column in zip(*full, strict=True)]
  for row in rows:
    for index in range(_NAMES):
      widths[index] = max(widths[index], len(row[index]))
  lines = []
  for row in rows:
    cells = [
      cell.ljust(width) if index < _NAMES else cell.rjust(width)
      for index, (cell, width) in enumerate(zip(row, widths, strict=False))
    ]
    lines.append("  ".join(cells).rstrip())
  return lines
