"""Medusa: a head for each of the next tokens (Cai et al. 2024), as a chain.

All heads guess from one state of the target, the one that predicted the last
token, so a draft's law does not depend on the drafts before it. It is the law
that the draft was drawn from, which is what verification needs. (The paper
verifies a tree of guesses, by a rule that does not keep the target's law.)
"""

import dataclasses

import jax.numpy as jnp
from jax import lax

from specjax import layout
from specjax.models.heads.medusa import MedusaModel
from specjax.proposers import drawing
from specjax.proposers.base import placement_of
from specjax.sharding.placement import Placement
from specjax.types import Array, struct


@struct
class MedusaState:
  """What a row's heads read.

  Attributes:
    hidden: [B, D], the state that predicted the last committed token, normed.
  """

  hidden: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Medusa:
  """Heads on the target's last state.

  A step costs one pass of C of the heads over one state of each row.

  Attributes:
    model: the heads; their parameters are the proposer's.
    lookahead: C, at most as many as there are heads.

  Raises:
    ValueError: there are fewer heads than the lookahead.
  """

  model: MedusaModel
  lookahead: int

  def __post_init__(self):
    heads = self.model.config.heads
    if not 1 <= self.lookahead <= heads:
      raise ValueError(
        f"lookahead is {self.lookahead}, and there are {heads} Medusa heads, "
        f"each for one draft; give 1 to {heads}"
      )

  @property
  def features(self) -> tuple[int, ...]:
    """See `Proposer`."""
    return (self.model.layer,)

  @property
  def placement(self) -> Placement | None:
    """Of the heads: whole on each device, rows split."""
    return placement_of(self.model)

  def shardings(self, state, placement):
    """See `Proposer`."""
    return layout.by_rows(state, placement)

  def init(self, rows, capacity):
    """See `Proposer`."""
    del capacity
    size = self.model.config.d_model
    return MedusaState(hidden=jnp.zeros((rows, size), self.model.dtype))

  def ingest(self, params, state, block, ctx):
    """See `Proposer`."""
    last = jnp.maximum(block.count - 1, 0)[:, None, None, None]
    features = jnp.take_along_axis(block.features, last, axis=1)
    hidden = self.model.fuse(params, ctx.target_params, features)[:, 0]
    # A row that committed nothing keeps what it had.
    some = (block.count > 0)[:, None]
    return MedusaState(hidden=jnp.where(some, hidden, state.hidden))

  def draft(self, params, state, ctx):
    """See `Proposer`."""
    model = self.model
    logits = model(
      params, ctx.target_params, state.hidden[:, None], self.lookahead
    )[:, 0]  # B C Vd

    def step(token, index, carry):
      del token
      return lax.dynamic_index_in_dim(logits, index, 1, keepdims=False), carry

    proposal, _ = drawing.draw_each(
      ctx,
      logits[:, 0],
      step,
      (),
      width=self.lookahead,
      vocab_size=model.vocab_size,
      kept=model.kept(params),
      # Nothing predicted a prompt's first token.
      ready=ctx.length > 0,
    )
    return proposal, state, ctx.cache

  def promising(self, history, length):
    """See `Proposer`."""
    del history
    return jnp.ones(length.shape, bool)
