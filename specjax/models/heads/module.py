"""What all heads share: a module of shapes, split once into flat parameters."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from specjax.models import placed
from specjax.models.config import DecoderConfig
from specjax.models.layers import Linear, rope_frequencies
from specjax.models.product import product as whole_product
from specjax.sharding import axes
from specjax.sharding.placement import Placement, constrain, put
from specjax.sharding.rules import Rules
from specjax.types import Array, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
  """A module of shapes, and how flat parameters become it again.

  Attributes:
    paths: dotted name of every parameter, in the order of the parameters.
    shapes: `jax.ShapeDtypeStruct` of every parameter, in that order.
    axes: logical axes of every parameter, in that order.
    starts: how `init` fills every parameter: "normal" (of deviation
      1 / sqrt(in)), "zeros" or "ones".
    placement: of the target, over whose devices the parameters are copied: a
      head is small. None without a mesh.
  """

  paths: tuple[str, ...]
  shapes: tuple[jax.ShapeDtypeStruct, ...]
  axes: tuple[tuple[str, ...], ...]
  starts: tuple[str, ...]
  _graph: Any = dataclasses.field(repr=False)
  _tree: Any = dataclasses.field(repr=False)
  placement: Placement | None = None

  @property
  def parameter_count(self) -> int:
    """Numbers in all parameters together."""
    return sum(math.prod(shape.shape) for shape in self.shapes)

  @property
  def shardings(self) -> tuple[NamedSharding, ...] | None:
    """Where every parameter lies: whole on each device; None with no mesh."""
    if self.placement is None:
      return None
    return (self.placement.whole,) * len(self.shapes)

  def init(self, seed: int) -> Params:
    """Random parameters; see `starts`."""
    draws = np.random.default_rng(seed)

    def one(path, spec, start):
      if start != "normal":
        return np.full(spec.shape, float(start == "ones"), spec.dtype)
      last = 2 if path.endswith(".o.weight") else 1
      width = math.prod(spec.shape[-last:])
      value = draws.standard_normal(spec.shape, np.float32)
      return (value / math.sqrt(width)).astype(spec.dtype)

    over = zip(self.paths, self.shapes, self.starts, strict=True)
    made = tuple(one(*each) for each in over)
    if self.placement is None:
      return tuple(map(jnp.asarray, made))
    return put(made, self.shardings)

  def merge(self, params: Params) -> Any:
    """The module with these parameters, traced or not."""
    state = jax.tree.unflatten(self._tree, params)
    return nnx.merge(self._graph, state)


def split(module: nnx.Module, placement: Placement | None = None) -> Head:
  """Splits a module whose parameters are `models.layers.param`s.

  A parameter begins as "ones" where its path ends in "norm.weight" ("zeros" in
  a norm that adds one), as "zeros" where it ends in ".bias", and else as
  "normal"; metadata `start` beside its `axes` says otherwise:
  `nnx.Param(jax.ShapeDtypeStruct(shape, dtype), axes=names, start="zeros")`.
  """
  graph, state = nnx.split(module)
  shapes, tree = jax.tree.flatten(state)
  flat = list(nnx.to_flat_state(state))
  assert len(flat) == len(shapes)
  norms = {
    f"{'.'.join(map(str, path))}.weight"
    for path, node in nnx.iter_graph(module)
    if getattr(node, "plus_one", False)
  }

  def start(path, variable):
    given = variable.get_metadata().get("start")
    if given is not None:
      return given
    if path.endswith(".bias") or path in norms:
      return "zeros"
    return "ones" if path.endswith("norm.weight") else "normal"

  paths = tuple(".".join(map(str, path)) for path, _ in flat)
  return Head(
    paths=paths,
    shapes=tuple(shapes),
    axes=tuple(variable.get_metadata()["axes"] for _, variable in flat),
    starts=tuple(
      start(path, variable)
      for path, (_, variable) in zip(paths, flat, strict=True)
    ),
    _graph=graph,
    _tree=tree,
    placement=placement,
  )


def rotation(
  config: DecoderConfig, positions: Array, placement: Placement | None = None
) -> tuple[Array, Array]:
  """(cos, sin) [B, T, 1, H / 2] of int32 positions [B, T]; see `rotate`."""
  turn = rope_frequencies(
    config.head_dim, config.rope_theta, config.rope_scaling
  )
  angles = positions[..., None].astype(jnp.float32) * turn
  both = (jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None])
  names = (axes.ROWS, None, None, None)
  cos, sin = (constrain(placement, one, names) for one in both)
  return cos, sin


def by_rows(placement: Placement | None) -> Placement | None:
  """Where a head works beside a target with this placement, or None.

  Whole on every device, its rows and its cache split as the target's rows are:
  a head is small, and a sum over devices in each draft would cost more than
  the weights it saves.
  """
  if placement is None:
    return None
  over = {axes.ROWS: placement.over(axes.ROWS)}
  return Placement(
    placement.mesh,
    Rules(name="head", parameters={}, arrays=over, caches=over),
  )


def product(
  placement: Placement | None, x: Array, weight: Array | Linear
) -> Array:
  """float32 logits [B, T, Vd] of x [B, T, D] and a head [Vd, D].

  Unlike a Linear's output they are not rounded to x's dtype.
  """
  table = weight.weight[...] if isinstance(weight, Linear) else weight
  if placement is None:
    return whole_product(x, table)
  return placed.product(x, table)
