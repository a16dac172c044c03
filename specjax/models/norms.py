"""Norms of the decoder, and parameters with their logical axes."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from specjax.models import cpu_kernel
from specjax.models.config import DecoderConfig
from specjax.models.product import with_gradient_of
from specjax.sharding import axes
from specjax.types import Array

_FEW = 2**18  # numbers that one thread norms: 32 rows of 8192


def param(shape, names, dtype, stack: int | None) -> nnx.Param:
  """A parameter with its logical axes; `stack` prepends a layer axis of L."""
  if stack is not None:
    shape, names = (stack, *shape), (axes.LAYERS, *names)
  assert len(shape) == len(names) and set(names) <= axes.ALL
  return nnx.Param(jax.ShapeDtypeStruct(shape, dtype), axes=names)


class RMSNorm(nnx.Module):
  """x / rms(x) * weight, in float32 inside.

  With `plus_one` the weight is an offset from one, multiplied before the
  result is rounded (Gemma); without, after. On CPU a few rows go by a kernel of
  their own, cpu/norm.h.
  """

  def __init__(self, shape, names, eps, dtype, stack=None, *, plus_one=False):
    self.weight = param(shape, names, dtype, stack)
    self.eps = eps
    self.plus_one = plus_one

  def __call__(self, x: Array) -> Array:
    """Runs it; see the class."""
    weight = self.weight[...]
    how = (self.eps, self.plus_one)
    plain = functools.partial(_rms_norm, *how)
    suits = 0 < x.size <= _FEW and x.dtype == weight.dtype and weight.ndim == 1
    kernel = cpu_kernel.find() if suits else None
    if kernel is None:
      return plain(x, weight)
    own = functools.partial(cpu_kernel.norm, kernel, *how)
    special = with_gradient_of(plain, own)
    rows = x.reshape(-1, x.shape[-1])
    out = lax.platform_dependent(rows, weight, cpu=special, default=plain)
    return out.reshape(x.shape)


def _rms_norm(eps, plus_one, x, weight):
  wide = x.astype(jnp.float32)
  mean = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
  normed = wide * lax.rsqrt(mean + eps)
  if plus_one:
    return (normed * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)
  return normed.astype(x.dtype) * weight


class LayerNorm(nnx.Module):
  """(x - mean) / deviation * weight + bias, in float32 inside."""

  def __init__(self, shape, names, eps, dtype, stack=None):
    self.weight = param(shape, names, dtype, stack)
    self.bias = param(shape, names, dtype, stack)
    self.eps = eps

  def __call__(self, x: Array) -> Array:
    """Runs it; see the class."""
    wide = x.astype(jnp.float32)
    wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    normed = wide * lax.rsqrt(variance + self.eps)
    weight, bias = self.weight[...], self.bias[...]
    out = normed * weight.astype(jnp.float32) + bias.astype(jnp.float32)
    return out.astype(x.dtype)


def make_norm(config: DecoderConfig, dtype, stack=None, *, head=False):
  """A norm of the config's kind over D, or with `head` over H."""
  shape = (config.head_dim if head else config.d_model,)
  names = (axes.HEAD_DIM if head else axes.EMBED,)
  if config.norm == "layer":
    return LayerNorm(shape, names, config.norm_eps, dtype, stack)
  plus_one = config.norm == "rms_plus_one"
  assert plus_one or config.norm == "rms"
  return RMSNorm(shape, names, config.norm_eps, dtype, stack, plus_one=plus_one)
