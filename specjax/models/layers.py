"""Layers of the decoder. Logical axes stand beside every parameter.

With a placement, activations are laid out after every product: queries, keys
and values by heads, the MLP's inner ones by F, and the residual stream, where
the two sums over devices of each layer are.

Modules are built from shapes alone (no array is allocated): `nnx.split` gives
the structure once, and parameters are arguments of every call.
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.cache import Encoded, KVCache
from specjax.models import placed
from specjax.models.attend import attend, attend_across, attend_block
from specjax.models.config import DecoderConfig, LinearScaling, RopeScaling
from specjax.models.gated import ACTIVATIONS, gated
from specjax.models.norms import make_norm, param
from specjax.models.product import products
from specjax.models.relative import Biases
from specjax.sharding import axes
from specjax.sharding.placement import V5P, Placement
from specjax.types import Array


class Linear(nnx.Module):
  """A product with weights [out..., in], and a bias [out...] if it has one.

  `fold` counts the input's axes: the output product of attention reads heads
  and their dimensions. With a placement, the weight is brought to where it is
  used first (see `sharding.rules`), and what comes out is laid out likewise.
  """

  def __init__(
    self,
    shape,
    names,
    dtype,
    stack=None,
    placement: Placement | None = None,
    *,
    bias=False,
    fold=1,
  ):
    self.weight = param(shape, names, dtype, stack)
    self.fold = fold
    self.placement = placement
    self.names = names
    own = (shape[:-fold], names[:-fold])
    self.bias = param(*own, dtype, stack) if bias else None

  def __call__(self, x: Array) -> Array:
    """Runs it; see the class."""
    return together(x, self)[0]

  def matrix(self) -> Array:
    """The weight [out..., in]."""
    weight = self.weight[...]
    return weight.reshape(*weight.shape[: -self.fold], -1)

  def multiply(self, x: Array, weight: Array) -> Array:
    """The product, split as the placement says.

    Where devices add up what each has made, they tell each other the dtype that
    the sum will have: float32 would be twice the bytes, between chips and, on
    those whose products go through HBM, there.
    """
    fold, names = self.fold, self.names
    weight = self.placement.constrain(weight, names)
    summed = any(self.placement.ways(name) > 1 for name in names[-fold:])
    dtype = x.dtype if summed else jnp.float32
    if self.placement.chip not in V5P:
      x, weight = (
        one.reshape(*one.shape[: one.ndim - fold], -1) for one in (x, weight)
      )
      fold = 1
    return placed.product(x, weight, dtype=dtype, fold=fold)

  def _finish(self, out: Array, dtype) -> Array:
    if self.placement is not None:
      names = (axes.ROWS, None, *self.names[: -self.fold])
      out = self.placement.constrain(out, names)
    if self.bias is not None:
      out = out.astype(jnp.float32) + self.bias[...].astype(jnp.float32)
    return out.astype(dtype)


def together(x: Array, *linears: Linear) -> list[Array]:
  """What each of several Linears makes of x: one kernel's call on a CPU."""
  first = linears[0]
  if first.placement is None:
    x = x.reshape(*x.shape[: x.ndim - first.fold], -1)
    outs = products(x, *(linear.matrix() for linear in linears))
  else:
    outs = [linear.multiply(x, linear.weight[...]) for linear in linears]
  pairs = zip(linears, outs, strict=True)
  return [linear._finish(out, x.dtype) for linear, out in pairs]


def rope_frequencies(
  head_dim: int, theta: float, scaling: RopeScaling | LinearScaling | None
) -> Array:
  """Radians per position of each rotated pair, float32 [H / 2].

  With `RopeScaling`, Llama 3.1's rule: wavelengths over original /
  low_freq_factor are slowed by `factor`, those under original /
  high_freq_factor kept, and the band between interpolated.
  """
  # In float64 on the host and rounded once: at position 100,000 an error of one
  # part in 1e7 turns a pair by a hundredth of a radian.
  exponents = np.arange(0, head_dim, 2) / head_dim
  frequency = 1.0 / (theta**exponents)
  if isinstance(scaling, LinearScaling):
    frequency = frequency / scaling.factor
  elif scaling is not None:
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
  """Grouped-query attention; positions rotate, bias it, or were added before.

  `qk_norm` (Henry et al. 2020) norms each head before the rotation.
  """

  def __init__(
    self,
    config: DecoderConfig,
    dtype,
    stack=None,
    placement: Placement | None = None,
  ):
    c = config
    self.config = c
    self.placement = placement
    q_axes = (axes.HEADS, axes.HEAD_DIM, axes.EMBED)
    kv_axes = (axes.KV_HEADS, axes.HEAD_DIM, axes.EMBED)
    o_axes = (axes.EMBED, axes.HEADS, axes.HEAD_DIM)
    q_shape = (c.heads, c.head_dim, c.d_model)
    kv_shape = (c.kv_heads, c.head_dim, c.d_model)
    o_shape = (c.d_model, c.heads, c.head_dim)
    how = (dtype, stack, placement)
    biased = dict(bias=c.qkv_bias)
    self.q = Linear(q_shape, q_axes, *how, **biased)
    self.k = Linear(kv_shape, kv_axes, *how, **biased)
    self.v = Linear(kv_shape, kv_axes, *how, **biased)
    self.o = Linear(o_shape, o_axes, *how, bias=c.o_bias, fold=2)
    if c.qk_norm:
      self.q_norm = make_norm(c, dtype, stack, head=True)
      self.k_norm = make_norm(c, dtype, stack, head=True)

  def __call__(self, x, cache, layer, positions, rope, window):
    """Runs it; see the class and `DecoderLayer`."""
    c = self.config
    q, k, v = self.parts(x, rope)
    how = dict(
      scale=c.attention_scale, softcap=c.attention_softcap, window=window
    )
    if isinstance(rope, Biases):
      how["bias"] = rope.by_distance
    if cache is None:
      mixed = attend_block(q, k, v, positions=positions, **how)
      return self.o(mixed), None
    if self.placement is None:
      cache = cache.write(layer, k, v)
      slots = cache.slots(x.shape[1])
      mixed = attend(q, cache, layer, positions, slots=slots, **how)
      return self.o(mixed), cache
    # The layout that caches ask for ends here: it must not reach the rotation.
    q = self.placement.constrain(q, placed.QUERIES)
    k = self.placement.constrain(k, placed.KEYS)
    mixed, cache = placed.attention(
      self.placement, q, k, v, cache, layer, positions, **how
    )
    mixed = self.placement.constrain(mixed, placed.QUERIES)
    return self.o(mixed), cache

  def parts(self, x: Array, rope=None) -> tuple[Array, Array, Array]:
    """Queries [B, T, N, H], keys and values [B, T, K, H] of a normed x."""
    c = self.config
    q, k, v = together(x, self.q, self.k, self.v)
    q = self.q_norm(q) if c.qk_norm else q
    k = self.k_norm(k) if c.qk_norm else k
    if rope is not None and not isinstance(rope, Biases):
      q, k = rotate(q, *rope), rotate(k, *rope)
    return q, k, v


class MLP(nnx.Module):
  """down(act(up(x))), or gated (Shazeer 2020) down(act(gate(x)) * up(x))."""

  def __init__(
    self,
    config: DecoderConfig,
    dtype,
    stack=None,
    placement: Placement | None = None,
  ):
    wide = (config.d_ff, config.d_model)
    wide_axes = (axes.MLP, axes.EMBED)
    how = (dtype, stack, placement)
    biased = dict(bias=config.mlp_bias)
    self.activation = config.activation
    self.placement = placement
    self.gated = config.gated
    if config.gated:
      self.gate = Linear(wide, wide_axes, *how, **biased)
    self.up = Linear(wide, wide_axes, *how, **biased)
    self.down = Linear(wide[::-1], wide_axes[::-1], *how, **biased)

  def __call__(self, x: Array) -> Array:
    """Runs it; see the class."""
    activate = ACTIVATIONS[self.activation]
    if not self.gated:
      return self.down(activate(self.up(x)))
    if self.placement is None and self.up.bias is None:
      weights = (self.gate.matrix(), self.up.matrix())
      return self.down(gated(x, *weights, self.activation))
    gate, up = together(x, self.gate, self.up)
    return self.down(activate(gate) * up)


class CrossAttention(Attention):
  """Attention of an output over the whole source that it answers."""

  def keys(self, encoded: Array) -> tuple[Array, Array]:
    """Keys and values [B, T, K, H] of an encoded source [B, T, D]."""
    k, v = together(encoded, self.k, self.v)
    if self.placement is None:
      return k, v
    return tuple(self.placement.constrain(x, placed.KEYS) for x in (k, v))

  def __call__(self, x: Array, source: KVCache | Encoded, layer) -> Array:
    """What x [B, T, D] finds in the source."""
    q, scale = self.q(x), self.config.attention_scale
    if isinstance(source, Encoded):
      k, v = self.keys(source.states)
      if self.placement is not None:
        q = self.placement.constrain(q, placed.QUERIES)
      how = dict(asking=source.asking, text=source.text, scale=scale)
      mixed = attend_across(q, k, v, **how)
      if self.placement is not None:
        mixed = self.placement.constrain(mixed, placed.QUERIES)
      return self.o(mixed)
    last = jnp.maximum(source.length - 1, 0)  # Of rows that rest it is 0.
    last = jnp.broadcast_to(last[:, None], x.shape[:2])
    if self.placement is None:
      return self.o(attend(q, source, layer, last, scale=scale))
    q = self.placement.constrain(q, placed.QUERIES)
    mixed = placed.reading(self.placement, q, source, layer, last, scale=scale)
    return self.o(self.placement.constrain(mixed, placed.QUERIES))


class DecoderLayer(nnx.Module):
  """Pre-norm attention and MLP, each added to the residual stream.

  With `post_norms` what is added has a norm of its own. Beside an encoder,
  attention over the source comes between the two.
  """

  def __init__(
    self,
    config: DecoderConfig,
    dtype,
    stack=None,
    placement: Placement | None = None,
  ):
    self.post_norms = config.post_norms
    self.reads_source = config.encoder_layers > 0
    self.attention_norm = make_norm(config, dtype, stack)
    self.attention = Attention(config, dtype, stack, placement)
    if self.reads_source:
      self.cross_norm = make_norm(config, dtype, stack)
      self.cross = CrossAttention(config, dtype, stack, placement)
    self.mlp_norm = make_norm(config, dtype, stack)
    self.mlp = MLP(config, dtype, stack, placement)
    if config.post_norms:
      self.attention_post_norm = make_norm(config, dtype, stack)
      self.mlp_post_norm = make_norm(config, dtype, stack)

  def __call__(self, x, cache, layer, positions, rope, window):
    """Runs it: x [B, T, D] and the cache; see `unadded`."""
    x, out, cache = self.unadded(x, cache, layer, positions, rope, window)
    return x + out, cache

  def unadded(self, x, cache, layer, positions, rope, window):
    """Runs it up to the last sum; see the class.

    Args:
      x: [B, T, D].
      cache: with room for the block at its length; None where the block is a
        whole text. Beside an encoder a `SourceCache`, or `Encoded` for whole
        texts.
      layer: this layer's index in the cache, static or traced.
      positions: int32 [B, T], absolute; without a cache, in the text that the
        token belongs to, see `attend_block`.
      rope: (cos, sin) of this layer's rotation, see `rotate`; `Biases` in its
        place; or None.
      window: as `attend` takes it.

    Returns:
      x and what is to be added to it, [B, T, D] both, and the cache, if there
      is one, with the block written.
    """
    both = cache
    if self.reads_source:
      cache = both.own
    mixed, cache = self.attention(
      self.attention_norm(x), cache, layer, positions, rope, window
    )
    if self.post_norms:
      mixed = self.attention_post_norm(mixed)
    x = x + mixed
    if self.reads_source:
      x = x + self.cross(self.cross_norm(x), both.source, layer)
      if cache is None:
        cache = both
      else:
        cache = dataclasses.replace(both, own=cache)
    out = self.mlp(self.mlp_norm(x))
    if self.post_norms:
      out = self.mlp_post_norm(out)
    return x, out, cache
