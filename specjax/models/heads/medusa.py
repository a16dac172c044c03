"""Medusa's heads: each guesses a token further on from one state of the target.

Head k reads the state that the target's own head reads to predict the next
token, and guesses the (k+1)-th after that: residual blocks x + silu(Wx + b),
then a product with a table of ids (Cai et al. 2024, section 2.1). Published
heads have a table each; they may also share the target's, of which a reduced
vocabulary keeps some rows.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.models import decoder
from specjax.models.heads import borrowed
from specjax.models.heads.borrowed import HeadModel
from specjax.models.layers import Linear, together
from specjax.models.module import capped
from specjax.sharding import axes
from specjax.sharding.placement import Placement
from specjax.types import Array, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class MedusaConfig:
  """Sizes of Medusa's heads.

  Attributes:
    d_model: D of the target.
    vocab_size: V of the target.
    heads: how many there are, the most tokens that can be drafted.
    blocks: residual blocks of each.
    shares: whether all take the target's table of ids instead of their own.
    draft_vocab: Vd, how many of the ids they can draft; None for all.
    prefix: what names in their file begin with; no layer reads it.
  """

  d_model: int
  vocab_size: int
  heads: int
  blocks: int = 1
  shares: bool = False
  draft_vocab: int | None = None
  prefix: str = "medusa_head."

  def __post_init__(self):
    for name in ("heads", "blocks"):
      if getattr(self, name) < 1:
        raise ValueError(
          f"Medusa's {name} are {getattr(self, name)}; give at least 1"
        )


class _Head(nnx.Module):
  """One head."""

  def __init__(self, config: MedusaConfig, dtype, placement):
    width = config.d_model
    names = (axes.EMBED, axes.EMBED)
    self.blocks = nnx.List([])
    for _ in range(config.blocks):
      block = Linear((width, width), names, dtype, None, placement, bias=True)
      # So a head begins as its table alone, the target's head.
      block.weight = nnx.Param(
        jax.ShapeDtypeStruct((width, width), dtype), axes=names, start="zeros"
      )
      self.blocks.append(block)
    if not config.shares:
      shape = (config.draft_vocab or config.vocab_size, width)
      table = (axes.VOCAB, axes.EMBED)
      self.head = Linear(shape, table, dtype, None, placement)


class Medusa(nnx.Module):
  """All heads."""

  def __init__(self, config: MedusaConfig, dtype, placement: Placement | None):
    self.heads = nnx.List(
      [_Head(config, dtype, placement) for _ in range(config.heads)]
    )

  def __call__(self, hidden: Array, count: int) -> list[Array]:
    """What the first `count` heads' tables read, each [B, T, D]."""
    heads = list(self.heads)[:count]
    found = [hidden] * count
    for place in range(len(heads[0].blocks)):
      linears = [head.blocks[place] for head in heads]
      if place == 0:  # All read the same: one call.
        outs = together(hidden, *linears)
      else:
        outs = [linear(x) for linear, x in zip(linears, found, strict=True)]
      found = [x + jax.nn.silu(out) for x, out in zip(found, outs, strict=True)]
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class MedusaModel(HeadModel):
  """Medusa's heads as pure functions; see `HeadModel`.

  Each has a table of ids of its own, or all share the target's.

  Training reads whole texts: with features [B, T, 1, D] after reading tokens
  [B, T],

    hidden = model.fuse(params, target_params, features)
    logits = model(params, target_params, hidden)

  and logits[:, i, k] predicts tokens[:, i + 2 + k].
  """

  config: MedusaConfig

  @property
  def has_table(self) -> bool:
    """Whether their own parameters have tables of ids."""
    return not self.config.shares

  @property
  def features(self) -> tuple[int, ...]:
    """The target's last layer."""
    return (self.ends.config.layers,)

  def begin(self, target_params: Params, kept: Array | None = None) -> Params:
    """Parameters of `head` with which every head is the target's own.

    Args:
      target_params: the target's.
      kept: as for `complete`.
    """
    table = None
    if self.has_table:
      every = jnp.arange(self.vocab_size, dtype=jnp.int32)
      ids = every if kept is None else jnp.asarray(kept, jnp.int32)
      table = self._rows(self._table((), target_params), ids)
    zeros = self.head.init(0)  # nothing else in it is drawn
    return tuple(
      table + 0 if path.endswith(".head.weight") else value
      for path, value in zip(self.head.paths, zeros, strict=True)
    )

  def fuse(
    self, params: Params, target_params: Params, features: Array
  ) -> Array:
    """What the heads read, [B, T, D], of the target's states [B, T, 1, D].

    The target's own head reads the same.
    """
    del params
    return self.ends.norm(target_params, features[:, :, 0]).astype(self.dtype)

  def __call__(
    self,
    params: Params,
    target_params: Params,
    hidden: Array,
    count: int | None = None,
  ) -> Array:
    """What the heads guess: float32 [B, T, K, Vd] of [B, T, D].

    Args:
      params: see the class.
      target_params: the target's.
      hidden: from `fuse`.
      count: K, of so many of the heads, the first; all unless given.
    """
    own = self._merge(params)
    found = own(hidden, self.config.heads if count is None else count)
    if self.has_table:
      each = [
        self._product(x, head.head.weight[...])
        for x, head in zip(found, own.heads, strict=False)
      ]
      return capped(self.ends.config, jnp.stack(each, axis=2))
    # One product for all heads: the table is read once.
    rows, width, size = hidden.shape
    x = jnp.stack(found, axis=2).reshape(rows, -1, size)
    logits = self._guess(params, target_params, x)
    return logits.reshape(rows, width, len(found), -1)


def build(
  config: MedusaConfig, target: decoder.Model, *, dtype: Any = None
) -> MedusaModel:
  """Medusa's heads of shapes only, for a target.

  Args:
    config: their sizes.
    target: whose states they read.
    dtype: the target's unless given.

  Raises:
    ValueError: names the size of heads and target that do not fit.
  """
  borrowed.require("a set of Medusa heads", config, config.draft_vocab, target)
  return MedusaModel(**borrowed.parts(Medusa, config, target, dtype))
