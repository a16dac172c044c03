"""Attention over a cache as one TPU kernel: scores and sums stay on the chip.

What XLA makes of `attend` on a v5p goes through HBM: a chip is two cores that
share no fast memory, and all that a product makes is put where both find it.
The kernel gives each core rows (or heads) of its own, and reads their live keys
and values once (specjax-lab, 70B + 4B on v5p:2x2x4 at 8 rows: 0.55 GB of
traffic a chip less, of 14.9). On other chips scores and sums are in fast memory
as it is, so XLA may go on arranging its own operations there: see `suits`.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from specjax.cache import KVCache
from specjax.models.attend import MASKED, TPU_BLOCK
from specjax.models.product import precision_of
from specjax.sharding.placement import V5P
from specjax.types import Array

NAME = "cached_attention"  # its scope, by which the lab knows it
_WIDEST = 16  # queries of a row: a step's block, not a chunk of a prompt
_LANES = 128
_ROOM = 8 * 2**20  # bytes of two blocks of keys and values, of 16 MB


def suits(chip: str | None, q: Array, cache: KVCache) -> bool:
  """Whether the kernel is to be used, and can be.

  Args:
    chip: as jax names it; None where nobody knows.
    q: [B, T, N, H]. cache: what they ask; both of one device.
  """
  _, width, _, size = q.shape
  _, _, kv_heads, capacity, _ = cache.k.shape
  block = min(TPU_BLOCK, capacity)
  room = 4 * kv_heads * block * size * q.dtype.itemsize
  return (
    chip in V5P
    and q.size > 0
    and q.dtype == cache.k.dtype
    and width <= _WIDEST
    and size % _LANES == 0
    and room <= _ROOM
  )


def attend(
  q: Array,
  cache: KVCache,
  layer,
  positions: Array,
  slots: Array,
  window,
  *,
  scale: float,
  softcap: float | None,
  interpret: bool = False,
) -> Array:
  """As `models.attend.attend`, which says what the arguments are.

  Each row walks its own live blocks, from where its window begins. What lies
  behind its last query is never looked at, whatever it is.

  Args:
    window: int32 scalar; 0 is all.
    interpret: run it in JAX's own terms, on whatever device.
  """
  rows, width, heads, size = q.shape
  _, _, kv_heads, capacity, _ = cache.k.shape
  group, block = heads // kv_heads, min(TPU_BLOCK, capacity)
  asked = group * width
  queries = q.reshape(rows, width, kv_heads, group, size)
  queries = queries.transpose(0, 2, 3, 1, 4)  # B K G T H
  queries = queries.reshape(rows, kv_heads, asked, size)
  # Rows are shared out among the cores. An odd number of them is not, but
  # halves of their heads are.
  halves = 2 if rows % 2 and kv_heads % 2 == 0 else 1
  some = kv_heads // halves
  reach = jnp.where(window > 0, window, capacity)
  oldest = jnp.maximum(jnp.min(positions, axis=1) - reach + 1, 0)
  newest = jnp.max(jnp.maximum(positions, slots), axis=1)
  first, last = oldest // block, newest // block
  # Per row: where its walk begins and ends.
  numbers = (jnp.int32(layer).reshape(1), reach.reshape(1), first, last)

  def asking(one, index, *numbers):
    return one // halves, one % halves, 0, 0

  def part(one, index, layer, reach, first, last, *_):
    row = one // halves
    # The one before again, which is not read again, where a row has no more.
    at = jnp.minimum(first[row] + index, last[row])
    return layer[0], row, one % halves, at, 0

  own = pl.BlockSpec((1, some, asked, size), asking)
  keys = pl.BlockSpec((1, 1, some, block, size), part)
  sums = [(some, asked, 1), (some, asked, 1), (some, asked, size)]
  call = pl.pallas_call(
    functools.partial(
      _walk,
      halves=halves,
      scale=scale,
      softcap=softcap,
      precision=precision_of(q.dtype),
    ),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=6,
      grid=(rows * halves, jnp.max(last - first) + 1),
      in_specs=[own, keys, keys],
      out_specs=own,
      scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in sums],
    ),
    out_shape=jax.ShapeDtypeStruct(queries.shape, q.dtype),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "arbitrary")
    ),
    interpret=interpret,
    name=NAME,
  )
  with jax.named_scope(NAME):
    mixed = call(*numbers, positions, slots, queries, cache.k, cache.v)
  mixed = mixed.reshape(rows, kv_heads, group, width, size)
  return mixed.transpose(0, 3, 1, 2, 4).reshape(q.shape)


def _walk(
  layer,
  reach,
  first,
  last,
  positions,
  own,
  queries,
  keys,
  values,
  out,
  top,
  total,
  mixed,
  *,
  halves,
  scale,
  softcap,
  precision,
):
  """A block of a row: queries [1, K, G T, H], keys [1, 1, K, block, H]."""
  row, index = pl.program_id(0) // halves, pl.program_id(1)
  width, block = positions.shape[1], keys.shape[3]
  at = first[row] + index
  how = dict(precision=precision, preferred_element_type=jnp.float32)

  @pl.when(index == 0)
  def _():
    top[...] = jnp.full(top.shape, MASKED, jnp.float32)
    total[...] = jnp.zeros(total.shape, jnp.float32)
    mixed[...] = jnp.zeros(mixed.shape, jnp.float32)

  @pl.when(at <= last[row])
  def _():
    scores = jnp.einsum("kqh,ksh->kqs", queries[0], keys[0, 0], **how) * scale
    if softcap is not None:
      scores = softcap * jnp.tanh(scores / softcap)
    slots = at * block + lax.broadcasted_iota(jnp.int32, scores.shape, 2)
    turn = lax.broadcasted_iota(jnp.int32, scores.shape, 1) % width
    seen = mine = jnp.zeros(scores.shape, jnp.int32)
    newest = own[row, 0]
    for one in range(width):
      seen = jnp.where(turn == one, positions[row, one], seen)
      mine = jnp.where(turn == one, own[row, one], mine)
      newest = jnp.maximum(newest, own[row, one])
    visible = (slots < seen) & (slots > seen - reach[0]) | (slots == mine)
    scores = jnp.where(visible, scores, MASKED)
    new_top = jnp.maximum(top[...], jnp.max(scores, axis=-1, keepdims=True))
    shrink = jnp.exp(top[...] - new_top)
    weights = jnp.exp(scores - new_top)
    # A weight of 0 does not hide a value that is not a number.
    shape = values.shape[2:]
    slots = at * block + lax.broadcasted_iota(jnp.int32, shape, 1)
    used = jnp.where(
      slots <= newest, values[0, 0], jnp.zeros(shape, values.dtype)
    )
    added = jnp.einsum("kqs,ksh->kqh", weights.astype(used.dtype), used, **how)
    total[...] = total[...] * shrink + jnp.sum(weights, axis=-1, keepdims=True)
    mixed[...] = mixed[...] * shrink + added
    top[...] = new_top

  @pl.when(index == pl.num_programs(1) - 1)
  def _():
    out[0] = (mixed[...] / total[...]).astype(out.dtype)
