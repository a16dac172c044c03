"""The decoder as an nnx module: embedding, layers, norm and head.

A config says which features a model has; nothing here asks for its name.
`decoder.build` makes a pure function of it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from specjax.cache import KVCache
from specjax.models import placed
from specjax.models.base import Output
from specjax.models.config import DecoderConfig
from specjax.models.layers import (
  DecoderLayer,
  Linear,
  make_norm,
  param,
  rope_frequencies,
)
from specjax.models.lookup import lookup
from specjax.models.product import product
from specjax.sharding import axes
from specjax.sharding.placement import Placement, constrain
from specjax.types import Array


@functools.partial(jax.jit, static_argnums=0)
def _layer(graph, state, x, cache, index, positions, rope, window):
  """One layer; a function of its own, so that it is traced once for all.

  Tracing was half of a warm start: 30 unrolled layers took 0.5 s a program,
  and now take 0.1. Rotation and window are data; layers without a window are
  a second kind, with no mask for one.
  """
  layer = nnx.merge(graph, state)
  return layer(x, cache, index, positions, rope, window)


class Decoder(nnx.Module):
  """Embedding, L layers (a list, or one stacked), norm and head."""

  def __init__(
    self,
    config: DecoderConfig,
    *,
    dtype,
    scan_layers: bool,
    placement: Placement | None = None,
  ):
    self.config = config
    self.placement = placement
    table = (config.vocab_size, config.d_model)
    table_axes = (axes.VOCAB, axes.EMBED)
    self.embed = nnx.Dict(weight=param(table, table_axes, dtype, None))
    if scan_layers:
      self.layers = DecoderLayer(config, dtype, config.layers, placement)
    else:
      self.layers = nnx.List(
        [
          DecoderLayer(config, dtype, None, placement)
          for _ in range(config.layers)
        ]
      )
    self.norm = make_norm(config, dtype)
    if config.rope_theta is None:
      shape = (config.max_position, config.d_model)
      names = (axes.POSITION, axes.EMBED)
      self.position = nnx.Dict(weight=param(shape, names, dtype, None))
    if not config.tied:
      self.head = Linear(table, table_axes, dtype)

  def __call__(
    self,
    tokens: Array,
    cache: KVCache | None,
    features,
    subset=None,
    positions: Array | None = None,
  ) -> Output:
    """Runs it; see the class and `Model`."""
    x, positions, ropes = self.begin(tokens, cache, positions)
    taken = {0: x} if 0 in features else {}
    if isinstance(self.layers, DecoderLayer):
      x, cache, taken = self._scan(
        x, cache, taken, features, positions, ropes, subset
      )
    else:
      numbers = range(self.config.layers) if subset is None else subset
      for place, number in enumerate(numbers):
        x, cache = self.layer(number, place, x, cache, positions, ropes)
        if number + 1 in features:
          taken[number + 1] = x
    logits = self.logits(x)
    kept = None
    if features:
      kept = jnp.stack([taken[index] for index in features], axis=2)
    return Output(logits=logits, cache=cache, features=kept)

  def begin(
    self,
    tokens: Array,
    cache: KVCache | None,
    positions: Array | None = None,
  ):
    """What the first layer reads [B, T, D], the positions and the ropes."""
    if positions is None:
      at = jnp.arange(tokens.shape[1], dtype=jnp.int32)
      start = 0 if cache is None else cache.length[:, None]
      positions = jnp.broadcast_to(start + at, tokens.shape)
    return self._embed(tokens, positions), positions, self._ropes(positions)

  def layer(self, number: int, place: int, x, cache, positions, ropes):
    """Runs layer `number`, one of a list, whose cache is the `place`-th.

    Returns:
      x [B, T, D] and the cache, as `DecoderLayer` does.
    """
    graph, state = nnx.split(self.layers[number])
    window = self.config.windows[number] if self.config.windows else 0
    rope = ropes[1 if window and len(ropes) > 1 else 0]
    window = jnp.int32(window) if window else None
    place = jnp.int32(place)
    return _layer(graph, state, x, cache, place, positions, rope, window)

  def logits(self, x: Array) -> Array:
    """What norm and head make of a layer's output: [B, T, V], split over V."""
    x = self.norm(x)
    weight = self.embed["weight"] if self.config.tied else self.head.weight
    if self.placement is None:
      logits = product(x, weight[...])
    else:
      weight = self.placement.constrain(weight[...], (axes.VOCAB, axes.EMBED))
      logits = placed.product(x, weight)
      logits = self.placement.constrain(logits, (axes.ROWS, None, axes.VOCAB))
    if self.config.logit_softcap is not None:
      cap = self.config.logit_softcap
      logits = cap * jnp.tanh(logits / cap)
    return logits

  def _embed(self, tokens, positions):
    """What the first layer reads: [B, T, D]."""
    config, placement = self.config, self.placement
    table = self.embed["weight"][...]
    table = constrain(placement, table, (axes.VOCAB, axes.EMBED))
    x = lookup(table, tokens)
    x = constrain(placement, x, (axes.ROWS, None, axes.EMBED))
    if config.embed_scale is not None:
      # Rounded to the weights' dtype first: models were trained with that.
      x = x * jnp.asarray(config.embed_scale, x.dtype)
    if config.rope_theta is None:
      # Clipped: a pass over drafts may reach beyond what can be committed.
      table = self.position["weight"][...]
      x = x + jnp.take(table, positions, axis=0, mode="clip")
    return x

  def _ropes(self, positions):
    """(cos, sin) [B, T, 1, H / 2] of layers without and with a window.

    Just one where both share it; (None,) where positions do not rotate.
    """
    config = self.config
    if config.rope_theta is None:
      return (None,)
    kinds = [(config.rope_theta, config.rope_scaling)]
    if config.local_rope_theta is not None:
      kinds.append((config.local_rope_theta, None))
    ropes = []
    for theta, scaling in kinds:
      turn = rope_frequencies(config.head_dim, theta, scaling)
      angles = positions[..., None].astype(jnp.float32) * turn
      both = (jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None])
      names = (axes.ROWS, None, None, None)
      ropes.append(tuple(constrain(self.placement, one, names) for one in both))
    return tuple(ropes)

  def _scan(self, x, cache, taken, features, positions, ropes, subset):
    """The layers as one loop: compile time stays flat in L.

    The cache is carried whole and written in place; as scanned input and
    output it would be copied on every layer. Of a subset each layer is read
    out of the stack by its number: a stack of those alone would be a copy.
    """
    config = self.config
    graph, stacked = nnx.split(self.layers)
    wanted = tuple(index for index in features if index > 0)
    kept = jnp.zeros((len(wanted), *x.shape), x.dtype)
    windows = None
    if config.windows:
      windows = jnp.asarray(config.windows, jnp.int32)
    both = len(ropes) > 1 and jax.tree.map(lambda *r: jnp.stack(r), *ropes)

    def body(carry, inputs):
      x, cache, kept = carry
      index, number, state, window = inputs
      if state is None:
        state = jax.tree.map(
          lambda stack: lax.dynamic_index_in_dim(stack, number, keepdims=False),
          stacked,
        )
      rope = ropes[0]
      if both and window is not None:
        kind = (window > 0).astype(jnp.int32)
        rope = jax.tree.map(lambda r: r[kind], both)
      x, cache = _layer(graph, state, x, cache, index, positions, rope, window)
      for place, name in enumerate(wanted):
        here = jnp.where(number + 1 == name, x, kept[place])
        kept = kept.at[place].set(here)
      return (x, cache, kept), None

    indices = jnp.arange(config.layers, dtype=jnp.int32)
    over = (indices, indices, stacked, windows)
    if subset is not None:
      numbers = np.asarray(subset, np.int32)
      windows = None if windows is None else windows[numbers]
      over = (indices[: len(subset)], jnp.asarray(numbers), None, windows)
    with jax.named_scope("layers"):
      (x, cache, kept), _ = lax.scan(body, (x, cache, kept), over)
    taken = dict(taken)
    for place, name in enumerate(wanted):
      taken[name] = kept[place]
    return x, cache, taken
