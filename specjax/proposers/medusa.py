"""Medusa: a head for each of the next tokens (Cai et al. 2024), as a chain.

All heads guess from one state of the target, the one that predicted the last
token, so a draft's law does not depend on the drafts before it. It is the law
that the draft was drawn from, which is what verification needs. (The paper
verifies a tree of guesses, by a rule that does not keep the target's law.)
"""

import dataclasses

import jax.numpy as jnp
from jax import lax

from specjax.models.heads.medusa import MedusaModel
from specjax.proposers import blocks
from specjax.proposers.on_head import OnHead
from specjax.types import Array, struct


@struct
class MedusaState:
  """What a row's heads read.

  Attributes:
    hidden: [B, D], the state that predicted the last committed token, normed.
  """

  hidden: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Medusa(OnHead):
  """Heads on the target's last state.

  A step costs one pass of C of the heads over one state of each row. The
  lookahead is at most as many as there are heads.

  Raises:
    ValueError: there are fewer heads than the lookahead.
  """

  model: MedusaModel

  def __post_init__(self):
    heads = self.model.config.heads
    if not 1 <= self.lookahead <= heads:
      raise ValueError(
        f"lookahead is {self.lookahead}, and there are {heads} Medusa heads, "
        f"each for one draft; give 1 to {heads}"
      )

  def init(self, rows, capacity):
    """See `Proposer`."""
    del capacity
    size = self.model.config.d_model
    return MedusaState(hidden=jnp.zeros((rows, size), self.model.dtype))

  def ingest(self, params, state, block, ctx):
    """See `Proposer`."""
    features = blocks.last(block.features, block.count)
    hidden = self.model.fuse(params, ctx.target_params, features)[:, 0]
    return MedusaState(
      hidden=blocks.unless_empty(block.count, hidden, state.hidden)
    )

  def draft(self, params, state, ctx):
    """See `Proposer`."""
    model = self.model
    logits = model(
      params, ctx.target_params, state.hidden[:, None], self.lookahead
    )[:, 0]  # B C Vd

    def step(token, index, carry):
      del token
      return lax.dynamic_index_in_dim(logits, index, 1, keepdims=False), carry

    # Nothing predicted a prompt's first token.
    proposal, _ = self.draw(
      params, ctx, logits[:, 0], step, (), ready=ctx.length > 0
    )
    return proposal, state, ctx.cache
