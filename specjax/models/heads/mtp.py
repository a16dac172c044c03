"""Multi-token prediction: modules that predict ever further on, in a row.

Module k reads the state of module k - 1 (the first one the target's) beside the
embedding of the token that followed, each normed, and predicts the token after
that; embedding and head are the target's (DeepSeek-V3 2024, section 2.2). A
module here is laid out as MiMo-7B's: the state before the embedding, one layer
as the target's, a norm of its own before the head.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding

from specjax.cache import KVCache
from specjax.models import decoder
from specjax.models.config import DecoderConfig
from specjax.models.heads import eagle, module
from specjax.models.heads.ends import Ends, ends
from specjax.models.layers import DecoderLayer, Linear, make_norm
from specjax.sharding import axes
from specjax.sharding.placement import Placement
from specjax.types import Array, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class MtpConfig:
  """Sizes of modules of multi-token prediction.

  Attributes:
    layer: of each module's layer; `vocab_size` is the target's.
    depths: K, how many modules there are.
    features: the target's layers that the first one reads: the last alone.
    is_within: whether they lie in the target's own checkpoint.
    draft_vocab: Vd, how many of the ids they can draft; None for all.
  """

  layer: DecoderConfig
  depths: int
  features: tuple[int, ...]
  is_within: bool = False
  draft_vocab: int | None = None

  def __post_init__(self):
    if self.depths < 1:
      raise ValueError(
        f"there are {self.depths} modules of multi-token prediction; give at "
        "least 1"
      )


class _Depth(nnx.Module):
  """One module."""

  def __init__(self, config: DecoderConfig, dtype, placement):
    width = config.d_model
    self.config = config
    self.placement = placement
    self.hidden_norm = make_norm(config, dtype)
    self.token_norm = make_norm(config, dtype)
    self.proj = Linear(
      (width, 2 * width), (axes.EMBED, axes.EMBED), dtype, None, placement
    )
    self.layer = DecoderLayer(config, dtype, None, placement)
    self.norm = make_norm(config, dtype)

  def __call__(self, hidden, embedded, cache, positions):
    """Runs it, on a whole text where the cache is None."""
    pair = [self.hidden_norm(hidden), self.token_norm(embedded)]
    x = self.proj(jnp.concatenate(pair, axis=-1))
    rope = module.rotation(self.config, positions, self.placement)
    return self.layer(x, cache, 0, positions, rope, None)


class Mtp(nnx.Module):
  """All modules."""

  def __init__(self, config: MtpConfig, dtype, placement: Placement | None):
    self.depths = nnx.List(
      [_Depth(config.layer, dtype, placement) for _ in range(config.depths)]
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MtpModel:
  """Modules of multi-token prediction as pure functions.

  Their parameters are those of `head`, in order, and behind them, with a
  reduced vocabulary, `kept` int32 [Vd] (the target's ids, ascending) and those
  rows of the target's head [Vd, D]. Only `head`'s are trained.

  Training reads whole texts: with features [B, T, 1, D] after reading tokens
  [B, T],

    hidden = model.fuse(params, target_params, features)
    for depth in range(K):
      hidden, _ = model.read(params, target_params, tokens[:, depth + 1:],
                             hidden[:, :-1], depth=depth)
      logits = model.logits(params, target_params, hidden, depth=depth)

  and logits[:, i] of a depth predicts tokens[:, i + depth + 2].

  Attributes:
    config: their sizes.
    dtype: of parameters, keys and values.
    head: the modules' own parameters.
    ends: of the target.
    placement: where they work, or None; see `module.by_rows`.
  """

  config: MtpConfig
  dtype: Any
  head: module.Head
  ends: Ends
  placement: Placement | None

  @property
  def vocab_size(self) -> int:
    """V of the target."""
    return self.ends.config.vocab_size

  @property
  def draft_vocab(self) -> int:
    """Vd, the length of their logits."""
    return self.config.draft_vocab or self.vocab_size

  @property
  def is_reduced(self) -> bool:
    """Whether there are ids that they cannot draft."""
    return self.draft_vocab < self.vocab_size

  @property
  def shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
    """`jax.ShapeDtypeStruct` of every parameter."""
    if not self.is_reduced:
      return self.head.shapes
    rows = (self.draft_vocab, self.config.layer.d_model)
    return (
      *self.head.shapes,
      jax.ShapeDtypeStruct((self.draft_vocab,), jnp.dtype(jnp.int32)),
      jax.ShapeDtypeStruct(rows, self.dtype),
    )

  @property
  def shardings(self) -> tuple[NamedSharding, ...] | None:
    """Where every parameter lies: whole on each device; None with no mesh."""
    if self.placement is None:
      return None
    return (self.placement.whole,) * len(self.shapes)

  def kept(self, params: Params) -> Array | None:
    """The ids that they can draft, int32 [Vd]; None for all."""
    return params[-2] if self.is_reduced else None

  def complete(
    self, head_params: Params, target_params: Params, kept: Array | None = None
  ) -> Params:
    """All parameters, from those of `head`.

    Args:
      head_params: in the order of `head.paths`.
      target_params: the target's, of whose head rows are taken.
      kept: int32 [Vd], ascending; None without a reduced vocabulary.
    """
    assert (kept is not None) == self.is_reduced
    if kept is None:
      return tuple(head_params)
    kept = jnp.asarray(kept, jnp.int32)
    rows = self.ends.rows(target_params, kept).astype(self.dtype)
    return *head_params, kept, rows

  def init_cache(self, rows: int, capacity: int) -> KVCache:
    """An empty cache of one module; see `KVCache.zeros`."""
    layer, platform = self.config.layer, None
    if self.placement is not None:
      platform = self.placement.platform
    return KVCache.zeros(
      layers=1,
      rows=rows,
      heads=layer.kv_heads,
      capacity=capacity,
      head_dim=layer.head_dim,
      dtype=self.dtype,
      platform=platform,
    )

  def fuse(
    self, params: Params, target_params: Params, features: Array
  ) -> Array:
    """What the first module reads: [B, T, D] of the target's [B, T, 1, D]."""
    del params, target_params
    return features[:, :, 0].astype(self.dtype)

  def read(
    self,
    params: Params,
    target_params: Params,
    tokens: Array,
    hidden: Array,
    cache: KVCache | None = None,
    positions: Array | None = None,
    *,
    depth: int = 0,
  ) -> tuple[Array, KVCache | None]:
    """What one module makes of pairs: [B, T, D], and the cache.

    Args:
      params: see the class.
      target_params: the target's.
      tokens: int32 [B, T].
      hidden: [B, T, D], the state before each token: of the module before
        this one, of the target (`fuse`), or in drafting the module's own.
      cache: this module's, of the pairs before them; None where there are
        none and none follow. Without one it has a gradient.
      positions: int32 [B, T], of the pairs, where a row holds several texts;
        see `attend_block`.
      depth: which module, from 0.
    """
    if positions is None:
      at = jnp.arange(tokens.shape[1], dtype=jnp.int32)
      start = 0 if cache is None else cache.length[:, None]
      positions = jnp.broadcast_to(start + at, tokens.shape)
    embedded = self.ends.embed(target_params, tokens).astype(self.dtype)
    one = self._merge(params).depths[depth]
    return one(hidden, embedded, cache, positions)

  def logits(
    self,
    params: Params,
    target_params: Params,
    hidden: Array,
    *,
    depth: int = 0,
  ) -> Array:
    """What a module says comes after each pair: float32 [B, T, Vd]."""
    x = self._merge(params).depths[depth].norm(hidden)
    if self.is_reduced:
      return self.ends.capped(module.product(self.placement, x, params[-1]))
    return self.ends.logits(target_params, x)

  def _merge(self, params: Params) -> Mtp:
    return self.head.merge(params[: len(self.head.paths)])


def build(
  config: MtpConfig, target: decoder.Model, *, dtype: Any = None
) -> MtpModel:
  """Modules of shapes only, for a target.

  Args:
    config: their sizes.
    target: whose states they read.
    dtype: the target's unless given.

  Raises:
    ValueError: names the size of modules and target that do not fit.
  """
  for name in ("d_model", "vocab_size"):
    ours, theirs = getattr(config.layer, name), getattr(target.config, name)
    if ours != theirs:
      raise ValueError(
        f"the modules were made for a target with {name} {ours}, and this "
        f"one's is {theirs}; take the modules of this target"
      )
  drafted = config.draft_vocab
  if drafted is not None and drafted > target.vocab_size:
    raise ValueError(
      f"the modules draft from {drafted} ids, and the target has "
      f"{target.vocab_size}; take the modules of this target"
    )
  dtype = jnp.dtype(target.dtype if dtype is None else dtype)
  placement = module.by_rows(target.placement)
  return MtpModel(
    config=config,
    dtype=dtype,
    head=module.split(Mtp(config, dtype, placement), placement),
    ends=ends(target),
    placement=placement,
  )


def small(
  target: DecoderConfig, *, depths: int = 1, draft_vocab: int | None = None
) -> MtpConfig:
  """New modules' config: each a Llama's layer of the target's sizes.

  Args:
    target: its config.
    depths: K.
    draft_vocab: Vd; None for all.
  """
  layer = eagle.small(target, fuses=False).layer
  return MtpConfig(
    layer=layer,
    depths=depths,
    features=(target.layers,),
    draft_vocab=draft_vocab,
  )
