"""Layers of the decoder. Logical axes stand beside every parameter.

Modules are built from shapes alone (no array is allocated): `nnx.split` gives
the structure once, and parameters are arguments of every call.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from specjax.cache import BLOCK, KVCache, unpack
from specjax.models.config import DecoderConfig, RopeScaling
from specjax.sharding import axes
from specjax.types import Array

_MASKED = -1e30  # finite: a row masked in a whole block must not become NaN


def param(shape, names, dtype, stack: int | None) -> nnx.Param:
  """A parameter with its logical axes; `stack` prepends a layer axis of L."""
  if stack is not None:
    shape, names = (stack, *shape), (axes.LAYERS, *names)
  assert len(shape) == len(names) and set(names) <= axes.ALL
  return nnx.Param(jax.ShapeDtypeStruct(shape, dtype), axes=names)


def precision_of(dtype) -> lax.Precision:
  """HIGHEST for float32: a TPU multiplies it in bfloat16 unless asked."""
  full = jnp.dtype(dtype) == jnp.float32
  return lax.Precision.HIGHEST if full else lax.Precision.DEFAULT


def product(x: Array, weight: Array) -> Array:
  """x [..., in] times weight [out..., in] -> float32 [..., out...].

  Weights lie (out, in), contracted on their last axis: on CPU 13-37% faster
  than (in, out) in float32 and the only fast order in bfloat16.
  """
  rows = x.reshape(-1, x.shape[-1])
  # As a matrix: XLA's CPU backend transposes a weight of more dimensions, all
  # of it, on every call.
  matrix = weight.reshape(-1, weight.shape[-1])

  def multiply(rows, matrix):
    return lax.dot_general(
      rows,
      matrix,
      (((1,), (1,)), ((), ())),
      precision=precision_of(x.dtype),
      preferred_element_type=jnp.float32,
    )

  def twice(rows, matrix):
    return multiply(jnp.concatenate([rows, rows]), matrix)[:1]

  if rows.shape[0] == 1 and x.dtype == jnp.bfloat16:
    # XLA's CPU matrix-vector product in bfloat16 takes 10 times as long as a
    # product of two rows.
    out = lax.platform_dependent(rows, matrix, cpu=twice, default=multiply)
  else:
    out = multiply(rows, matrix)
  return out.reshape(*x.shape[:-1], *weight.shape[:-1])


class RMSNorm(nnx.Module):
  """x / rms(x) * weight, in float32 inside."""

  def __init__(self, width, eps, dtype, stack=None):
    self.weight = param((width,), (axes.EMBED,), dtype, stack)
    self.eps = eps

  def __call__(self, x: Array) -> Array:
    """Runs it; see the class."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    normed = (wide * lax.rsqrt(mean + self.eps)).astype(x.dtype)
    return normed * self.weight[...]


class Linear(nnx.Module):
  """A product with weights [out..., in]; no bias."""

  def __init__(self, shape, names, dtype, stack=None):
    self.weight = param(shape, names, dtype, stack)

  def __call__(self, x: Array) -> Array:
    """Runs it; see the class."""
    return product(x, self.weight[...]).astype(x.dtype)


def rope_frequencies(
  head_dim: int, theta: float, scaling: RopeScaling | None
) -> Array:
  """Radians per position of each rotated pair, float32 [H / 2].

  With `scaling`, Llama 3.1's rule: wavelengths over original / low_freq_factor
  are slowed by `factor`, those under original / high_freq_factor kept, and the
  band between interpolated.
  """
  # In float64 on the host and rounded once: at position 100,000 an error of one
  # part in 1e7 turns a pair by a hundredth of a radian.
  exponents = np.arange(0, head_dim, 2) / head_dim
  frequency = 1.0 / (theta**exponents)
  if scaling is not None:
    # How many of its wavelengths fit into the original context.
    turns = scaling.original_max_position * frequency / (2 * math.pi)
    band = scaling.high_freq_factor - scaling.low_freq_factor
    kept = np.clip((turns - scaling.low_freq_factor) / band, 0.0, 1.0)
    frequency = frequency * (kept + (1.0 - kept) / scaling.factor)
  return jnp.asarray(frequency, jnp.float32)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
  """Rotary positions on x [B, T, N, H]; cos and sin [B, T, 1, H / 2].

  The first half of a head pairs with the second (Hugging Face's layout).
  """
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  turned = [first * cos - second * sin, second * cos + first * sin]
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def attend(q: Array, cache: KVCache, layer, positions: Array) -> Array:
  """Causal attention of a block over the cache, by absolute position.

  Walks the live part of the cache in blocks with a running softmax (Milakov
  and Gimelshein 2018), so cost follows the longest live row and not the
  capacity. A block that is masked whole leaves a row's numbers bit-equal, so
  no row depends on its neighbours' lengths.

  Args:
    q: [B, T, N, H] queries.
    cache: the cache, with the block's own keys and values written.
    layer: layer index, static or traced.
    positions: int32 [B, T], absolute.

  Returns:
    [B, T, N, H], in q's dtype.
  """
  rows, width, heads, size = q.shape
  _, _, kv_heads, capacity, _ = cache.k.shape
  group = heads // kv_heads
  block = min(BLOCK, capacity)
  assert capacity % block == 0
  queries = q.reshape(rows, width, kv_heads, group, size)
  queries = queries.transpose(0, 2, 3, 1, 4)  # B K G T H
  queries = queries.reshape(rows, kv_heads, group * width, size)
  wide = unpack(cache.k[:1, :1, :1, :1, :1]).dtype
  queries = queries.astype(wide)
  seen = jnp.broadcast_to(positions[:, None], (rows, group, width))
  seen = seen.reshape(rows, 1, group * width, 1)
  scale = 1.0 / math.sqrt(size)
  how = dict(precision=precision_of(wide), preferred_element_type=jnp.float32)

  def load(stack, start):
    shape = (1, rows, kv_heads, block, size)
    return unpack(lax.dynamic_slice(stack, (layer, 0, 0, start, 0), shape)[0])

  def body(carry):
    index, top, total, mixed = carry
    start = index * block
    k, v = load(cache.k, start), load(cache.v, start)
    scores = jnp.einsum("bkqh,bksh->bkqs", queries, k, **how) * scale
    slots = start + jnp.arange(block, dtype=jnp.int32)
    scores = jnp.where(slots <= seen, scores, _MASKED)
    new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
    shrink = jnp.exp(top - new_top)
    weights = jnp.exp(scores - new_top)
    total = total * shrink + jnp.sum(weights, axis=-1, keepdims=True)
    added = jnp.einsum("bkqs,bksh->bkqh", weights.astype(wide), v, **how)
    return index + 1, new_top, total, mixed * shrink + added

  live = jnp.max(positions) // block + 1
  flat = jnp.zeros((rows, kv_heads, group * width, 1), jnp.float32)
  start = (jnp.int32(0), flat + _MASKED, flat, flat + jnp.zeros((size,)))
  with jax.named_scope("attention_blocks"):
    _, _, total, mixed = lax.while_loop(lambda c: c[0] < live, body, start)
  out = (mixed / total).reshape(rows, kv_heads, group, width, size)
  return out.transpose(0, 3, 1, 2, 4).reshape(q.shape).astype(q.dtype)


class Attention(nnx.Module):
  """Grouped-query attention with rotary positions."""

  def __init__(self, config: DecoderConfig, dtype, stack=None):
    c = config
    q_axes = (axes.HEADS, axes.HEAD_DIM, axes.EMBED)
    kv_axes = (axes.KV_HEADS, axes.HEAD_DIM, axes.EMBED)
    o_axes = (axes.EMBED, axes.HEADS, axes.HEAD_DIM)
    kv_shape = (c.kv_heads, c.head_dim, c.d_model)
    self.q = Linear((c.heads, c.head_dim, c.d_model), q_axes, dtype, stack)
    self.k = Linear(kv_shape, kv_axes, dtype, stack)
    self.v = Linear(kv_shape, kv_axes, dtype, stack)
    self.o = nnx.Dict(
      weight=param((c.d_model, c.heads, c.head_dim), o_axes, dtype, stack)
    )

  def __call__(self, x, cache, layer, positions, cos, sin):
    """Runs it; see the class."""
    q = rotate(self.q(x), cos, sin)
    k = rotate(self.k(x), cos, sin)
    cache = cache.write(layer, k, self.v(x))
    mixed = attend(q, cache, layer, positions)
    weight = self.o["weight"][...]
    mixed = mixed.reshape(*x.shape[:2], -1)
    out = product(mixed, weight.reshape(weight.shape[0], -1))
    return out.astype(x.dtype), cache


class MLP(nnx.Module):
  """SwiGLU: down(silu(gate(x)) * up(x))."""

  def __init__(self, config: DecoderConfig, dtype, stack=None):
    wide = (config.d_ff, config.d_model)
    wide_axes = (axes.MLP, axes.EMBED)
    self.gate = Linear(wide, wide_axes, dtype, stack)
    self.up = Linear(wide, wide_axes, dtype, stack)
    self.down = Linear(wide[::-1], wide_axes[::-1], dtype, stack)

  def __call__(self, x: Array) -> Array:
    """Runs it; see the class."""
    return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nnx.Module):
  """Pre-norm attention and MLP, each added to the residual stream."""

  def __init__(self, config: DecoderConfig, dtype, stack=None):
    norm = (config.d_model, config.norm_eps, dtype, stack)
    self.attention_norm = RMSNorm(*norm)
    self.attention = Attention(config, dtype, stack)
    self.mlp_norm = RMSNorm(*norm)
    self.mlp = MLP(config, dtype, stack)

  def __call__(self, x, cache, layer, positions, cos, sin):
    """Runs it; see the class."""
    mixed, cache = self.attention(
      self.attention_norm(x), cache, layer, positions, cos, sin
    )
    x = x + mixed
    return x + self.mlp(self.mlp_norm(x)), cache
