"""Multi-token prediction: modules that predict ever further on, in a row.

Module k reads the state of module k - 1 (the first one the target's) beside the
embedding of the token that followed, each normed, and predicts the token after
that; embedding and head are the target's (DeepSeek-V3 2024, section 2.2). A
module here is laid out as MiMo-7B's: the state before the embedding, one layer
as the target's, a norm of its own before the head.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import nnx

from specjax.cache import KVCache
from specjax.models import decoder
from specjax.models.config import DecoderConfig
from specjax.models.heads import borrowed, eagle
from specjax.models.heads.borrowed import HeadModel
from specjax.models.layers import DecoderLayer, Linear
from specjax.models.module import counted, ropes
from specjax.models.norms import make_norm
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
    rope = ropes(self.config, self.placement, positions)[0]
    return self.layer(x, cache, 0, positions, rope, None)


class Mtp(nnx.Module):
  """All modules."""

  def __init__(self, config: MtpConfig, dtype, placement: Placement | None):
    self.depths = nnx.List(
      [_Depth(config.layer, dtype, placement) for _ in range(config.depths)]
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MtpModel(HeadModel):
  """Modules of multi-token prediction as pure functions; see `HeadModel`.

  Training reads whole texts: with features [B, T, 1, D] after reading tokens
  [B, T],

    hidden = model.fuse(params, target_params, features)
    for depth in range(K):
      hidden, _ = model.read(params, target_params, tokens[:, depth + 1:],
                             hidden[:, :-1], depth=depth)
      logits = model.logits(params, target_params, hidden, depth=depth)

  and logits[:, i] of a depth predicts tokens[:, i + depth + 2].
  """

  config: MtpConfig

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
      positions = counted(tokens, cache)
    embedded = self._embedded(target_params, tokens)
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
    return self._guess(params, target_params, x)


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
  borrowed.require("a set of modules", config.layer, config.draft_vocab, target)
  return MtpModel(**borrowed.parts(Mtp, config, target, dtype))


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
