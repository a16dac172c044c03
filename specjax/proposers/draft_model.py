"""A smaller model that drafts for the target (Leviathan 2023; Chen 2023)."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from specjax import layout, sampling
from specjax.models.base import Model
from specjax.proposers.base import Proposal, placement_of
from specjax.sharding import axes
from specjax.sharding.placement import Placement
from specjax.types import Array, struct


@struct
class DraftState:
  """The draft model's cache and what it predicts next.

  Attributes:
    cache: the draft model's own; after `ingest` it holds last_token too.
    logits: float32 [B, V], the draft's prediction after last_token.
  """

  cache: object
  logits: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftModel:
  """Any model with the target's tokenizer.

  `ingest` runs one pass over the committed block, whose last position predicts
  the first draft: so a step costs one (C+1)-wide pass and C-1 single ones, also
  after full acceptance, and nothing in the cache is stale.

  Attributes:
    model: the draft model.
    lookahead: C.
    vocab_size: V of the target; the draft's may be padded to another size.
  """

  model: Model
  lookahead: int
  vocab_size: int
  features: tuple[int, ...] = ()

  @property
  def placement(self) -> Placement | None:
    """How the draft model is split over a mesh."""
    return placement_of(self.model)

  def shardings(self, state, placement):
    """See `Proposer`."""
    # The target's vocabulary may be padded to a size that does not divide.
    divides = self.vocab_size % placement.ways(axes.VOCAB) == 0
    vocab = axes.VOCAB if divides else None
    return DraftState(
      cache=layout.by_rows(state.cache, placement),
      logits=placement.sharding((axes.ROWS, vocab)),
    )

  def init(self, rows, capacity):
    """See `Proposer`."""
    return DraftState(
      cache=self.model.init_cache(rows, capacity),
      logits=jnp.zeros((rows, self.vocab_size), jnp.float32),
    )

  def ingest(self, params, state, block, ctx):
    """See `Proposer`."""
    del ctx
    out = self.model(params, block.tokens, state.cache)
    last = jnp.maximum(block.count - 1, 0)[:, None, None]
    logits = jnp.take_along_axis(out.logits, last, axis=1)[:, 0]
    # A row that committed nothing keeps what it had.
    kept = jnp.where(
      (block.count > 0)[:, None], self._resize(logits), state.logits
    )
    return DraftState(cache=out.cache.commit(block.count), logits=kept)

  def draft(self, params, state, ctx):
    """See `Proposer`."""
    rows, width = ctx.last_token.shape[0], self.lookahead
    start = state.cache.length

    @jax.named_scope("sampling")
    def draw(index, logits, drawn):
      tokens, q, good = drawn
      # As the target will see it: the drafts so far count.
      raw = ctx.penalties.apply(logits[:, None], tokens, index)
      law = sampling.probs(raw, ctx.sampling)[:, 0]
      noise = ctx.noise.exponential(sampling.DRAFT, index, self.vocab_size)
      token = sampling.race(law, noise)
      # A draft that is not a number ends its row's proposal before it.
      usable = sampling.usable(logits) & (good == index)
      good = good + usable.astype(jnp.int32)
      tokens = lax.dynamic_update_slice_in_dim(
        tokens, token[:, None], index, axis=1
      )
      q = lax.dynamic_update_slice_in_dim(q, law[:, None], index, axis=1)
      return token, (tokens, q, good)

    def body(carry):
      index, token, cache, drawn = carry
      out = self.model(params, token[:, None], cache.at(start + index - 1))
      logits = self._resize(out.logits[:, 0])
      token, drawn = draw(index, logits, drawn)
      return index + 1, token, out.cache, drawn

    drawn = (
      jnp.zeros((rows, width), jnp.int32),
      jnp.zeros((rows, width, self.vocab_size), jnp.float32),
      jnp.zeros((rows,), jnp.int32),
    )
    token, drawn = draw(jnp.int32(0), state.logits, drawn)
    bound = jnp.max(ctx.lookahead)
    _, _, cache, (tokens, q, good) = lax.while_loop(
      lambda carry: carry[0] < bound,
      body,
      (jnp.int32(1), token, state.cache, drawn),
    )
    state = DraftState(cache=cache.at(start), logits=state.logits)
    count = jnp.minimum(good, ctx.lookahead)
    return Proposal(tokens=tokens, q=q, count=count), state, ctx.cache

  def promising(self, history, length):
    """See `Proposer`."""
    del history
    return jnp.ones(length.shape, bool)

  def _resize(self, logits):
    """Draft logits [..., V of the draft] over the target's vocabulary.

    With one tokenizer, only padding differs: what the draft lacks it never
    proposes, and what the target lacks is cut off.
    """
    missing = self.vocab_size - logits.shape[-1]
    if missing <= 0:
      return logits[..., : self.vocab_size]
    pad = [(0, 0)] * (logits.ndim - 1) + [(0, missing)]
    return jnp.pad(logits, pad, constant_values=-jnp.inf)
