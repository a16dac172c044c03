"""EAGLE: drafts that continue the target's own states (Li et al. 2024, 2025).

What is drafted from are pairs of a token and the state that predicted it. Those
of committed tokens have the target's states, and are read in one wide pass;
those of drafts have the head's own.
"""

import dataclasses

import jax.numpy as jnp

from specjax import layout
from specjax.models.heads.eagle import EagleModel
from specjax.proposers import drawing
from specjax.proposers.base import placement_of
from specjax.sharding.placement import Placement
from specjax.types import Array, Block, struct


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


def pairs(block: Block, begun: Array) -> tuple[Block, Array]:
  """A block's pairs of a token and what predicted it.

  Nothing predicted a row's very first token: where it is in the block, the
  others are moved to the left of it.

  Args:
    block: with features.
    begun: bool [B], rows whose first token came before.

  Returns:
    The block of pairs, whose count may be 0, and `begun` after it.
  """
  first = ~begun & (block.count > 0)

  def move(x):
    here = first.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(here, jnp.roll(x, -1, axis=1), x)

  moved = Block(
    tokens=move(block.tokens),
    count=block.count - first.astype(jnp.int32),
    features=move(block.features),
  )
  return moved, begun | first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle:
  """A head of EAGLE-1 or EAGLE-3, drafting one chain.

  Like a draft model it costs one pass over the committed block, whose last
  position predicts the first draft, and C-1 single ones.

  Attributes:
    model: the head; its parameters are the proposer's.
    lookahead: C.
  """

  model: EagleModel
  lookahead: int

  @property
  def features(self) -> tuple[int, ...]:
    """See `Proposer`."""
    return self.model.config.features

  @property
  def placement(self) -> Placement | None:
    """Of the head: whole on each device, rows split."""
    return placement_of(self.model)

  def shardings(self, state, placement):
    """See `Proposer`."""
    return layout.by_rows(state, placement)

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
    block, begun = pairs(block, state.begun)
    hidden = model.fuse(params, target, block.features)
    hidden, cache = model.read(
      params, target, block.tokens, hidden, state.cache
    )
    last = jnp.maximum(block.count - 1, 0)[:, None, None]
    hidden = jnp.take_along_axis(hidden, last, axis=1)
    logits = model.logits(params, target, hidden)
    # A row without a new pair keeps what it had.
    some = (block.count > 0)[:, None]
    return EagleState(
      cache=cache.commit(block.count),
      hidden=jnp.where(some, hidden[:, 0], state.hidden),
      logits=jnp.where(some, logits[:, 0], state.logits),
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

    proposal, (_, cache) = drawing.draw_each(
      ctx,
      state.logits,
      step,
      (state.hidden[:, None], state.cache),
      width=self.lookahead,
      vocab_size=model.vocab_size,
      kept=model.kept(params),
      # After a prompt of one token there is nothing to draft from yet.
      ready=start > 0,
    )
    state = dataclasses.replace(state, cache=cache.at(start))
    return proposal, state, ctx.cache

  def promising(self, history, length):
    """See `Proposer`."""
    del history
    return jnp.ones(length.shape, bool)
