"""The decoder families (Llama, GPT-2, T5 and their kin) as one pure function.

`build` makes an nnx module of shapes (`models.module`), splits it once, and
hands out a `Model`: parameters are a flat tuple of arrays (the cheapest thing
to pass to a jitted call), named by `Model.paths`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding

from specjax.cache import Encoded, KVCache, SourceCache
from specjax.models import placed
from specjax.models.attend import AT_ONCE
from specjax.models.base import Output
from specjax.models.config import DecoderConfig
from specjax.models.module import Decoder, drawn, start_of
from specjax.sharding import axes
from specjax.sharding.placement import Placement, put
from specjax.types import Array, Params


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
    subset: which of the layers run; all where it is None. See `only`.
  """

  config: DecoderConfig
  dtype: Any
  paths: tuple[str, ...]
  shapes: tuple[jax.ShapeDtypeStruct, ...]
  axes: tuple[tuple[str, ...], ...]
  _graph: Any = dataclasses.field(repr=False)
  _tree: Any = dataclasses.field(repr=False)
  placement: Placement | None = None
  subset: tuple[int, ...] | None = None

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
    plus_one = self.config.norm == "rms_plus_one"
    starts = [start_of(path, plus_one=plus_one) for path in self.paths]
    values = drawn(self.paths, self.shapes, starts, seed)
    places = self.shardings or (None,) * len(self.shapes)
    return tuple(
      jnp.asarray(value) if place is None else put(value, place)
      for value, place in zip(values, places, strict=True)
    )

  def only(self, layers: Sequence[int]) -> "Model":
    """The same model, of whose layers these alone run; norm and head follow.

    It takes all of the parameters, so it costs none of its own. The n-th of
    the layers is the n-th of its cache: that of a prefix 0..n-1 may be the
    whole model's.

    Args:
      layers: their numbers, ascending.

    Raises:
      ValueError: they are none, out of range or not ascending.
    """
    layers, count = tuple(layers), self.config.layers
    for layer in layers:
      if not 0 <= layer < count:
        raise ValueError(
          f"layer {layer} is not one of the model's {count}; give 0 to "
          f"{count - 1}"
        )
    if not layers or list(layers) != sorted(set(layers)):
      raise ValueError(
        f"layers {list(layers)} are not ascending numbers; give each "
        "layer that is to run once, the first one first"
      )
    return dataclasses.replace(self, subset=layers)

  @property
  def reads_source(self) -> bool:
    """Whether it answers a source that its encoder reads first."""
    return self.config.encoder_layers > 0

  def init_cache(self, rows: int, capacity: int) -> KVCache | SourceCache:
    """An empty cache; see `KVCache.zeros`.

    Beside an encoder it has room for as long a source as it has for an output.
    """
    config, parts, platform = self.config, 1, None
    layers = config.layers if self.subset is None else len(self.subset)
    if self.placement is not None:
      parts = self.placement.ways(axes.CACHE_POSITIONS, "caches")
      platform = self.placement.platform
    zeros = lambda: KVCache.zeros(
      layers=layers,
      rows=rows,
      heads=config.kv_heads,
      capacity=capacity,
      head_dim=config.head_dim,
      dtype=self.dtype,
      parts=parts,
      platform=platform,
    )
    if self.reads_source:
      return SourceCache(own=zeros(), source=zeros())
    return zeros()

  def encode(
    self, params: Params, tokens: Array, size: Array, cache: SourceCache
  ) -> SourceCache:
    """Reads sources, of a model with an encoder.

    Args:
      params: its parameters.
      tokens: int32 [B, T], T at most the cache's capacity.
      size: int32 [B], tokens of each source; a row with none keeps the source
        that it has.
      cache: of B rows.

    Returns:
      The cache with the keys and values of each layer's attention over the
      source; the output's are as they were.
    """
    return self.merge(params).encode(tokens, size, cache, self.subset)

  def read(
    self, params: Params, tokens: Array, text: Array, asking: Array
  ) -> Encoded:
    """Reads sources for whole outputs: what training calls the model with.

    Args:
      params: its parameters.
      tokens: int32 [B, S].
      text, asking: int32 [B, S] and [B, T]; see `Encoded`.

    Returns:
      What `__call__` takes as its cache; both have a gradient.
    """
    return self.merge(params).read(tokens, text, asking)

  def __call__(
    self,
    params: Params,
    tokens: Array,
    cache: KVCache | SourceCache | Encoded | None,
    features: tuple[int, ...] = (),
    positions: Array | None = None,
    last: Array | None = None,
  ) -> Output:
    """Runs it; see the class. Without a cache it has a gradient.

    `positions` [B, T] are for rows of several texts (see `attend_block`) and,
    with a cache, for tokens that stand before where they are written (see
    `Siblings`). An encoder-decoder takes what `read` gives in a cache's place.

    Raises:
      ValueError: it has an encoder, and there is neither.
    """
    if cache is None and self.reads_source:
      raise ValueError(
        f"{self.config.architecture} answers a source; give what `read` makes"
        " of it in the cache's place"
      )
    module = self.merge(params)
    return module(tokens, cache, features, self.subset, positions, last)

  def move(
    self, cache: KVCache | SourceCache, source: Array, to: Array
  ) -> KVCache | SourceCache:
    """The cache with one position of each row at another one.

    Args:
      cache: of B rows.
      source, to: int32 [B]; see `KVCache.move`.
    """
    if isinstance(cache, SourceCache):
      return dataclasses.replace(cache, own=self.move(cache.own, source, to))
    if self.placement is None:
      return cache.move(source, to)
    return placed.moved(self.placement, cache, source, to)

  def encoding_bytes(self, width: int) -> int:
    """Bytes of what is alive while a source of `width` tokens is read.

    Float32, the widest arrays of a layer: scores and weights of attention, the
    MLP's products.
    """
    config = self.config
    scores = 2 * config.heads * min(width, AT_ONCE)
    return 4 * width * (scores + 3 * config.d_ff + 4 * config.d_model)

  def merge(self, params: Params) -> Decoder:
    """The module with these parameters, for running it layer by layer."""
    state = jax.tree.unflatten(self._tree, params)
    return nnx.merge(self._graph, state)


def is_of_source(path: str) -> bool:
  """Whether a parameter is read once a request, with its source, alone."""
  keys = (".cross.k.", ".cross.v.")
  return path.startswith("encoder.") or any(part in path for part in keys)


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
    axes.POSITION: config.relative_buckets or config.max_position,
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
