"""Rules: which logical axis is split over which axes of the mesh.

One `Rules` says it all for a model, as data that a researcher writes down:

  Rules(
    name="mine",
    parameters={"heads": "model", "mlp": "model", "vocab": "model"},
    arrays={"rows": "data", "heads": "model", "mlp": "model"},
  )

`parameters` says where weights rest, `arrays` where the arithmetic happens: a
weight is brought into the arrays' layout before it is used, which costs nothing
where the two agree and gathers it where they do not (fsdp).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from specjax.sharding import axes
from specjax.sharding.axes import DATA, MODEL

# Logical axis -> mesh axes, as a tuple that can be hashed.
Map = tuple[tuple[str, tuple[str, ...]], ...]

CACHES = ("heads", "rows", "sequence")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
  """See the module's docstring.

  The three maps are given as {logical axis: mesh axis or axes}; what is not
  named is not split.

  Attributes:
    name: what errors call them.
    parameters: of weights, at rest.
    arrays: of activations, logits and the rows' small arrays.
    caches: of keys and values, and of attention over them; unless given, as
      `arrays` has rows and kv_heads.
  """

  name: str
  parameters: Map
  arrays: Map
  caches: Map | None = None

  def __post_init__(self):
    if not isinstance(self.name, str):
      raise ValueError(f"rules: name is {self.name!r}; give a text")
    for field in ("parameters", "arrays", "caches"):
      given = getattr(self, field)
      if field == "caches" and given is None:
        kept = (axes.ROWS, axes.KV_HEADS)
        given = {k: v for k, v in self.arrays if k in kept}
      known = axes.ALL if field == "parameters" else axes.EVERY
      made = _map(f"rules {self.name!r}: {field}", given, known)
      object.__setattr__(self, field, made)

  def with_caches(self, how: str) -> "Rules":
    """The same with caches split otherwise.

    Args:
      how: "heads" leaves them as they are; "rows" splits them over rows alone
        (Pope et al. 2022: queries, keys and values change hands in every
        layer); "sequence" over positions, whose parts of attention are merged.

    Raises:
      ValueError: it is none of them.
    """
    if how not in CACHES:
      raise ValueError(
        f"cache_sharding is {how!r}; give one of {', '.join(CACHES)}"
      )
    if how == "heads":
      return self
    rows = dict(self.arrays).get(axes.ROWS, ())
    caches = {axes.ROWS: (DATA, MODEL)}
    if how == "sequence":
      caches = {axes.ROWS: rows, axes.CACHE_POSITIONS: MODEL}
    name = f"{self.name}, caches by {how}"
    return dataclasses.replace(self, name=name, caches=caches)


def _map(where: str, given: Any, known: frozenset[str]) -> Map:
  """A {logical axis: mesh axes} as a sorted tuple, or a ValueError."""
  try:
    items = dict(given).items()
  except (TypeError, ValueError):
    raise ValueError(
      f"{where} is {given!r}; give {{logical axis: mesh axis}}"
    ) from None
  made = {}
  for name, over in items:
    if name not in known:
      raise ValueError(
        f"{where}: there is no logical axis {name!r}; there are "
        + ", ".join(sorted(known))
      )
    over = () if over is None else (over,) if isinstance(over, str) else over
    if not isinstance(over, (list, tuple)) or not all(
      isinstance(axis, str) for axis in over
    ):
      raise ValueError(
        f"{where}: {name} is {over!r}; give a mesh axis, several, or None"
      )
    if len(set(over)) < len(over):
      raise ValueError(
        f"{where}: {name} is {list(over)!r}; name each mesh axis once"
      )
    if over:
      made[name] = tuple(over)
  return tuple(sorted(made.items()))


_OVER_MODEL = {
  axis: MODEL for axis in (axes.HEADS, axes.KV_HEADS, axes.MLP, axes.VOCAB)
}

STRATEGIES = {
  rules.name: rules
  for rules in (
    # One-dimensional, weights stay (Megatron: Shoeybi et al. 2019).
    Rules(
      name="tensor",
      parameters=_OVER_MODEL,
      arrays={axes.ROWS: DATA, **_OVER_MODEL},
    ),
    # Two-dimensional, weights stay (Pope et al. 2022, section 3.2.2).
    Rules(
      name="tensor2d",
      parameters={axes.EMBED: DATA, **_OVER_MODEL},
      arrays={axes.EMBED: DATA, **_OVER_MODEL},
    ),
    # Weights rest in parts, and are gathered before they are used.
    Rules(
      name="fsdp",
      parameters={axes.EMBED: DATA, **_OVER_MODEL},
      arrays={axes.ROWS: DATA, **_OVER_MODEL},
    ),
    # Weights whole on every device, rows split.
    Rules(name="replicated", parameters={}, arrays={axes.ROWS: DATA}),
  )
}


def find(
  strategy: "str | Rules | Mapping[str, Any]", caches: str | None = None
) -> Rules:
  """The rules that a strategy names or is.

  Args:
    strategy: one of STRATEGIES, Rules, or {parameters, arrays, …} as a config
      has them.
    caches: see `Rules.with_caches`.

  Raises:
    ValueError: names what is wrong and what would be right.
  """
  made = strategy
  if isinstance(strategy, str):
    made = STRATEGIES.get(strategy)
    if made is None:
      raise ValueError(
        f"strategy is {strategy!r}; give one of {', '.join(STRATEGIES)}, or "
        "Rules of your own"
      )
  elif isinstance(strategy, Mapping):
    fields = [field.name for field in dataclasses.fields(Rules)]
    unknown = sorted(set(strategy) - set(fields))
    missing = sorted({"parameters", "arrays"} - set(strategy))
    if unknown or missing:
      raise ValueError(
        f"strategy: {'unknown' if unknown else 'missing'} "
        f"{', '.join(map(repr, unknown or missing))}; give parameters and "
        "arrays, and caches or a name if wished"
      )
    made = Rules(**{"name": "custom", **strategy})
  elif not isinstance(strategy, Rules):
    raise ValueError(
      f"strategy is {strategy!r}; give a name, Rules or a mapping"
    )
  return made if caches is None else made.with_caches(caches)
