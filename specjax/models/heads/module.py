"""What all heads share: a module of shapes, split once into flat parameters."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding

from specjax.models import placed
from specjax.models.config import DecoderConfig
from specjax.models.module import drawn, start_of
from specjax.models.product import product as whole_product
from specjax.sharding import axes
from specjax.sharding.placement import Placement, put
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
    placement: see `beside`; None without a mesh.
  """

  paths: tuple[str, ...]
  shapes: tuple[jax.ShapeDtypeStruct, ...]
  axes: tuple[tuple[str, ...], ...]
  starts: tuple[str, ...]
  _graph: Any = dataclasses.field(repr=False)
  _tree: Any = dataclasses.field(repr=False)
  placement: Placement | None = None

  @property
  def shardings(self) -> tuple[NamedSharding, ...] | None:
    """Where every parameter lies; None with no mesh."""
    if self.placement is None:
      return None
    place = functools.partial(self.placement.sharding, parameter=True)
    return tuple(map(place, self.axes))

  def init(self, seed: int) -> Params:
    """Random parameters; see `starts`."""
    made = tuple(drawn(self.paths, self.shapes, self.starts, seed))
    if self.placement is None:
      return tuple(map(jnp.asarray, made))
    return put(made, self.shardings)

  def merge(self, params: Params) -> Any:
    """The module with these parameters, traced or not."""
    state = jax.tree.unflatten(self._tree, params)
    return nnx.merge(self._graph, state)


def split(module: nnx.Module, placement: Placement | None = None) -> Head:
  """Splits a module whose parameters are `models.layers.param`s.

  How a parameter begins its path says (`start_of`), or metadata `start` beside
  its `axes`:
  `nnx.Param(jax.ShapeDtypeStruct(shape, dtype), axes=names, start="zeros")`.
  """
  graph, state = nnx.split(module)
  shapes, tree = jax.tree.flatten(state)
  flat = list(nnx.to_flat_state(state))
  assert len(flat) == len(shapes)
  adding = {
    f"{'.'.join(map(str, path))}.weight"
    for path, node in nnx.iter_graph(module)
    if getattr(node, "plus_one", False)
  }

  def start(path, variable):
    given = variable.get_metadata().get("start")
    return given or start_of(path, plus_one=path in adding)

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


def beside(
  placement: Placement | None,
  layer: DecoderConfig | None = None,
  *,
  by_vocab: bool = False,
) -> Placement | None:
  """Where a head works beside a target with this placement, or None.

  Its rows are split as the target's are, and so are the heads and the MLP of
  its layer: to read the rest of the weights would take longer than the sums do
  (specjax-lab, EAGLE-1 for 70B on v4:2x2x4, one row: 18.7 GB of traffic a chip
  and step if it is whole on each, 9.8 split). What else it has is whole.

  Args:
    placement: the target's.
    layer: of the head, if it has one; what does not divide is not split.
    by_vocab: whether a table of ids of its own rests as the target's does.
  """
  if placement is None:
    return None
  groups = []
  if layer is not None:
    heads = {axes.HEADS: layer.heads, axes.KV_HEADS: layer.kv_heads}
    groups = [heads, {axes.MLP: layer.d_ff}]
  split = {}
  for sizes in groups:
    if all(size % placement.ways(name) == 0 for name, size in sizes.items()):
      split |= {name: placement.over(name) for name in sizes}
  rows = {axes.ROWS: placement.over(axes.ROWS)}
  vocab = {axes.VOCAB: placement.over(axes.VOCAB)} if by_vocab else {}
  rules = Rules(name="head", parameters=split | vocab, arrays=rows | split)
  return Placement(placement.mesh, rules)


def product(placement: Placement | None, x: Array, table: Array) -> Array:
  """float32 logits [B, T, Vd] of x [B, T, D] and a table of ids [Vd, D].

  Unlike a Linear's output they are not rounded to x's dtype.
  """
  return (whole_product if placement is None else placed.product)(x, table)
