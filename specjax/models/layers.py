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

from specjax.models.attend import attend
from specjax.models.config import DecoderConfig, RopeScaling
from specjax.models.product import product
from specjax.sharding import axes
from specjax.types import Array


def param(shape, names, dtype, stack: int | None) -> nnx.Param:
  """A parameter with its logical axes; `stack` prepends a layer axis of L."""
  if stack is not None:
    shape, names = (stack, *shape), (axes.LAYERS, *names)
  assert len(shape) == len(names) and set(names) <= axes.ALL
  return nnx.Param(jax.ShapeDtypeStruct(shape, dtype), axes=names)


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
