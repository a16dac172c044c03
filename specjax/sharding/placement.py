"""A placement: rules on a mesh. It says where every array lies."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specjax.sharding import axes
from specjax.sharding.rules import Rules
from specjax.sharding.shape import spell
from specjax.types import Array

Names = Sequence[str | None]
LOGITS = (axes.ROWS, None, axes.VOCAB)
# As jax has called a v5p. Its two cores share no fast memory: what a product
# makes there goes through HBM.
V5P = frozenset({"TPU v5", "TPU v5p"})

# Logical axis -> what messages call what is counted along it.
_CALLED = {
  "embed": "d_model",
  "kv_heads": "kv heads",
  "mlp": "d_ff",
  "vocab": "vocabulary entries",
  "rows": "slots",
}
_LISTED = 8


@dataclasses.dataclass(frozen=True)
class Placement:
  """Rules on a mesh; hashable, so that it can be static in compiled programs.

  Attributes:
    mesh: the devices.
    rules: which logical axis is split over which mesh axes.

  Raises:
    ValueError: the rules name an axis that the mesh lacks.
  """

  mesh: Mesh
  rules: Rules

  def __post_init__(self):
    for kind in ("parameters", "arrays", "caches"):
      for name, over in getattr(self.rules, kind):
        missing = [axis for axis in over if axis not in self.mesh.shape]
        if missing:
          raise ValueError(
            f"strategy {self.rules.name!r}: {kind} split {name} over "
            f"{missing[0]!r}, and --mesh={self} has no such axis"
          )

  def __str__(self):
    real = {name: n for name, n in self.mesh.shape.items() if n > 1}
    return spell(real or self.mesh.shape)

  @property
  def platform(self) -> str | None:
    """What kind of device the mesh has; None where it names none."""
    if not isinstance(self.mesh, Mesh):  # AbstractMesh
      return None
    return self.mesh.devices.flat[0].platform

  @property
  def chip(self) -> str | None:
    """Which one of its kind, as jax names it; None where it names none."""
    if not isinstance(self.mesh, Mesh):
      return None
    return self.mesh.devices.flat[0].device_kind

  def over(self, name: str | None, kind: str = "arrays") -> tuple[str, ...]:
    """The mesh axes that a logical axis is split over; () for none."""
    return dict(getattr(self.rules, kind)).get(name, ())

  @property
  def used(self) -> set[str]:
    """Axes of the mesh that something is split over."""
    kinds = (self.rules.parameters, self.rules.arrays, self.rules.caches)
    return {axis for kind in kinds for _, over in kind for axis in over}

  def ways(self, name: str | None, kind: str = "arrays") -> int:
    """Into how many parts a logical axis is split."""
    return math.prod(self.mesh.shape[axis] for axis in self.over(name, kind))

  def spec(self, names: Names, kind: str = "arrays") -> PartitionSpec:
    """How an array with these logical axes is split.

    Args:
      names: of each dimension, None where it is never split.
      kind: whose rules: "parameters", "arrays" or "caches".

    Raises:
      ValueError: two dimensions would be split over one mesh axis.
    """
    parts = [self.over(name, kind) for name in names]
    taken: dict[str, str | None] = {}
    for name, over in zip(names, parts, strict=True):
      for axis in over:
        if axis in taken:
          raise ValueError(
            f"strategy {self.rules.name!r}: {kind} split both {taken[axis]} "
            f"and {name} over {axis!r}, and there is an array with both; split "
            "one of them over another axis, or not at all"
          )
        taken[axis] = name
    # Axes of size 1 split nothing: without them all specs of one layout agree.
    real = [
      tuple(axis for axis in over if self.mesh.shape[axis] > 1)
      for over in parts
    ]
    return PartitionSpec(
      *(None if not over else over[0] if len(over) == 1 else over
        for over in real)
    )  # fmt: skip

  def sharding(
    self, names: Names, *, parameter: bool = False, cache: bool = False
  ) -> NamedSharding:
    """The same as a sharding, of a parameter, of a cache or of neither."""
    kind = "parameters" if parameter else "caches" if cache else "arrays"
    return NamedSharding(self.mesh, self.spec(names, kind))

  @property
  def whole(self) -> NamedSharding:
    """Of an array that every device has whole."""
    return NamedSharding(self.mesh, PartitionSpec())

  def check(
    self, sizes: Mapping[str, int], who: str, kinds=("parameters", "arrays")
  ) -> None:
    """Refuses sizes that cannot be split as the rules say.

    Args:
      sizes: of logical axes.
      who: what errors call the model.
      kinds: whose rules.

    Raises:
      ValueError: names the size, the mesh axes and what would fit.
    """
    for name, size in sizes.items():
      for kind in kinds:
        over, ways = self.over(name, kind), self.ways(name, kind)
        if size % ways:
          raise ValueError(self._misfit(who, name, size, over, ways))

  def _misfit(self, who, name, size, over, ways) -> str:
    spelled = spell({axis: self.mesh.shape[axis] for axis in over})
    called = _CALLED.get(name, name)
    verb = "do" if called.endswith("s") else "does"
    start = f"{who}: {size} {called}"
    if called.startswith("d_"):
      start = f"{who}: {called} {size}"
    elif size == 1:
      start, verb = start.removesuffix("s"), "does"
    if name == "rows":
      below = size // ways * ways
      fits = [str(n) for n in (below, below + ways) if n]
    else:
      fits = [str(n) for n in range(1, size + 1) if size % n == 0]
      # The largest ones: who asks for many devices has use for many.
      below = [n for n in fits if int(n) < ways]
      fits = below[-_LISTED:] + [n for n in fits if int(n) > ways][:1]
    fit = f"{', '.join(fits[:-1])} or {fits[-1]}" if fits[1:] else fits[0]
    remedy = ""
    if name in ("heads", "kv_heads"):
      remedy = ", or --pad_heads"
    return (
      f"{start} {verb} not divide over {spelled} (strategy "
      f"{self.rules.name!r}); {fit} would{remedy}"
    )

  def constrain(self, x: Array, names: Names, kind: str = "arrays") -> Array:
    """The same array, laid out as the rules say."""
    spec = self.spec(names, kind)
    return lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))


def constrain(
  placement: Placement | None, x: Array, names: Names, kind: str = "arrays"
) -> Array:
  """`Placement.constrain`; x itself where there is no placement."""
  return x if placement is None else placement.constrain(x, names, kind)


def put(values: Any, shardings: Any) -> Any:
  """Host arrays, equal on every process, as arrays laid out as wished."""

  def one(value, sharding):
    return jax.make_array_from_callback(
      value.shape, sharding, lambda index: value[index]
    )

  return jax.tree.map(one, values, shardings)
