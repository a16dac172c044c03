"""Attention over the cache: by absolute position, at the live length's cost."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from specjax.cache import BLOCK, KVCache, at_rest, unpack
from specjax.models import cpu_attention
from specjax.models.product import precision_of
from specjax.types import Array

MASKED = -1e30  # finite: a row masked in a whole block must not become NaN
# On TPU blocks are wider, for each costs a round of small operations; and on a
# v5p, where no kernel attends, running sums that go through HBM.
TPU_BLOCK = 4 * BLOCK
AT_ONCE = 512  # queries of a source


def block_size(platform: str) -> int:
  """Positions that a pass attends to at a time; it reads whole blocks."""
  return TPU_BLOCK if platform == "tpu" else BLOCK


def attend(
  q: Array,
  cache: KVCache,
  layer,
  positions: Array,
  *,
  slots: Array | None = None,
  scale: float | None = None,
  softcap: float | None = None,
  window=None,
  bias: Array | None = None,
  over: tuple[str, ...] = (),
  chip: str | None = None,
) -> Array:
  """Causal attention of a block over the cache, by absolute position.

  Walks the live part of the cache in blocks with a running softmax (Milakov
  and Gimelshein 2018), so cost follows the longest live row and not the
  capacity. A block that is masked whole leaves a row's numbers bit-equal, so
  no row depends on its neighbours' lengths. On a CPU by `cpu_attention`, where
  that can be had; on TPUs that gain by it, by `tpu_attention`.

  Args:
    q: [B, T, N, H] queries.
    cache: the cache, with the block's own keys and values written.
    layer: layer index, static or traced.
    positions: int32 [B, T], absolute. A query sees what lies before its
      position, and its own key.
    slots: int32 [B, T], where each query's own key lies: at its position, or
      behind it. At its position unless given.
    scale: multiplies the scores; 1 / sqrt(H) unless given.
    softcap: bounds the scores, c * tanh(score / c) (Gemma 2, section 2).
    window: how many positions a query sees, its own included, static or an
      int32 scalar; None or 0 is all. The whole cache is kept, so a rollback
      across a window's edge finds what it needs.
    bias: float32 [N, R], added to the scores by distance; see
      `relative.Biases`.
    over: axes of the mesh that positions are split over, in a `shard_map`: the
      cache is this device's part, and positions count from where it begins.
      The parts' running softmaxes are merged.
    chip: what the devices are, as jax names it, where that is known.

  Returns:
    [B, T, N, H], in q's dtype.
  """
  scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
  how = dict(scale=scale, softcap=softcap, over=over)
  seen = jnp.int32(0 if window is None else window)
  slots = positions if slots is None else slots

  def walk(q, cache, layer, positions, slots, seen, **own):
    bound = None if window is None else seen
    at = (positions, slots)
    return _walk(q, cache, layer, *at, bound, bias=bias, **own, **how)

  as_it_is = dict(block=BLOCK, laid=lambda part: part, kept=False)
  ways = dict(
    default=functools.partial(walk, **as_it_is),
    tpu=functools.partial(walk, block=TPU_BLOCK, laid=at_rest, kept=True),
  )
  # No kernel merges parts, and the TPU's knows no biases.
  if bias is None and not over and (chip or "").startswith("TPU"):
    from specjax.models import tpu_attention  # Its import takes a while.

    if tpu_attention.suits(chip, q, cache):
      ways["tpu"] = functools.partial(
        tpu_attention.attend, scale=scale, softcap=softcap
      )
  name = None if over else cpu_attention.find(q, cache)
  if name is not None:
    ways["cpu"] = functools.partial(
      cpu_attention.attend, name, scale=scale, softcap=softcap, bias=bias
    )
  return lax.platform_dependent(
    q, cache, jnp.int32(layer), positions, slots, seen, **ways
  )


def attend_block(
  q: Array,
  k: Array,
  v: Array,
  *,
  positions: Array | None = None,
  scale: float | None = None,
  softcap: float | None = None,
  window=None,
  bias: Array | None = None,
) -> Array:
  """Causal attention of a block over itself, without a cache.

  All T x T scores at once and nothing that has no gradient: what training and
  whole texts are read with.

  Args:
    q: [B, T, N, H].
    k, v: [B, T, K, H].
    positions: int32 [B, T]. Where several texts are packed into a row they
      begin anew with each, and no text sees another: a query sees itself and
      the `positions` tokens before it. One text a row unless given.
    scale, softcap, window, bias: see `attend`.

  Returns:
    [B, T, N, H], in q's dtype.
  """
  rows, width, heads, size = q.shape
  scale = 1.0 / math.sqrt(size) if scale is None else scale
  how = dict(
    precision=precision_of(q.dtype), preferred_element_type=jnp.float32
  )
  queries = q.reshape(rows, width, k.shape[2], -1, size)  # B T K G H
  scores = jnp.einsum("btkgh,bskh->bkgts", queries, k, **how) * scale
  if softcap is not None:
    scores = softcap * jnp.tanh(scores / softcap)
  at = jnp.arange(width, dtype=jnp.int32)
  if bias is not None:
    distance = jnp.clip(at[:, None] - at, 0, bias.shape[1] - 1)
    each = bias[:, distance].reshape(k.shape[2], -1, width, width)
    scores = scores + each
  visible = at <= at[:, None]
  if window is not None:
    reach = jnp.where(window > 0, window, width)
    visible &= at > at[:, None] - reach
  if positions is not None:
    visible = visible & (at >= at[:, None] - positions[..., None])
    visible = visible[:, None, None]
  weights = jax.nn.softmax(jnp.where(visible, scores, MASKED), axis=-1)
  mixed = jnp.einsum("bkgts,bskh->btkgh", weights.astype(q.dtype), v, **how)
  return mixed.reshape(rows, width, heads, size).astype(q.dtype)


def attend_across(
  q: Array, k: Array, v: Array, *, asking: Array, text: Array, scale: float
) -> Array:
  """Attention of outputs over their sources, without a cache.

  Args:
    q: [B, T, N, H], of outputs.
    k, v: [B, S, N, H], of sources.
    asking: int32 [B, T], which text each query belongs to; see
      `cache.Encoded`.
    text: int32 [B, S], the same of the keys; a query sees its own text's.
    scale: multiplies the scores.

  Returns:
    [B, T, N, H], in q's dtype.
  """
  how = dict(
    precision=precision_of(q.dtype), preferred_element_type=jnp.float32
  )
  scores = jnp.einsum("btnh,bsnh->bnts", q, k, **how) * scale
  visible = (asking[:, :, None] == text[:, None])[:, None]
  weights = jax.nn.softmax(jnp.where(visible, scores, MASKED), axis=-1)
  mixed = jnp.einsum("bnts,bsnh->btnh", weights.astype(q.dtype), v, **how)
  return mixed.astype(q.dtype)


def attend_source(
  q: Array,
  k: Array,
  v: Array,
  *,
  text: Array,
  bias: Array,
  scale: float | None = None,
) -> Array:
  """Attention of whole sources over themselves, both ways: an encoder's.

  Long ones by so many queries at a time, so that not all scores are alive at
  once.

  Args:
    q, k, v: [B, T, N, H].
    text: int32 [B, T], the text of each token, 0 for padding; a token sees its
      own text's.
    bias: float32 [N, R]; see `relative.both_ways`.
    scale: see `attend`.

  Returns:
    [B, T, N, H], in q's dtype.
  """
  rows, width, heads, depth = q.shape
  scale = 1.0 / math.sqrt(depth) if scale is None else scale
  how = dict(
    precision=precision_of(q.dtype), preferred_element_type=jnp.float32
  )
  at = jnp.arange(width, dtype=jnp.int32)
  furthest = bias.shape[1] // 2

  def some(first, q, own):
    """Of queries [B, t, N, H] from `first` on, which are of the texts `own`."""
    visible = (own[:, :, None] == text[:, None])[:, None]
    queries = first + jnp.arange(q.shape[1], dtype=jnp.int32)
    offset = jnp.clip(at - queries[:, None], -furthest, furthest)
    scores = jnp.einsum("btnh,bsnh->bnts", q, k, **how) * scale
    scores = scores + bias[:, offset + furthest]
    weights = jax.nn.softmax(jnp.where(visible, scores, MASKED), axis=-1)
    mixed = jnp.einsum("bnts,bsnh->btnh", weights.astype(q.dtype), v, **how)
    return mixed.astype(q.dtype)

  if width <= AT_ONCE or width % BLOCK:
    return some(jnp.int32(0), q, text)
  parts = q.reshape(rows, -1, BLOCK, heads, depth).swapaxes(0, 1)
  owns = text.reshape(rows, -1, BLOCK).swapaxes(0, 1)
  firsts = jnp.arange(0, width, BLOCK, dtype=jnp.int32)
  mixed = lax.map(lambda one: some(*one), (firsts, parts, owns))
  return mixed.swapaxes(0, 1).reshape(q.shape)


def _walk(
  q,
  cache,
  layer,
  positions,
  slots,
  window,
  *,
  bias,
  block,
  laid,
  kept,
  scale,
  softcap,
  over,
):
  """`attend` in JAX's own terms, by so many positions at a time.

  `laid` fixes how those of a stack are laid out that are read at a time. With
  `kept` a block's weights are arrays of their own, not a product's argument.
  """
  rows, width, heads, size = q.shape
  _, _, kv_heads, capacity, _ = cache.k.shape
  group = heads // kv_heads
  block = min(block, capacity)
  queries = q.reshape(rows, width, kv_heads, group, size)
  queries = queries.transpose(0, 2, 3, 1, 4)  # B K G T H
  queries = queries.reshape(rows, kv_heads, group * width, size)
  wide = unpack(cache.k[:1, :1, :1, :1, :1]).dtype
  queries = queries.astype(wide)

  def each(at):
    """Of every query: [B, 1, G T, 1] of [B, T]."""
    at = jnp.broadcast_to(at[:, None], (rows, group, width))
    return at.reshape(rows, 1, group * width, 1)

  seen, own = each(positions), each(slots)
  how = dict(precision=precision_of(wide), preferred_element_type=jnp.float32)

  def biases(keys):
    """What is added to the scores of these keys: [B, K, G T, block]."""
    far = bias.shape[1] - 1
    distance = jnp.clip(positions[..., None] - keys, 0, far)  # B T block
    each = bias[:, distance].reshape(kv_heads, group, *distance.shape)
    each = each.transpose(2, 0, 1, 3, 4)  # B K G T block
    return each.reshape(rows, kv_heads, group * width, block)

  def load(stack, start):
    shape = (1, rows, kv_heads, block, size)
    part = lax.dynamic_slice(stack, (layer, 0, 0, start, 0), shape)
    return unpack(laid(part)[0])

  def body(carry):
    index, top, total, mixed = carry
    # A last block that would reach beyond the cache begins earlier, and what
    # the one before it has seen is masked.
    new = index * block
    start = jnp.minimum(new, capacity - block)
    k, v = load(cache.k, start), load(cache.v, start)
    scores = jnp.einsum("bkqh,bksh->bkqs", queries, k, **how) * scale
    if softcap is not None:
      scores = softcap * jnp.tanh(scores / softcap)
    keys = start + jnp.arange(block, dtype=jnp.int32)
    if bias is not None:
      scores = scores + biases(keys)
    visible = (keys < seen) | (keys == own)
    if capacity % block:
      visible &= keys >= new
    if window is not None:
      visible &= keys > oldest
    scores = jnp.where(visible, scores, MASKED)
    new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
    shrink = jnp.exp(top - new_top)
    weights = jnp.exp(scores - new_top)
    total = total * shrink + jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights.astype(wide)
    if kept:
      # Made once, beside their sum, or XLA reads the scores for each of the two
      # (on a v5p, where no kernel attends, from HBM).
      weights = lax.optimization_barrier(weights)
    added = jnp.einsum("bkqs,bksh->bkqh", weights, v, **how)
    return index + 1, new_top, total, mixed * shrink + added

  # Blocks before every row's window are skipped. A row whose window begins
  # later meets blocks that are masked whole first: what they add is finite and
  # shrinks to 0 at its first real score.
  first = jnp.int32(0)
  if window is not None:
    reach = jnp.where(window > 0, window, capacity)
    oldest = seen - reach
    first = jnp.maximum(jnp.min(positions) - reach + 1, 0) // block
  live = jnp.maximum(jnp.max(positions), jnp.max(slots)) // block + 1
  if over:  # Others may have what lies before this part, or behind it.
    live = jnp.minimum(live, -(-capacity // block))
  flat = jnp.zeros((rows, kv_heads, group * width, 1), jnp.float32)
  start = (first, flat + MASKED, flat, flat + jnp.zeros((size,)))
  with jax.named_scope("attention_blocks"):
    _, top, total, mixed = lax.while_loop(lambda c: c[0] < live, body, start)
  if over:
    shrink = jnp.exp(top - lax.pmax(top, over))
    total, mixed = lax.psum((total * shrink, mixed * shrink), over)
  out = (mixed / total).reshape(rows, kv_heads, group, width, size)
  return out.transpose(0, 3, 1, 2, 4).reshape(q.shape).astype(q.dtype)
