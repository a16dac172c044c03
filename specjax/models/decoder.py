"""The decoder families (Llama and its kin, GPT-2) as one pure function.

A config says which features a model has; nothing here asks for its name.

`build` makes an nnx module of shapes, splits it once, and hands out a `Model`:
parameters are a flat tuple of arrays (the cheapest thing to pass to a jitted
call), named by `Model.paths`.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding

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
from specjax.models.product import product
from specjax.sharding import axes
from specjax.sharding.placement import Placement, constrain, put
from specjax.types import Array, Params


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

  def __call__(self, tokens: Array, cache: KVCache | None, features) -> Output:
    """Runs it; see the class."""
    config = self.config
    at = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    start = 0 if cache is None else cache.length[:, None]
    positions = jnp.broadcast_to(start + at, tokens.shape)
    ropes = self._ropes(positions)
    x = self._embed(tokens, positions)
    taken = {0: x} if 0 in features else {}
    if isinstance(self.layers, DecoderLayer):
      x, cache, taken = self._scan(x, cache, taken, features, positions, ropes)
    else:
      for index, layer in enumerate(self.layers):
        graph, state = nnx.split(layer)
        at = jnp.int32(index)
        window = config.windows[index] if config.windows else 0
        rope = ropes[1 if window and len(ropes) > 1 else 0]
        window = jnp.int32(window) if window else None
        x, cache = _layer(graph, state, x, cache, at, positions, rope, window)
        if index + 1 in features:
          taken[index + 1] = x
    logits = self._logits(x)
    if config.logit_softcap is not None:
      logits = config.logit_softcap * jnp.tanh(logits / config.logit_softcap)
    kept = None
    if features:
      kept = jnp.stack([taken[index] for index in features], axis=2)
    return Output(logits=logits, cache=cache, features=kept)

  def _logits(self, x):
    """What the head makes of the last layer's output, split over V."""
    x = self.norm(x)
    weight = self.embed["weight"] if self.config.tied else self.head.weight
    if self.placement is None:
      return product(x, weight[...])
    weight = self.placement.constrain(weight[...], (axes.VOCAB, axes.EMBED))
    logits = placed.product(x, weight)
    return self.placement.constrain(logits, (axes.ROWS, None, axes.VOCAB))

  def _embed(self, tokens, positions):
    """What the first layer reads: [B, T, D]."""
    config, placement = self.config, self.placement
    table = self.embed["weight"][...]
    table = constrain(placement, table, (axes.VOCAB, axes.EMBED))
    x = jnp.take(table, tokens, axis=0, mode="clip")
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

  def _scan(self, x, cache, taken, features, positions, ropes):
    """The layers as one loop: compile time stays flat in L.

    The cache is carried whole and written in place; as scanned input and
    output it would be copied on every layer.
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
      index, state, window = inputs
      rope = ropes[0]
      if both and window is not None:
        kind = (window > 0).astype(jnp.int32)
        rope = jax.tree.map(lambda r: r[kind], both)
      x, cache = _layer(graph, state, x, cache, index, positions, rope, window)
      for place, number in enumerate(wanted):
        here = jnp.where(index + 1 == number, x, kept[place])
        kept = kept.at[place].set(here)
      return (x, cache, kept), None

    indices = jnp.arange(config.layers, dtype=jnp.int32)
    over = (indices, stacked, windows)
    with jax.named_scope("layers"):
      (x, cache, kept), _ = lax.scan(body, (x, cache, kept), over)
    taken = dict(taken)
    for place, number in enumerate(wanted):
      taken[number] = kept[place]
    return x, cache, taken


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """A decoder as a pure function; see `models.base.Model`.

  Attributes:
    config: sizes and settings.
    dtype: of parameters and of keys and values.
    paths: dotted name of every parameter, in the order of `params`.
    shapes: `jax.ShapeDtypeStruct` of every parameter, in that order.
    axes: logical axes of every parameter, in that order.
    placement: how it is split over a mesh, or None.
  """

  config: DecoderConfig
  dtype: Any
  paths: tuple[str, ...]
  shapes: tuple[jax.ShapeDtypeStruct, ...]
  axes: tuple[tuple[str, ...], ...]
  _graph: Any = dataclasses.field(repr=False)
  _tree: Any = dataclasses.field(repr=False)
  placement: Placement | None = None

  @property
  def vocab_size(self) -> int:
    """V."""
    return self.config.vocab_size

  @property
  def parameter_count(self) -> int:
    """Numbers in all parameters together."""
    return sum(math.prod(shape.shape) for shape in self.shapes)

  @property
  def shardings(self) -> tuple[NamedSharding, ...] | None:
    """Where every parameter lies, in the order of `params`.

    None where there is no placement: on the default device.
    """
    if self.placement is None:
      return None
    return tuple(
      self.placement.sharding(names, parameter=True) for names in self.axes
    )

  def init(self, seed: int) -> Params:
    """Random parameters: normal, of deviation 1/sqrt(in).

    Norms begin as the identity, biases as zeros.
    """
    draws = np.random.default_rng(seed)
    plain = 0.0 if self.config.norm == "rms_plus_one" else 1.0

    def one(path, spec):
      if path.endswith("norm.weight"):
        return np.full(spec.shape, plain, spec.dtype)
      if path.endswith(".bias"):
        return np.zeros(spec.shape, spec.dtype)
      last = 2 if path.endswith(".o.weight") else 1
      width = math.prod(spec.shape[-last:])
      value = draws.standard_normal(spec.shape, np.float32)
      return (value / math.sqrt(width)).astype(spec.dtype)

    places = self.shardings or (None,) * len(self.shapes)
    return tuple(
      jnp.asarray(one(path, spec)) if place is None
      else put(one(path, spec), place)
      for path, spec, place in zip(
        self.paths, self.shapes, places, strict=True
      )
    )  # fmt: skip

  def init_cache(self, rows: int, capacity: int) -> KVCache:
    """An empty cache; see `KVCache.zeros`."""
    config, parts, platform = self.config, 1, None
    if self.placement is not None:
      parts = self.placement.ways(axes.CACHE_POSITIONS, "caches")
      platform = self.placement.platform
    return KVCache.zeros(
      layers=config.layers,
      rows=rows,
      heads=config.kv_heads,
      capacity=capacity,
      head_dim=config.head_dim,
      dtype=self.dtype,
      parts=parts,
      platform=platform,
    )

  def __call__(
    self,
    params: Params,
    tokens: Array,
    cache: KVCache | None,
    features: tuple[int, ...] = (),
  ) -> Output:
    """Runs it; see the class. Without a cache it has a gradient."""
    state = jax.tree.unflatten(self._tree, params)
    return nnx.merge(self._graph, state)(tokens, cache, features)


def logical_sizes(config: DecoderConfig) -> dict[str, int]:
  """How many there are along each logical axis of the parameters."""
  return {
    axes.HEADS: config.heads,
    axes.KV_HEADS: config.kv_heads,
    axes.EMBED: config.d_model,
    axes.MLP: config.d_ff,
    axes.VOCAB: config.vocab_size,
    axes.HEAD_DIM: config.head_dim,
    axes.LAYERS: config.layers,
    axes.POSITION: config.max_position,
  }


def build(
  config: DecoderConfig,
  *,
  dtype=jnp.float32,
  scan_layers: bool = False,
  placement: Placement | None = None,
  name: str | None = None,
) -> Model:
  """A model of shapes only; nothing is allocated.

  Args:
    config: sizes and settings.
    dtype: float32 or bfloat16. Products of float32 run at highest precision.
    scan_layers: one loop over stacked layers instead of unrolled ones. Keeps
      compile time flat on TPU; on CPU it costs 2x in float32 and up to 9x in
      bfloat16, because every layer's weights are copied out of the stack.
    placement: how it is split over a mesh; whole on one device unless given.
    name: what errors call it; the architecture unless given.

  Raises:
    ValueError: a size does not divide as the placement wants it, or the rules
      collide; names both.
  """
  if placement is not None:
    sizes = logical_sizes(config)
    if not scan_layers:
      del sizes[axes.LAYERS]
    if config.rope_theta is not None:
      del sizes[axes.POSITION]
    placement.check(sizes, name or config.architecture)
    attention = {axes.KV_HEADS: config.kv_heads}
    placement.check(attention, name or config.architecture, ("caches",))
  module = Decoder(
    config,
    dtype=jnp.dtype(dtype),
    scan_layers=scan_layers,
    placement=placement,
  )
  graph, state = nnx.split(module)
  shapes, tree = jax.tree.flatten(state)
  flat = list(nnx.to_flat_state(state))
  assert len(flat) == len(shapes)
  model = Model(
    config=config,
    dtype=jnp.dtype(dtype),
    paths=tuple(".".join(map(str, path)) for path, _ in flat),
    shapes=tuple(shapes),
    axes=tuple(variable.get_metadata()["axes"] for _, variable in flat),
    _graph=graph,
    _tree=tree,
    placement=placement,
  )
  if placement is not None:
    _refuse_collisions(model)
  return model


def _refuse_collisions(model: Model) -> None:
  """Raises where two dimensions of one array want one axis of the mesh."""
  place = model.placement
  for names in dict.fromkeys(model.axes):
    place.spec(names, "parameters")
    place.spec([name for name in names if name != axes.LAYERS])
  for last in (axes.EMBED, axes.MLP, axes.VOCAB):
    place.spec((axes.ROWS, None, last))
  place.spec(placed.QUERIES)
  place.spec(placed.KEYS)
  place.spec(placed.KEYS, "caches")
  place.spec(placed.STACK, "caches")
