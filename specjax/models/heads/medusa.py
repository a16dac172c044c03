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
from jax.sharding import NamedSharding

from specjax.models import decoder
from specjax.models.heads import module
from specjax.models.heads.ends import Ends, ends
from specjax.models.layers import Linear, together
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
    drafted = self.draft_vocab
    if drafted is not None and not 1 <= drafted <= self.vocab_size:
      raise ValueError(
        f"Medusa's heads draft from {drafted} ids, and the target has "
        f"{self.vocab_size}; take the heads of this target"
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
class MedusaModel:
  """Medusa's heads as pure functions of their parameters and the target's.

  Their parameters are those of `head`, in order, and behind them, with a
  reduced vocabulary, `kept` int32 [Vd] (the target's ids, ascending) and, where
  the target's table is shared, its rows [Vd, D]. Only `head`'s are trained.

  Training reads whole texts: with features [B, T, 1, D] after reading tokens
  [B, T],

    hidden = model.fuse(params, target_params, features)
    logits = model(params, target_params, hidden)

  and logits[:, i, k] predicts tokens[:, i + 2 + k].

  Attributes:
    config: their sizes.
    dtype: of parameters.
    head: the module's own parameters.
    ends: of the target.
    layer: the target's layer whose output they read, its last.
    placement: where they work, or None; see `module.by_rows`.
  """

  config: MedusaConfig
  dtype: Any
  head: module.Head
  ends: Ends
  layer: int
  placement: Placement | None

  @property
  def vocab_size(self) -> int:
    """V of the target."""
    return self.config.vocab_size

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
    kept = jax.ShapeDtypeStruct((self.draft_vocab,), jnp.dtype(jnp.int32))
    if not self.config.shares:
      return *self.head.shapes, kept
    rows = (self.draft_vocab, self.config.d_model)
    return *self.head.shapes, kept, jax.ShapeDtypeStruct(rows, self.dtype)

  @property
  def shardings(self) -> tuple[NamedSharding, ...] | None:
    """Where every parameter lies: whole on each device; None with no mesh."""
    if self.placement is None:
      return None
    return (self.placement.whole,) * len(self.shapes)

  def kept(self, params: Params) -> Array | None:
    """The ids that they can draft, int32 [Vd]; None for all."""
    return params[len(self.head.paths)] if self.is_reduced else None

  def complete(
    self, head_params: Params, target_params: Params, kept: Array | None = None
  ) -> Params:
    """All parameters, from those of `head`.

    Args:
      head_params: in the order of `head.paths`.
      target_params: the target's; of a shared table rows are taken.
      kept: int32 [Vd], ascending; None without a reduced vocabulary.
    """
    assert (kept is not None) == self.is_reduced
    if kept is None:
      return tuple(head_params)
    kept = jnp.asarray(kept, jnp.int32)
    if not self.config.shares:
      return (*head_params, kept)
    rows = self.ends.rows(target_params, kept).astype(self.dtype)
    return *head_params, kept, rows

  def begin(self, target_params: Params, kept: Array | None = None) -> Params:
    """Parameters of `head` with which every head is the target's own.

    Args:
      target_params: the target's.
      kept: as for `complete`.
    """
    table = None
    if not self.config.shares:
      every = jnp.arange(self.vocab_size, dtype=jnp.int32)
      ids = every if kept is None else jnp.asarray(kept, jnp.int32)
      table = self.ends.rows(target_params, ids).astype(self.dtype)
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
    own = self.head.merge(params[: len(self.head.paths)])
    found = own(hidden, self.config.heads if count is None else count)
    if not self.config.shares:
      each = [
        module.product(self.placement, x, head.head)
        for x, head in zip(found, own.heads, strict=False)
      ]
      return self.ends.capped(jnp.stack(each, axis=2))
    # One product for all heads: the table is read once.
    rows, width, size = hidden.shape
    x = jnp.stack(found, axis=2).reshape(rows, -1, size)
    if self.is_reduced:
      table = params[-1]
      logits = self.ends.capped(module.product(self.placement, x, table))
    else:
      logits = self.ends.logits(target_params, x)
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
  for name in ("d_model", "vocab_size"):
    ours, theirs = getattr(config, name), getattr(target.config, name)
    if ours != theirs:
      raise ValueError(
        f"Medusa's heads were made for a target with {name} {ours}, and this "
        f"one's is {theirs}; take the heads of this target"
      )
  dtype = jnp.dtype(target.dtype if dtype is None else dtype)
  placement = module.by_rows(target.placement)
  return MedusaModel(
    config=config,
    dtype=dtype,
    head=module.split(Medusa(config, dtype, placement), placement),
    ends=ends(target),
    layer=target.config.layers,
    placement=placement,
  )
