"""Products and attention of a model that is split over a mesh.

Products are left to XLA, which splits them as their operands are. Attention is
split by hand (`shard_map`): each device writes to and walks its own part of
the cache, to its own longest row. XLA would ask all devices for that length,
in every layer, and gather a cache that is written at a traced position.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from specjax.cache import KVCache
from specjax.models.attend import attend
from specjax.models.product import precision_of
from specjax.sharding import axes
from specjax.sharding.placement import Placement
from specjax.types import Array

QUERIES = (axes.ROWS, None, axes.HEADS, None)
KEYS = (axes.ROWS, None, axes.KV_HEADS, None)
STACK = (axes.LAYERS, axes.ROWS, axes.KV_HEADS, axes.CACHE_POSITIONS, None)


def product(x: Array, weight: Array, *, dtype=jnp.float32, fold=1) -> Array:
  """x [..., in] times weight [out..., in] -> [..., out...] of a dtype.

  `fold` axes of each are the input's. Which is best depends on the chip: on a
  v5p XLA copied a draft's stack of weights on every step to have them as one
  (specjax-lab, 70B + 4B on v5p:2x2x4 at 8 rows: 0.15 GB of traffic a chip);
  elsewhere it copies it to have them as two (0.08 GB on v4:2x2x4).
  """
  inputs = [tuple(range(one.ndim - fold, one.ndim)) for one in (x, weight)]
  return lax.dot_general(
    x,
    weight,
    (inputs, ((), ())),
    precision=precision_of(x.dtype),
    preferred_element_type=dtype,
  )


def attention(
  placement: Placement,
  q: Array,
  k: Array,
  v: Array,
  cache: KVCache,
  layer,
  positions: Array,
  **how,
) -> tuple[Array, KVCache]:
  """Writes a block into the cache and attends over it.

  Where the cache is split over positions, each device attends to its own and
  the parts are merged (two small all-reduces).

  Args:
    placement: its rules for caches say who does what.
    q: [B, T, N, H].
    k, v: [B, T, K, H].
    cache: before the block.
    layer: layer index, static or traced.
    positions: int32 [B, T], absolute.
    how: see `attend`.

  Returns:
    [B, T, N, H] in q's dtype, and the cache with the block written.
  """
  return _by_hand(placement, q, (k, v), cache, layer, positions, **how)


def reading(
  placement: Placement,
  q: Array,
  cache: KVCache,
  layer,
  positions: Array,
  **how,
) -> Array:
  """`attention` over a cache to which nothing is added: [B, T, N, H]."""
  return _by_hand(placement, q, None, cache, layer, positions, **how)[0]


def written(
  placement: Placement, k: Array, v: Array, cache: KVCache, layer
) -> KVCache:
  """The cache with a block k, v [B, T, K, H] at each row's length."""
  return _by_hand(placement, None, (k, v), cache, layer, cache.length[:, None])[
    1
  ]


def moved(
  placement: Placement, cache: KVCache, source: Array, to: Array
) -> KVCache:
  """`KVCache.move`, of a cache that is split."""
  over = _split_over(placement)
  spec = functools.partial(placement.spec, kind="caches")

  def local(k, v, source, to):
    part = KVCache(k=k, v=v, length=source)
    if over:
      first = lax.axis_index(over) * part.capacity
      source, to = source - first, to - first
    part = part.move(source, to, over)
    return part.k, part.v

  stack, rows = spec(STACK), spec((axes.ROWS,))
  k, v = jax.shard_map(
    local,
    mesh=placement.mesh,
    in_specs=(stack, stack, rows, rows),
    out_specs=(stack, stack),
    check_vma=False,
  )(cache.k, cache.v, source, to)
  return KVCache(k=k, v=v, length=cache.length)


def _split_over(placement) -> tuple[str, ...]:
  """Axes of the mesh that a cache's positions are split over."""
  over = placement.over(axes.CACHE_POSITIONS, "caches")
  return tuple(axis for axis in over if placement.mesh.shape[axis] > 1)


def _by_hand(
  placement, q, new, cache, layer, positions, *, window=None, bias=None, **how
):
  """What each device does with its part of a cache: (mixed, cache).

  Without `q` it only writes, without `new` it only reads.
  """
  over = _split_over(placement)
  spec = functools.partial(placement.spec, kind="caches")
  keys, stack, whole = spec(KEYS), spec(STACK), PartitionSpec()
  rows = (axes.ROWS,)

  def local(q, new, stacks, length, positions, layer, window, bias):
    cache = KVCache(k=stacks[0], v=stacks[1], length=length)
    part = {}
    if over:
      # Positions count from the beginning of this device's part.
      first = lax.axis_index(over) * cache.capacity
      cache, positions = cache.at(length - first), positions - first
      part = dict(over=over)
    if new is not None:
      cache = cache.write(layer, *new, **(dict(part=True) if over else {}))
    mixed = None
    if q is not None:
      if new is not None:
        part |= dict(slots=cache.slots(q.shape[1]))
      mixed = attend(
        *(q, cache, layer, positions),
        **dict(window=window, bias=bias, chip=placement.chip),
        **part,
        **how,
      )
    return mixed, (cache.k, cache.v)

  def turn(x):
    """Between heads and rows in two hops: XLA would gather x in one."""
    heads = placement.over(axes.HEADS)
    rows = placement.over(axes.ROWS, "caches")
    if placement.over(axes.ROWS) == rows:
      return x
    hop = PartitionSpec(
      tuple(axis for axis in rows if axis not in heads), None, heads
    )
    hop = NamedSharding(placement.mesh, hop)
    return lax.with_sharding_constraint(x, hop)

  q, new = jax.tree.map(turn, (q, new))
  # Queries are split as the keys are: a head lies with its key head.
  mixed, (new_k, new_v) = jax.shard_map(
    local,
    mesh=placement.mesh,
    in_specs=(
      *(keys, keys, (stack, stack), spec(rows), spec((*rows, None))),
      *(whole, whole, spec((axes.KV_HEADS, None))),
    ),
    out_specs=(keys, (stack, stack)),
    check_vma=False,
  )(
    *(q, new, (cache.k, cache.v), cache.length, positions),
    *(jnp.int32(layer), window, bias),
  )
  cache = KVCache(k=new_k, v=new_v, length=cache.length)
  return jax.tree.map(turn, mixed), cache
