"""How a pair is split over a slice, in one word: tensor/replicated+rows@2x8."""

import dataclasses
import math
import re
from collections.abc import Sequence

from specjax.sharding import rules
from specjax.sharding.axes import DATA, MODEL

_TEXT = re.compile(
  r"([a-z0-9_]+)(?:/([a-z0-9_]+))?(?:\+([a-z]+))?(?:@(\d{1,4})x(\d{1,4}))?"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
  """What `specjax-generate` calls strategy, draft_strategy and so on.

  Attributes:
    target, draft: names of rules; see `sharding.rules`.
    caches: how caches are split.
    mesh: ways over the axes data and model; None picks what suits the slice.
  """

  target: str
  draft: str
  caches: str = "heads"
  mesh: tuple[int, int] | None = None

  def __str__(self):
    text = self.target
    if self.draft != self.target:
      text += f"/{self.draft}"
    if self.caches != "heads":
      text += f"+{self.caches}"
    return text + (f"@{self.mesh[0]}x{self.mesh[1]}" if self.mesh else "")

  def shape(self, sides: Sequence[int]) -> dict[str, int]:
    """The mesh over a slice of so many chips along each side.

    Raises:
      ValueError: the one that was asked for has another number.
    """
    chips = math.prod(sides)
    if self.mesh is not None:
      if math.prod(self.mesh) != chips:
        raise ValueError(
          f"strategy {self}: {self.mesh[0]} x {self.mesh[1]} is"
          f" {math.prod(self.mesh)} chips, and the slice has {chips}"
        )
      return {DATA: self.mesh[0], MODEL: self.mesh[1]}
    data = 1
    if self.target == "replicated":
      data = chips
    elif self.target in ("tensor2d", "fsdp"):
      # The squarest whose axes are whole sides of the slice: what the two carry
      # is least where they are alike.
      data = max(n for n in _products(sides) if n * n <= chips)
    return {DATA: data, MODEL: chips // data}


def _products(sides: Sequence[int]) -> set[int]:
  """What some of the sides make together."""
  found = {1}
  for side in sides:
    found |= {one * side for one in found}
  return found


def parse(text: str) -> Strategy:
  """A strategy as it is written on a command line.

  Args:
    text: TARGET[/DRAFT][+rows|+sequence][@DATAxMODEL].

  Raises:
    ValueError: names --strategies, the text and what would be right.
  """
  found = _TEXT.fullmatch(text.strip())
  if found is None:
    raise ValueError(
      f"--strategies: {text.strip()!r} is none; give TARGET, or as many of"
      " TARGET/DRAFT+CACHES@DATAxMODEL as differ, as in tensor,"
      " tensor/replicated, tensor+rows or tensor2d@4x4"
    )
  target, draft, caches, data, model = found.groups()
  for name in filter(None, (target, draft)):
    if name not in rules.STRATEGIES:
      raise ValueError(
        f"--strategies: there is no strategy {name!r}; there are"
        f" {', '.join(rules.STRATEGIES)}"
      )
  if caches is not None and caches not in rules.CACHES:
    raise ValueError(
      f"--strategies: caches are not split by {caches!r}; give one of"
      f" {', '.join(rules.CACHES)}"
    )
  return Strategy(
    target=target,
    draft=draft or target,
    caches=caches or "heads",
    mesh=(int(data), int(model)) if data else None,
  )
