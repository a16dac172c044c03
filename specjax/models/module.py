"""The decoder as an nnx module: embedding, layers, norm and head.

A config says which features a model has; nothing here asks for its name.
`decoder.build` makes a pure function of it.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from specjax.cache import Encoded, KVCache, SourceCache
from specjax.models import placed, relative
from specjax.models.base import Output
from specjax.models.config import DecoderConfig
from specjax.models.encoder import Encoder, distance_table
from specjax.models.layers import (
  DecoderLayer,
  Linear,
  rope_frequencies,
)
from specjax.models.lookup import lookup
from specjax.models.norms import make_norm, param
from specjax.models.product import product
from specjax.sharding import axes
from specjax.sharding.placement import LOGITS, Placement, constrain
from specjax.types import Array


@functools.partial(jax.jit, static_argnums=0)
def _layer(graph, state, x, cache, index, positions, rope, window):
  """One layer up to its last sum (see `DecoderLayer.unadded`), traced once.

  Tracing was half of a warm start: 30 unrolled layers took 0.5 s a program,
  and now take 0.1. Rotation and window are data; layers without a window are
  a second kind, with no mask for one.
  """
  layer = nnx.merge(graph, state)
  return layer.unadded(x, cache, index, positions, rope, window)


def start_of(path: str, *, plus_one: bool = False) -> str:
  """How a parameter begins: as "ones", "zeros", or "normal" numbers.

  Args:
    path: its dotted name.
    plus_one: whether norms add one to their weights.
  """
  if path.endswith("norm.weight"):
    return "zeros" if plus_one else "ones"
  return "zeros" if path.endswith(".bias") else "normal"


def drawn(
  paths: Sequence[str],
  shapes: Sequence[jax.ShapeDtypeStruct],
  starts: Sequence[str],
  seed: int,
) -> Iterator[np.ndarray]:
  """Random parameters, one after another; see `start_of`.

  Normal ones are of deviation 1 / sqrt(in).
  """
  draws = np.random.default_rng(seed)
  for path, spec, start in zip(paths, shapes, starts, strict=True):
    if start != "normal":
      yield np.full(spec.shape, float(start == "ones"), spec.dtype)
      continue
    last = 2 if path.endswith(".o.weight") else 1
    width = math.prod(spec.shape[-last:])
    value = draws.standard_normal(spec.shape, np.float32)
    yield (value / math.sqrt(width)).astype(spec.dtype)


def embedded(
  config: DecoderConfig,
  placement: Placement | None,
  table: Array,
  tokens: Array,
) -> Array:
  """What tokens are to the first layer, [B, T, D] of int32 [B, T].

  Without learned positions, where a model has them.
  """
  table = constrain(placement, table, (axes.VOCAB, axes.EMBED))
  x = lookup(table, tokens)
  x = constrain(placement, x, (axes.ROWS, None, axes.EMBED))
  if config.embed_scale is None:
    return x
  # Rounded to the weights' dtype first: models were trained with that.
  return x * jnp.asarray(config.embed_scale, x.dtype)


def logits_of(
  config: DecoderConfig, placement: Placement | None, x: Array, table: Array
) -> Array:
  """What a head [V, D] makes of a normed x [B, T, D]: [B, T, V], split over V.

  Unlike a Linear's output it is float32, whatever x is.
  """
  if placement is None:
    return capped(config, product(x, table))
  table = placement.constrain(table, (axes.VOCAB, axes.EMBED))
  return capped(config, placement.constrain(placed.product(x, table), LOGITS))


def capped(config: DecoderConfig, logits: Array) -> Array:
  """Scales (T5) or bounds (Gemma 2) logits, where a model does."""
  if config.head_scale is not None:
    logits = logits * config.head_scale
  cap = config.logit_softcap
  return logits if cap is None else cap * jnp.tanh(logits / cap)


def counted(
  tokens: Array, cache: KVCache | SourceCache | Encoded | None
) -> Array:
  """The positions of a block behind a cache, if there is one: int32 [B, T]."""
  at = jnp.arange(tokens.shape[1], dtype=jnp.int32)
  whole = cache is None or isinstance(cache, Encoded)
  start = 0 if whole else cache.length[:, None]
  return jnp.broadcast_to(start + at, tokens.shape)


def ropes(
  config: DecoderConfig, placement: Placement | None, positions: Array
) -> tuple[tuple[Array, Array] | None, ...]:
  """(cos, sin) [B, T, 1, H / 2] of layers without and with a window.

  Just one where both share it; (None,) where positions do not rotate.
  """
  if config.rope_theta is None:
    return (None,)
  kinds = [(config.rope_theta, config.rope_scaling)]
  if config.local_rope_theta is not None:
    kinds.append((config.local_rope_theta, None))
  found = []
  for theta, scaling in kinds:
    turn = rope_frequencies(config.head_dim, theta, scaling)
    angles = positions[..., None].astype(jnp.float32) * turn
    both = _cos_and_sin(angles[:, :, None])
    names = (axes.ROWS, None, None, None)
    found.append(tuple(constrain(placement, one, names) for one in both))
  return tuple(found)


def _cos_and_sin(angles: Array) -> tuple[Array, Array]:
  """Both, taken once: XLA's CPU backend moves them into what reads them.

  There they would be taken anew in every layer for every head, and be so much
  work that XLA wakes threads for it, between products that keep every core
  busy. Out of a loop it moves nothing.
  """
  plain = lambda angles: (jnp.cos(angles), jnp.sin(angles))

  def apart(angles):
    one = lambda which: lax.switch(which, (jnp.cos, jnp.sin), angles)
    return tuple(lax.map(one, jnp.arange(2)))

  return lax.platform_dependent(angles, cpu=apart, default=plain)


class Decoder(nnx.Module):
  """Embedding, L layers (a list, or one stacked), norm and head.

  And an encoder, where the config has one: it shares the embedding.
  """

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
    if config.relative_buckets is not None:
      self.relative = nnx.Dict(weight=distance_table(config, dtype))
    if config.encoder_layers:
      self.encoder = Encoder(
        config, dtype=dtype, scan_layers=scan_layers, placement=placement
      )
    if config.has_position_table:
      shape = (config.max_position, config.d_model)
      names = (axes.POSITION, axes.EMBED)
      self.position = nnx.Dict(weight=param(shape, names, dtype, None))
    if not config.tied:
      self.head = Linear(table, table_axes, dtype)

  def __call__(
    self,
    tokens: Array,
    cache: KVCache | SourceCache | Encoded | None,
    features,
    subset=None,
    positions: Array | None = None,
    last: Array | None = None,
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
    if last is not None:
      x = jnp.take_along_axis(x, last[:, None, None], axis=1)
    logits = self.logits(x)
    kept = None
    if features:
      kept = jnp.stack([taken[index] for index in features], axis=2)
    return Output(logits=logits, cache=cache, features=kept)

  def begin(
    self,
    tokens: Array,
    cache: KVCache | SourceCache | Encoded | None,
    positions: Array | None = None,
  ):
    """What the first layer reads [B, T, D], the positions and the ropes."""
    if positions is None:
      positions = counted(tokens, cache)
    config, table = self.config, self.embed["weight"][...]
    x = embedded(config, self.placement, table, tokens)
    if config.relative_buckets is not None:
      table, furthest = self.relative["weight"][...], config.relative_distance
      biases = relative.Biases(by_distance=relative.causal(table, furthest))
      return x, positions, (biases,)
    if config.has_position_table:
      # Clipped: a pass over drafts may reach beyond what can be committed.
      table = self.position["weight"][...]
      x = x + jnp.take(table, positions, axis=0, mode="clip")
    return x, positions, ropes(config, self.placement, positions)

  def read(self, tokens: Array, text: Array, asking: Array) -> Encoded:
    """Sources, encoded for whole outputs; see `Model.read`."""
    table = self.embed["weight"][...]
    x = embedded(self.config, self.placement, table, tokens)
    return Encoded(states=self.encoder(x, text), text=text, asking=asking)

  def encode(
    self, tokens: Array, size: Array, cache: SourceCache, subset=None
  ) -> SourceCache:
    """The cache with what layers make of a source; see `Model.encode`."""
    at = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    text = (at < size[:, None]).astype(jnp.int32)
    x = self.read(tokens, text, text).states
    old, fresh = cache.source, (size > 0).reshape(1, -1, 1, 1, 1)

    def write(cross, source, index):
      k, v = cross.keys(x)
      if self.placement is None:
        return source.write(index, k, v)
      return placed.written(self.placement, k, v, source, index)

    source = old.at(jnp.zeros_like(old.length))
    numbers = range(self.config.layers) if subset is None else subset
    if isinstance(self.layers, DecoderLayer):
      graph, stacked = nnx.split(self.layers.cross)

      def body(source, inputs):
        index, number = inputs
        state = jax.tree.map(
          lambda stack: lax.dynamic_index_in_dim(stack, number, keepdims=False),
          stacked,
        )
        return write(nnx.merge(graph, state), source, index), None

      numbers = jnp.asarray(tuple(numbers), jnp.int32)
      places = jnp.arange(len(numbers), dtype=jnp.int32)
      source, _ = lax.scan(body, source, (places, numbers))
    else:
      for place, number in enumerate(numbers):
        source = write(self.layers[number].cross, source, place)
    # Rows without a source keep what they have.
    source = KVCache(
      k=jnp.where(fresh, source.k, old.k),
      v=jnp.where(fresh, source.v, old.v),
      length=jnp.where(size > 0, size, old.length),
    )
    return dataclasses.replace(cache, source=source)

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
    x, out, cache = _layer(
      graph, state, x, cache, place, positions, rope, window
    )
    return x + out, cache

  def logits(self, x: Array) -> Array:
    """What norm and head make of a layer's output: [B, T, V], split over V."""
    x = self.norm(x)
    table = self.embed["weight"] if self.config.tied else self.head.weight
    return logits_of(self.config, self.placement, x, table[...])

  def _scan(self, x, cache, taken, features, positions, ropes, subset):
    """The layers as one loop: compile time stays flat in L.

    The cache is carried whole and written in place; as scanned input and
    output it would be copied on every layer. Of a subset each layer is read
    out of the stack by its number: a stack of those alone would be a copy.

    A layer's last sum is made by the one that reads it: what the loop carries
    may lie in main memory (on a v5p it does), where what the chips have added
    up lies anyway, and their sum is then not written there and read by each of
    the products that follow.
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
      (x, out), cache, kept = carry
      x = x + out
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
      x, out, cache = _layer(
        graph, state, x, cache, index, positions, rope, window
      )
      for place, name in enumerate(wanted):
        here = jnp.where(number + 1 == name, x + out, kept[place])
        kept = kept.at[place].set(here)
      return ((x, out), cache, kept), None

    indices = jnp.arange(config.layers, dtype=jnp.int32)
    over = (indices, indices, stacked, windows)
    if subset is not None:
      numbers = np.asarray(subset, np.int32)
      windows = None if windows is None else windows[numbers]
      over = (indices[: len(subset)], jnp.asarray(numbers), None, windows)
    with jax.named_scope("layers"):
      start = ((x, jnp.zeros_like(x)), cache, kept)
      ((x, out), cache, kept), _ = lax.scan(body, start, over)
    x = x + out
    taken = dict(taken)
    for place, name in enumerate(wanted):
      taken[name] = kept[place]
    return x, cache, taken
