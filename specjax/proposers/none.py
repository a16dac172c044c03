"""No proposer: with it, the propose-verify step is plain decoding."""

import dataclasses

import jax.numpy as jnp

from specjax.proposers.base import Proposal, Proposer


@dataclasses.dataclass(frozen=True)
class NoProposer:
  """Proposes nothing and leaves whatever state it is given alone.

  Attributes:
    resting: the proposer that rests while this one runs, and says when it
      would have something again; None where there is no other.
  """

  resting: Proposer | None = None
  lookahead: int = 0
  features: tuple[int, ...] = ()

  def init(self, rows, capacity):
    """See `Proposer`."""
    del rows, capacity
    return ()

  def ingest(self, params, state, block, ctx):
    """See `Proposer`."""
    del params, block, ctx
    return state

  def draft(self, params, state, ctx):
    """See `Proposer`."""
    del params
    rows = ctx.last_token.shape[0]
    proposal = Proposal(
      tokens=jnp.zeros((rows, 0), jnp.int32),
      q=None,
      count=jnp.zeros((rows,), jnp.int32),
    )
    return proposal, state, ctx.cache

  def promising(self, history, length):
    """See `Proposer`."""
    if self.resting is None:
      return jnp.zeros(length.shape, bool)
    return self.resting.promising(history, length)
