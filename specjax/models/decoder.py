"""The decoder family (Llama) as a pure function.

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

from specjax.cache import KVCache
from specjax.models.base import Output
from specjax.models.config import DecoderConfig
from specjax.models.layers import (
  DecoderLayer,
  Linear,
  RMSNorm,
  param,
  rope_frequencies,
)
from specjax.models.product import product
from specjax.sharding import axes
from specjax.types import Array, Params


@functools.partial(jax.jit, static_argnums=0)
def _layer(graph, state, x, cache, index, positions, cos, sin):
  """One layer; a function of its own, so that it is traced once for all.

  Tracing was half of a warm start: 30 unrolled layers took 0.5 s a program,
  and now take 0.1.
  """
  layer = nnx.merge(graph, state)
  return layer(x, cache, index, positions, cos, sin)


class Decoder(nnx.Module):
  """Embedding, L layers (a list, or one stacked), norm and head."""

  def __init__(self, config: DecoderConfig, *, dtype, scan_layers: bool):
    self.config = config
    table = (config.vocab_size, config.d_model)
    table_axes = (axes.VOCAB, axes.EMBED)
    self.embed = nnx.Dict(weight=param(table, table_axes, dtype, None))
    if scan_layers:
      self.layers = DecoderLayer(config, dtype, config.layers)
    else:
      self.layers = nnx.List(
        [DecoderLayer(config, dtype) for _ in range(config.layers)]
      )
    self.norm = RMSNorm(config.d_model, config.norm_eps, dtype)
    if not config.tied:
      self.head = Linear(table, table_axes, dtype)

  def __call__(self, tokens: Array, cache: KVCache, features) -> Output:
    """Runs it; see the class."""
    config = self.config
    positions = cache.length[:, None]
    positions = positions + jnp.arange(tokens.shape[1], dtype=jnp.int32)
    turn = rope_frequencies(
      config.head_dim, config.rope_theta, config.rope_scaling
    )
    angles = positions[..., None].astype(jnp.float32) * turn
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    x = jnp.take(self.embed["weight"][...], tokens, axis=0, mode="clip")
    taken = {0: x} if 0 in features else {}
    if isinstance(self.layers, DecoderLayer):
      x, cache, taken = self._scan(
        x, cache, taken, features, positions, cos, sin
      )
    else:
      for index, layer in enumerate(self.layers):
        graph, state = nnx.split(layer)
        at = jnp.int32(index)
        x, cache = _layer(graph, state, x, cache, at, positions, cos, sin)
        if index + 1 in features:
          taken[index + 1] = x
    weight = self.embed["weight"] if config.tied else self.head.weight
    logits = product(self.norm(x), weight[...])
    kept = None
    if features:
      kept = jnp.stack([taken[index] for index in features], axis=2)
    return Output(logits=logits, cache=cache, features=kept)

  def _scan(self, x, cache, taken, features, positions, cos, sin):
    """The layers as one loop: compile time stays flat in L.

    The cache is carried whole and written in place; as scanned input and
    output it would be copied on every layer.
    """
    graph, stacked = nnx.split(self.layers)
    wanted = tuple(index for index in features if index > 0)
    kept = jnp.zeros((len(wanted), *x.shape), x.dtype)

    def body(carry, inputs):
      x, cache, kept = carry
      index, state = inputs
      x, cache = _layer(graph, state, x, cache, index, positions, cos, sin)
      for place, number in enumerate(wanted):
        here = jnp.where(index + 1 == number, x, kept[place])
        kept = kept.at[place].set(here)
      return (x, cache, kept), None

    indices = jnp.arange(self.config.layers, dtype=jnp.int32)
    with jax.named_scope("layers"):
      (x, cache, kept), _ = lax.scan(body, (x, cache, kept), (indices, stacked))
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
  """

  config: DecoderConfig
  dtype: Any
  paths: tuple[str, ...]
  shapes: tuple[jax.ShapeDtypeStruct, ...]
  axes: tuple[tuple[str, ...], ...]
  _graph: Any = dataclasses.field(repr=False)
  _tree: Any = dataclasses.field(repr=False)

  @property
  def vocab_size(self) -> int:
    """V."""
    return self.config.vocab_size

  @property
  def parameter_count(self) -> int:
    """Numbers in all parameters together."""
    return sum(math.prod(shape.shape) for shape in self.shapes)

  def init(self, seed: int) -> Params:
    """Random parameters: normal, of deviation 1/sqrt(in); norms are ones."""
    draws = np.random.default_rng(seed)

    def one(path, spec):
      if path.endswith("norm.weight"):
        return jnp.ones(spec.shape, spec.dtype)
      last = 2 if path.endswith(".o.weight") else 1
      width = math.prod(spec.shape[-last:])
      value = draws.standard_normal(spec.shape, np.float32)
      return jnp.asarray(value / math.sqrt(width), spec.dtype)

    return tuple(map(one, self.paths, self.shapes))

  def init_cache(self, rows: int, capacity: int) -> KVCache:
    """An empty cache; see `KVCache.zeros`."""
    config = self.config
    return KVCache.zeros(
      layers=config.layers,
      rows=rows,
      heads=config.kv_heads,
      capacity=capacity,
      head_dim=config.head_dim,
      dtype=self.dtype,
    )

  def __call__(
    self,
    params: Params,
    tokens: Array,
    cache: KVCache,
    features: tuple[int, ...] = (),
  ) -> Output:
    """Runs it; see the class."""
    state = jax.tree.unflatten(self._tree, params)
    return nnx.merge(self._graph, state)(tokens, cache, features)


def build(
  config: DecoderConfig, *, dtype=jnp.float32, scan_layers: bool = False
) -> Model:
  """A model of shapes only; nothing is allocated.

  Args:
    config: sizes and settings.
    dtype: float32 or bfloat16. Products of float32 run at highest precision.
    scan_layers: one loop over stacked layers instead of unrolled ones. Keeps
      compile time flat on TPU; on CPU it costs 2x in float32 and up to 9x in
      bfloat16, because every layer's weights are copied out of the stack.
  """
  module = Decoder(config, dtype=jnp.dtype(dtype), scan_layers=scan_layers)
  graph, state = nnx.split(module)
  shapes, tree = jax.tree.flatten(state)
  flat = list(nnx.to_flat_state(state))
  assert len(flat) == len(shapes)
  return Model(
    config=config,
    dtype=jnp.dtype(dtype),
    paths=tuple(".".join(map(str, path)) for path, _ in flat),
    shapes=tuple(shapes),
    axes=tuple(variable.get_metadata()["axes"] for _, variable in flat),
    _graph=graph,
    _tree=tree,
  )
