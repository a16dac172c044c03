"""Where the arrays of a batch's rows lie on a mesh, and moving rows there.

XLA gathers an array that is sliced at a traced row along a split axis: a whole
cache, for the sake of one row. So rows are taken and put back by hand
(`shard_map`), each device those that it has.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from specjax.cache import KVCache, is_cache
from specjax.sharding import axes
from specjax.sharding.placement import Placement
from specjax.types import Array

STACK = (
  axes.LAYERS, axes.ROWS, axes.KV_HEADS, axes.CACHE_POSITIONS, axes.HEAD_DIM
)  # fmt: skip


def by_rows(tree: Any, placement: Placement) -> Any:
  """Shardings of a state tree: KVCaches by their rules, the rest by rows.

  Args:
    tree: arrays or their shapes, with rows on axis 0 (or KVCaches).
    placement: whose rules.
  """
  stack = placement.sharding(STACK, cache=True)

  def place(node):
    if is_cache(node):
      return KVCache(k=stack, v=stack, length=place(node.length))
    return placement.sharding((axes.ROWS, *[None] * (node.ndim - 1)))

  return jax.tree.map(place, tree, is_leaf=is_cache)


def row_ways(tree: Any, shardings: Any) -> int:
  """Into how many groups of rows a tree falls, each on devices of its own."""
  _, found = _parts(tree, shardings)
  return math.lcm(1, *(ways for _, _, ways in found))


def take_rows(tree: Any, rows: Array, shardings: Any) -> Any:
  """One row of each group, as a tree with B = groups.

  Args:
    tree: a state tree; see `by_rows`.
    rows: int32 [groups], which row of its group; see `row_ways`.
    shardings: of the tree.
  """
  leaves, parts = _parts(tree, shardings)

  def local(rows, leaves):
    taken = []
    for leaf, (axis, over, ways) in zip(leaves, parts, strict=True):
      places = _places(rows, leaf.shape[axis], over, ways)
      pieces = [lax.dynamic_slice_in_dim(leaf, at, 1, axis) for at in places]
      taken.append(jnp.concatenate(pieces, axis))
    return taken

  return _run(local, tree, shardings, (rows, leaves))


def put_rows(tree: Any, rows: Array, sub: Any, shardings: Any) -> Any:
  """Writes back what `take_rows` took; returns the tree."""
  leaves, parts = _parts(tree, shardings)

  def local(rows, leaves, new):
    put = []
    for leaf, one, (axis, over, ways) in zip(leaves, new, parts, strict=True):
      places = _places(rows, leaf.shape[axis], over, ways)
      for index, at in enumerate(places):
        row = lax.slice_in_dim(one, index, index + 1, axis=axis)
        leaf = lax.dynamic_update_slice_in_dim(leaf, row, at, axis)
      put.append(leaf)
    return put

  return _run(local, tree, shardings, (rows, leaves, jax.tree.leaves(sub)))


def copy_row(tree: Any, source: Array, target: Array, shardings: Any) -> Any:
  """Row `target` becomes as row `source`, wherever the two lie."""
  leaves, parts = _parts(tree, shardings)

  def local(source, target, leaves):
    return [
      _copied(leaf, source, target, axis, over)
      for leaf, (axis, over, _) in zip(leaves, parts, strict=True)
    ]

  return _run(local, tree, shardings, (source, target, leaves))


def _copied(leaf, source, target, axis, over):
  size = leaf.shape[axis]
  first = lax.axis_index(over) * size if over else 0

  def mine(row):
    return (row >= first) & (row < first + size), jnp.clip(
      row - first, 0, size - 1
    )

  has, at = mine(source)
  row = lax.dynamic_slice_in_dim(leaf, at, 1, axis)
  if over:
    # All but one add zeros; booleans have no sum.
    wide = row.astype(jnp.int32) if row.dtype == bool else row
    wide = jnp.where(has, wide, jnp.zeros((), wide.dtype))
    row = lax.psum(wide, over).astype(row.dtype)
  wants, at = mine(target)
  old = lax.dynamic_slice_in_dim(leaf, at, 1, axis)
  row = jnp.where(wants, row, old)
  return lax.dynamic_update_slice_in_dim(leaf, row, at, axis)


def _places(rows, size, over, ways):
  """Where the wanted rows lie in this device's part of `size` rows.

  `ways` parts make up the groups of `rows`, several of which may lie here.
  """
  here = rows.shape[0] // ways
  first = lax.axis_index(over) * here if over else 0
  each = size // here
  return [rows[first + n] + n * each for n in range(here)]


def _parts(tree, shardings):
  """Leaves of a tree; of each its row axis, over what it is split, and how."""
  numbers = jax.tree.map(
    lambda node: KVCache(k=1, v=1, length=0) if is_cache(node) else 0,
    tree,
    is_leaf=is_cache,
  )
  found = []
  for axis, sharding in zip(
    jax.tree.leaves(numbers), jax.tree.leaves(shardings), strict=True
  ):
    over = sharding.spec[axis] or ()
    over = (over,) if isinstance(over, str) else tuple(over)
    ways = math.prod(sharding.mesh.shape[name] for name in over)
    found.append((axis, over, ways))
  return jax.tree.leaves(tree), found


def _run(local, tree, shardings, args):
  """Runs `local` on each device's part; the last arguments are leaves."""
  places = jax.tree.leaves(shardings)
  specs = [sharding.spec for sharding in places]
  return jax.tree.unflatten(
    jax.tree.structure(tree),
    jax.shard_map(
      local,
      mesh=places[0].mesh,
      in_specs=tuple(
        specs if isinstance(one, list) else PartitionSpec() for one in args
      ),
      out_specs=specs,
      check_vma=False,
    )(*args),
  )
