"""EAGLE: drafts that continue the target's own states (Li et al. 2024, 2025).

What is drafted from are pairs of a token and the state that predicted it. Those
of committed tokens have the target's states, and are read in one wide pass;
those of drafts have the head's own.
"""

import dataclasses
import functools

import jax.numpy as jnp

from specjax.models.heads.eagle import EagleModel
from specjax.proposers import blocks
from specjax.proposers.on_head import OnHead
from specjax.types import Array, struct


@struct
class EagleState:
  """What a row's committed tokens came to.

  Attributes:
    cache: keys and values of its pairs: one less than its tokens.
    hidden: [B, D], the head's state after the last pair.
    logits: float32 [B, Vd], its prediction after it.
    begun: bool [B], whether the row's first token has been seen.
  """

  cache: object
  hidden: Array
  logits: Array
  begun: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle(OnHead):
  """A head of EAGLE-1 or EAGLE-3.

  Like a draft model it costs one pass over the committed block, whose last
  position predicts the first draft, and C-1 single ones.
  """

  model: EagleModel

  def init(self, rows, capacity):
    """See `Proposer`."""
    model = self.model
    return EagleState(
      cache=model.init_cache(rows, capacity),
      hidden=jnp.zeros((rows, model.config.layer.d_model), model.dtype),
      logits=jnp.zeros((rows, model.draft_vocab), jnp.float32),
      begun=jnp.zeros((rows,), bool),
    )

  def ingest(self, params, state, block, ctx):
    """See `Proposer`."""
    model, target = self.model, ctx.target_params
    block, begun = blocks.pairs(block, state.begun)
    hidden = model.fuse(params, target, block.features)
    hidden, cache = model.read(
      params, target, block.tokens, hidden, state.cache
    )
    hidden = blocks.last(hidden, block.count)
    logits = model.logits(params, target, hidden)
    keep = functools.partial(blocks.unless_empty, block.count)
    return EagleState(
      cache=cache.commit(block.count),
      hidden=keep(hidden[:, 0], state.hidden),
      logits=keep(logits[:, 0], state.logits),
      begun=begun,
    )

  def draft(self, params, state, ctx):
    """See `Proposer`."""
    model, start = self.model, state.cache.length

    def step(token, index, carry):
      hidden, cache = carry
      out, cache = model.read(
        *(params, ctx.target_params, token[:, None], hidden),
        cache.at(start + index - 1),
      )
      logits = model.logits(params, ctx.target_params, out)
      return logits[:, 0], (out, cache)

    carry = (state.hidden[:, None], state.cache)
    # After a prompt of one token there is nothing to draft from yet.
    proposal, (_, cache) = self.draw(
      params, ctx, state.logits, step, carry, ready=start > 0
    )
    state = dataclasses.replace(state, cache=cache.at(start))
    return proposal, state, ctx.cache
