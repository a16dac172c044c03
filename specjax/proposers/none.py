"""No proposer: with it, the propose-verify step is plain decoding."""

import dataclasses

import jax.numpy as jnp

from specjax.proposers.base import Proposal


@dataclasses.dataclass(frozen=True)
class NoProposer:
  """Proposes nothing and leaves whatever state it is given alone."""

  lookahead: int = 0
  features: tuple[int, ...] = ()

  def init(self, rows, capacity):
    del rows, capacity
    return ()

  def ingest(self, params, state, block, ctx):
    del params, block, ctx
    return state

  def draft(self, params, state, ctx):
    del params
    rows = ctx.last_token.shape[0]
    proposal = Proposal(
      tokens=jnp.zeros((rows, 0), jnp.int32),
      q=None,
      count=jnp.zeros((rows,), jnp.int32),
    )
    return proposal, state, ctx.cache
