"""EAGLE's layers as modules of shapes; `heads.eagle` says what for."""

import dataclasses

import jax.numpy as jnp
from flax import nnx

from specjax.models.config import DecoderConfig
from specjax.models.heads.unroll import Keys, attend_unrolled
from specjax.models.layers import (
  MLP,
  Attention,
  Linear,
  rotate,
  together,
)
from specjax.models.module import ropes
from specjax.models.norms import make_norm
from specjax.sharding import axes
from specjax.sharding.placement import Placement
from specjax.types import Array

STATES = 3  # that EAGLE-3 fuses


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleConfig:
  """What kind of EAGLE head it is, and its sizes.

  Attributes:
    layer: sizes and settings of its layer; `vocab_size` is the target's.
    features: the target's layers whose states it reads: the last one alone
      (EAGLE-1), or three (EAGLE-3); see `models.base.Model`.
    draft_vocab: Vd, how many of the ids it can draft; None for all. A head of
      EAGLE-3 says so even where it is all.
    fc_bias: whether the first product has a bias.
  """

  layer: DecoderConfig
  features: tuple[int, ...]
  draft_vocab: int | None = None
  fc_bias: bool = False

  def __post_init__(self):
    if len(self.features) not in (1, STATES):
      raise ValueError(
        f"an EAGLE head reads 1 or {STATES} of the target's layers, not "
        f"{self.features}"
      )

  @property
  def fuses(self) -> bool:
    """Whether it is EAGLE-3's."""
    return len(self.features) == STATES


class _Attention(Attention):
  """Attention that may read pairs of 2 D, and training's earlier steps."""

  def __init__(self, config, dtype, placement, *, wide: bool):
    super().__init__(config, dtype, None, placement)
    if not wide:
      return
    for name, heads, names in (
      ("q", config.heads, axes.HEADS),
      ("k", config.kv_heads, axes.KV_HEADS),
      ("v", config.kv_heads, axes.KV_HEADS),
    ):
      own = Linear(
        (heads, config.head_dim, 2 * config.d_model),
        (names, axes.HEAD_DIM, axes.EMBED),
        *(dtype, None, placement),
        bias=config.qkv_bias,
      )
      setattr(self, name, own)

  def unrolled(self, x, positions, rope, earlier) -> tuple[Array, Keys]:
    """See `EagleModel.unroll`."""
    c = self.config
    q, k, v = together(x, self.q, self.k, self.v)
    if c.qk_norm:
      q, k = self.q_norm(q), self.k_norm(k)
    keys = (*earlier, (rotate(k, *rope), v))
    mixed = attend_unrolled(
      *(rotate(q, *rope), keys),
      positions=positions,
      scale=c.attention_scale,
      softcap=c.attention_softcap,
    )
    return self.o(mixed), keys


class Eagle(nnx.Module):
  """fc, one layer, and EAGLE-3's norm and head."""

  def __init__(self, config: EagleConfig, dtype, placement: Placement | None):
    layer = config.layer
    width = layer.d_model
    names = (axes.EMBED, axes.EMBED)
    self.fuses = config.fuses
    self.placement = placement
    self.config = layer
    inputs = STATES if config.fuses else 2
    self.fc = Linear(
      (width, inputs * width),
      names,
      *(dtype, None, placement),
      bias=config.fc_bias,
    )
    self.attention = _Attention(layer, dtype, placement, wide=config.fuses)
    self.mlp_norm = make_norm(layer, dtype)
    self.mlp = MLP(layer, dtype, None, placement)
    if config.fuses:
      self.embed_norm = make_norm(layer, dtype)
      self.hidden_norm = make_norm(layer, dtype)
      self.norm = make_norm(layer, dtype)
      shape = (config.draft_vocab, width)
      table = (axes.VOCAB, axes.EMBED)
      self.head = Linear(shape, table, dtype, None, placement)

  def _pair(self, embedded, hidden) -> tuple[Array, Array]:
    """What attention reads, and what its output is added to."""
    if not self.fuses:
      x = self.fc(jnp.concatenate([embedded, hidden], axis=-1))
      return x, x
    both = [self.embed_norm(embedded), self.hidden_norm(hidden)]
    return jnp.concatenate(both, axis=-1), hidden

  def __call__(self, embedded, hidden, cache, positions):
    """Runs it, on a whole text where the cache is None."""
    x, residual = self._pair(embedded, hidden)
    rope = ropes(self.config, self.placement, positions)[0]
    mixed, cache = self.attention(x, cache, 0, positions, rope, None)
    x = residual + mixed
    return x + self.mlp(self.mlp_norm(x)), cache

  def unrolled(self, embedded, hidden, positions, earlier: Keys):
    """The same of one of training's steps; see `EagleModel.unroll`."""
    x, residual = self._pair(embedded, hidden)
    now = positions + len(earlier)
    rope = ropes(self.config, self.placement, now)[0]
    mixed, keys = self.attention.unrolled(x, positions, rope, earlier)
    x = residual + mixed
    return x + self.mlp(self.mlp_norm(x)), keys
