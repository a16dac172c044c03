"""The key/value cache: a plain pytree, written at `length`, moved by commit.

Rollback is free: a pass writes keys and values at `length + t` and leaves
`length` where it is; `commit` moves it over what was accepted. Entries beyond
`length` are masked by absolute position and overwritten later, never erased.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from specjax.models import cpu_kernel
from specjax.types import Array, struct

# Attention walks the cache in blocks of this many positions, so that its cost
# follows the live length; capacities are rounded up to a whole block.
BLOCK = 128
_UNROLLED = 64  # rows of one device
_LANES = 128  # of a TPU's registers
_FEW = 2**18  # numbers that one thread packs


def storage_dtype(dtype, platform: str | None = None) -> jnp.dtype:
  """The dtype in which keys and values of `dtype` are stored.

  XLA's CPU backend has no bfloat16 arithmetic: it rewrites every bfloat16
  array that a loop slices, here the whole cache, to float32 on each call
  (measured at 8 rows x 512: 135 ms against 14). Stored as the same bits in
  uint16, nothing is rewritten.

  Args:
    dtype: float32 or bfloat16.
    platform: of the devices that will hold them; the default one unless given.
  """
  dtype = jnp.dtype(dtype)
  platform = platform or jax.default_backend()
  if dtype == jnp.bfloat16 and platform == "cpu":
    return jnp.dtype(jnp.uint16)
  return dtype


def pack(values: Array, dtype) -> Array:
  """Values as the cache stores them (see `storage_dtype`)."""
  if dtype == jnp.uint16:
    return lax.bitcast_convert_type(values.astype(jnp.bfloat16), jnp.uint16)
  return values.astype(dtype)


def _stored(k: Array, v: Array, dtype) -> tuple[Array, Array]:
  """A block [B, T, K, H] as `KVCache.write` keeps it: [B, K, T, H]."""

  def plain(k, v):
    good = jnp.all(jnp.isfinite(v), axis=-1, keepdims=True)
    k = jnp.where(good, k, jnp.array(jnp.nan, k.dtype))
    v = jnp.where(good, v, jnp.zeros((), v.dtype))
    return tuple(pack(x.swapaxes(1, 2), dtype) for x in (k, v))

  # A single token XLA writes where it is made.
  suits = k.shape[1] > 1 and 0 < k.size <= _FEW and k.dtype == v.dtype
  suits &= storage_dtype(k.dtype, "cpu") == dtype
  kernel = cpu_kernel.find() if suits else None
  if kernel is None:
    return plain(k, v)
  special = functools.partial(cpu_kernel.pack, kernel, dtype)
  return lax.platform_dependent(k, v, cpu=special, default=plain)


def unpack(stored: Array) -> Array:
  """Stored keys or values, ready for a product."""
  if stored.dtype == jnp.uint16:
    wide = stored.astype(jnp.uint32) << 16
    return lax.bitcast_convert_type(wide, jnp.float32)
  return stored


def write_unrolled(stack: Array, block: Array, length: Array, layer) -> Array:
  """Writes a block [B, K, T, H] into a stack [L, B, K, S, H].

  On TPU each row's update is in place. Rows at once (a vmap) are a scatter, for
  which XLA brings the whole stack into another layout and back on every step
  (specjax-lab, 70B + 4B at 8 rows: 46 GB of traffic a chip and 3.3 GB of
  temporary memory against 13.4 GB and 9 MB). A loop over rows does the same to
  a draft's cache, but so many rows would take minutes to compile.
  """
  if block.shape[0] > _UNROLLED:
    return write_by_row(stack, block, length, layer)
  for row in range(block.shape[0]):
    new = block[row][None, None]
    at = (layer, row, 0, length[row], 0)
    stack = lax.dynamic_update_slice(stack, new, at)
  return stack


def write_by_row(stack: Array, block: Array, length: Array, layer) -> Array:
  """The same as a loop over rows.

  On CPU an unrolled one takes half a minute to compile at 8 rows, and rows at
  once become a scatter that copies the whole stack.
  """

  def one(row, stack):
    new = lax.dynamic_slice_in_dim(block, row, 1)[None]
    return lax.dynamic_update_slice(stack, new, (layer, row, 0, length[row], 0))

  if block.shape[0] == 1:
    return one(0, stack)
  return lax.fori_loop(0, block.shape[0], one, stack)


def write_part(stack: Array, block: Array, length: Array, layer) -> Array:
  """Writes what of a block falls into this part of the positions.

  The stack [L, B, K, S, H] is one of several that make up the capacity, and
  `length` counts from where it begins: it may be negative, or beyond S.
  """
  size = stack.shape[3]

  def put(stack, row, new, at):
    """The stack with new [K, t, H], t <= S, at `at` of a row."""
    width = new.shape[1]
    start = jnp.clip(at, 0, size - width)
    own = start - at + jnp.arange(width, dtype=jnp.int32)
    here = (layer, row, 0, start, 0)
    old = lax.dynamic_slice(stack, here, (1, 1, *new.shape))
    new = jnp.take(new, jnp.clip(own, 0, width - 1), axis=1)
    falls = ((own >= 0) & (own < width))[:, None]
    return lax.dynamic_update_slice(stack, jnp.where(falls, new, old), here)

  def one(row, stack):
    new = lax.dynamic_index_in_dim(block, row, keepdims=False)
    for first in range(0, new.shape[1], size):
      part = new[:, first : first + size]
      stack = put(stack, row, part, length[row] + first)
    return stack

  def loop(stack):
    return lax.fori_loop(0, block.shape[0], one, stack)

  def unrolled(stack):  # See `write_unrolled`.
    if block.shape[0] > _UNROLLED:
      return loop(stack)
    for row in range(block.shape[0]):
      stack = one(row, stack)
    # Left alone, XLA lays the stack out by positions first, which this reads
    # sooner, and brings it there and back on every step (specjax-lab, 70B at 16
    # rows on v4:2x2x4: 95 GB of traffic a chip and 12 GB of temporary memory).
    return at_rest(stack)

  return lax.platform_dependent(stack, cpu=loop, default=unrolled)


def at_rest(stack: Array) -> Array:
  """Layers of a stack [L, B, K, S, H], laid out as a TPU's programs take them.

  Where heads fill no lanes, positions do. Left alone, XLA lays the stack out by
  heads for its loop over layers, in twice the room, and brings it there and
  back on every step (specjax-lab, T5-XXL with heads of 64 on v4:1x1x1, plainly:
  15.0 GB of traffic and 1 GB of temporary memory against 11.6 GB and 2 MB).
  """
  order = list(range(stack.ndim))
  if stack.shape[-1] % _LANES:
    order[-2:] = reversed(order[-2:])
  return with_layout_constraint(stack, Layout(tuple(order)))


@struct
class KVCache:
  """Keys and values of every layer.

  Attributes:
    k: [L, B, K, S, H] keys, in storage dtype.
    v: [L, B, K, S, H] values, in storage dtype.
    length: int32 [B], committed positions of each row.
  """

  k: Array
  v: Array
  length: Array

  @classmethod
  def zeros(
    cls,
    *,
    layers,
    rows,
    heads,
    capacity,
    head_dim,
    dtype,
    parts: int = 1,
    platform: str | None = None,
  ):
    """An empty cache; capacity is rounded up to whole attention blocks.

    So is each of the `parts` that its positions are split into. `platform` is
    as `storage_dtype` takes it.
    """
    whole = BLOCK * parts
    capacity = -(-capacity // whole) * whole
    shape = (layers, rows, heads, capacity, head_dim)
    dtype = storage_dtype(dtype, platform)
    return cls(
      k=jnp.zeros(shape, dtype),
      v=jnp.zeros(shape, dtype),
      length=jnp.zeros((rows,), jnp.int32),
    )

  @property
  def capacity(self) -> int:
    """S, positions per row."""
    return self.k.shape[3]

  def slots(self, width: int) -> Array:
    """Where a block's tokens are written: int32 [B, T]."""
    return self.length[:, None] + jnp.arange(width, dtype=jnp.int32)

  def write(self, layer, k: Array, v: Array, part: bool = False) -> "KVCache":
    """Writes a block at each row's length, without moving the length.

    `dynamic_update_slice` clamps a block that would run past the end and so
    corrupts earlier slots: the owner keeps headroom for the widest pass.

    A value that is not finite is kept as zeros under a key of NaN. A mask
    hides a key's score, whatever it is, but not a value: 0 x NaN is NaN, in
    this request and in the next one of the slot. Whoever may see the position
    still gets NaN.

    Args:
      layer: layer index, static or traced.
      k: [B, T, K, H] keys.
      v: [B, T, K, H] values.
      part: whether these are some of the positions only; see `write_part`.
    """
    k, v = _stored(k, v, self.k.dtype)

    def put(stack, block):
      if part:
        return write_part(stack, block, self.length, jnp.int32(layer))
      return lax.platform_dependent(
        stack,
        block,
        self.length,
        jnp.int32(layer),
        cpu=write_by_row,
        default=write_unrolled,
      )

    return dataclasses.replace(self, k=put(self.k, k), v=put(self.v, v))

  def move(self, source: Array, to: Array, over=()) -> "KVCache":
    """Copies the entries of one position of each row to another one.

    Row by row, as a block is written: rows at once would be a scatter.

    Args:
      source, to: int32 [B]; a row for which they are the same stays as it is.
      over: axes of the mesh that positions are split over, in a `shard_map`:
        this is one device's part, from whose beginning both count.
    """

    def one(row, stack):
      layers, _, heads, size, depth = stack.shape
      shape = (layers, 1, heads, 1, depth)
      at = lambda place: (0, row, 0, jnp.clip(place, 0, size - 1), 0)
      value = lax.dynamic_slice(stack, at(source[row]), shape)
      if over:
        has = (source[row] >= 0) & (source[row] < size)
        value = lax.psum(
          jnp.where(has, value, jnp.zeros((), value.dtype)), over
        )
        takes = (to[row] >= 0) & (to[row] < size)
        old = lax.dynamic_slice(stack, at(to[row]), shape)
        value = jnp.where(takes, value, old)
      return lax.dynamic_update_slice(stack, value, at(to[row]))

    def put(stack):
      rows = stack.shape[1]
      if rows == 1:
        return one(0, stack)
      loop = lambda stack: lax.fori_loop(0, rows, one, stack)

      def unrolled(stack):
        if rows > _UNROLLED:
          return loop(stack)
        for row in range(rows):
          stack = one(row, stack)
        return stack

      return lax.platform_dependent(stack, cpu=loop, default=unrolled)

    return dataclasses.replace(self, k=put(self.k), v=put(self.v))

  def commit(self, count: Array) -> "KVCache":
    """Moves each row's length over `count` int32 [B] accepted positions."""
    return dataclasses.replace(self, length=self.length + count)

  def at(self, length: Array) -> "KVCache":
    """The same entries, seen from another length, int32 [B]."""
    return dataclasses.replace(self, length=length)


@struct
class SourceCache:
  """What a decoder beside an encoder keeps: of the output and of the source.

  Attributes:
    own: keys and values of the output so far, start token included.
    source: keys and values of the encoded source, made once a request; its
      length is the source's, and no step moves it.
  """

  own: KVCache
  source: KVCache

  @property
  def length(self) -> Array:
    """Int32 [B], committed positions of the output."""
    return self.own.length

  @property
  def capacity(self) -> int:
    """S, positions of the output per row."""
    return self.own.capacity

  def commit(self, count: Array) -> "SourceCache":
    """See `KVCache`."""
    return dataclasses.replace(self, own=self.own.commit(count))

  def at(self, length: Array) -> "SourceCache":
    """See `KVCache`."""
    return dataclasses.replace(self, own=self.own.at(length))


@struct
class Encoded:
  """A source as its encoder leaves it, in a cache's place: for whole outputs.

  What training reads an output with: nothing is kept for a token that comes
  later. Several sources may stand in a row, one behind the other.

  Attributes:
    states: [B, S, D].
    text: int32 [B, S], which of the row's texts a token of the source belongs
      to: 1, 2, …, and 0 for padding.
    asking: int32 [B, T], the same of the output's tokens: each sees the source
      of its own text alone.
  """

  states: Array
  text: Array
  asking: Array

  @property
  def own(self) -> None:
    """The output's cache: there is none."""
    return None

  @property
  def source(self) -> "Encoded":
    """What a layer's attention over the source reads: this."""
    return self


def is_cache(node) -> bool:
  """Whether a node of a state tree is a KVCache."""
  return isinstance(node, KVCache)


def caches(tree) -> list[KVCache]:
  """All caches in a tree of state, or of its shardings."""
  return list(filter(is_cache, jax.tree.leaves(tree, is_leaf=is_cache)))


def stacks(tree) -> list[Array]:
  """Their keys and values [L, B, K, S, H]."""
  return [stack for one in caches(tree) for stack in (one.k, one.v)]


def take_row(tree, row):
  """One row of a state tree, as a tree with B = 1.

  Leaves have their rows on axis 0, except a KVCache's stacks (axis 1).
  """

  def take(node):
    one = lambda leaf, axis: lax.dynamic_slice_in_dim(leaf, row, 1, axis)
    if is_cache(node):
      return KVCache(
        k=one(node.k, 1), v=one(node.v, 1), length=one(node.length, 0)
      )
    return one(node, 0)

  return jax.tree.map(take, tree, is_leaf=is_cache)


def put_row(tree, row, sub):
  """Writes `sub`, a tree with B = 1, back as row `row` of `tree`."""

  def put(node, new):
    one = lambda leaf, value, axis: lax.dynamic_update_slice_in_dim(
      leaf, value, row, axis
    )
    if is_cache(node):
      return KVCache(
        k=one(node.k, new.k, 1),
        v=one(node.v, new.v, 1),
        length=one(node.length, new.length, 0),
      )
    return one(node, new, 0)

  return jax.tree.map(put, tree, sub, is_leaf=is_cache)


def reset_rows(tree, rows: Array):
  """Empties rows for new requests.

  Args:
    tree: a state tree, as for `take_row`.
    rows: bool [B], the rows to empty. Of a KVCache only the length is set to
      0: old entries are masked.
  """

  def clear(leaf):
    mask = rows.reshape(-1, *[1] * (leaf.ndim - 1))
    return jnp.where(mask, jnp.zeros((), leaf.dtype), leaf)

  def reset(node):
    return node.at(clear(node.length)) if is_cache(node) else clear(node)

  return jax.tree.map(reset, tree, is_leaf=is_cache)
