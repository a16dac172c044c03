"""Sizes: amounts of memory as people write them, and an engine's own.

Needs no jax, so that commands may check before they start it.
"""

import re
from collections.abc import Sequence

_UNITS = {
  "": 1,
  **{f"{p}b": 1000**i for i, p in enumerate("kmgt", start=1)},
  **{f"{p}ib": 1024**i for i, p in enumerate("kmgt", start=1)},
  **{p: 1024**i for i, p in enumerate("kmgt", start=1)},
  "b": 1,
}
_SIZE = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)\s*", re.A | re.I)
_MOST = 2**62  # bytes


def check(
  *,
  slots: int,
  capacity: int,
  steps_per_sync: int = 1,
  prefill_widths: Sequence[int] = (1,),
) -> None:
  """Refuses sizes that no engine can have; see `loop.Engine`.

  Raises:
    ValueError: names the argument, its value and the fix.
  """
  for name, value in (
    ("slots", slots),
    ("capacity", capacity),
    ("steps_per_sync", steps_per_sync),
  ):
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 1 <= value < 2**31:
      raise ValueError(f"{name} is {value!r}; give a whole number >= 1")
  if not prefill_widths or min(prefill_widths) < 1:
    raise ValueError(
      f"prefill_widths is {prefill_widths!r}; give whole numbers >= 1"
    )
  if capacity < 2:
    raise ValueError("capacity is 1; a prompt and a token need at least 2")


def parse(size: str | int, name: str = "max_memory") -> int:
  """Bytes of a size: 8GB (10⁹), 8GiB or 8G (2³⁰), 500MB, or plain bytes.

  Raises:
    ValueError: it is none, or not above 0; names `name`.
  """
  count = 0
  if isinstance(size, str):
    found = _SIZE.fullmatch(size)
    unit = _UNITS.get(found.group(2).lower()) if found else None
    count = int(float(found.group(1)) * unit) if unit else 0
  elif isinstance(size, int) and not isinstance(size, bool):
    count = size
  if not 0 < count < _MOST:
    raise ValueError(
      f"{name} is {size!r}; give a size such as 8GB, 8GiB, 500MB, or bytes"
    )
  return count


def shown(count: int) -> str:
  """A size in the largest decimal unit that leaves it readable."""
  if count < 10**6:
    return f"{count / 1e3:.0f} kB"
  if count < 10**8:
    return f"{count / 1e6:.0f} MB"
  places = 2 if count < 10**10 else 1 if count < 10**11 else 0
  return f"{count / 1e9:.{places}f} GB"
