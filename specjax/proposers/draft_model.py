"""A smaller model that drafts for the target (Leviathan 2023; Chen 2023)."""

import dataclasses
import functools

import jax.numpy as jnp

from specjax import layout
from specjax.models.base import Model
from specjax.models.heads.thin import ThinModel
from specjax.proposers import blocks, drawing
from specjax.proposers.base import Steady, placement_of
from specjax.sharding import axes
from specjax.sharding.placement import Placement
from specjax.sharding.search import largest
from specjax.types import Array, struct


@struct
class DraftState:
  """The draft model's cache and what it predicts next.

  Attributes:
    cache: the draft model's own; after `ingest` it holds last_token too.
    logits: float32 [B, V], the draft's prediction after last_token; [B, Vd]
      with a reduced vocabulary.
  """

  cache: object
  logits: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftModel(Steady):
  """Any model with the target's tokenizer.

  `ingest` runs one pass over the committed block, whose last position predicts
  the first draft: so a step costs one (C+1)-wide pass and C-1 single ones, also
  after full acceptance, and nothing in the cache is stale.

  Attributes:
    model: the draft model, or one that borrows from the target.
    lookahead: C.
    vocab_size: V of the target; the draft's may be padded to another size.
    siblings: M; see `drawing.draw_each`.
  """

  model: Model | ThinModel
  lookahead: int
  vocab_size: int
  siblings: int = 0
  features: tuple[int, ...] = ()

  @property
  def placement(self) -> Placement | None:
    """How the draft model is split over a mesh."""
    return placement_of(self.model)

  def shardings(self, state, placement):
    """See `Proposer`."""
    vocab = axes.VOCAB if self._divides(placement) else None
    return DraftState(
      cache=layout.by_rows(state.cache, placement),
      logits=placement.sharding((axes.ROWS, vocab)),
    )

  def init(self, rows, capacity):
    """See `Proposer`."""
    return DraftState(
      cache=self.model.init_cache(rows, capacity),
      logits=jnp.zeros((rows, self._width), jnp.float32),
    )

  def read(self, params, state, source, size, ctx):
    """See `Proposer`: the draft reads a source with an encoder of its own."""
    del ctx
    cache = self.model.encode(params, source, size, state.cache)
    return DraftState(cache=cache, logits=state.logits)

  def ingest(self, params, state, block, ctx):
    """See `Proposer`."""
    last = jnp.maximum(block.count - 1, 0)
    out = self._run(params, ctx)(block.tokens, state.cache, last=last)
    logits = self._resize(out.logits[:, 0])
    return DraftState(
      cache=out.cache.commit(block.count),
      logits=blocks.unless_empty(block.count, logits, state.logits),
    )

  def draft(self, params, state, ctx):
    """See `Proposer`."""
    run, start = self._run(params, ctx), state.cache.length

    def step(token, index, cache):
      out = run(token[:, None], cache.at(start + index - 1))
      return self._resize(out.logits[:, 0]), out.cache

    proposal, cache = drawing.draw_each(
      ctx,
      state.logits,
      step,
      state.cache,
      width=self.lookahead,
      vocab_size=self.vocab_size,
      kept=self.model.kept(params) if self._is_reduced else None,
      siblings=self.siblings,
      top_k=functools.partial(largest, self._split),
    )
    state = DraftState(cache=cache.at(start), logits=state.logits)
    return proposal, state, ctx.cache

  def _divides(self, placement) -> bool:
    # The target's vocabulary may be padded to a size that does not.
    return self._width % placement.ways(axes.VOCAB) == 0

  @property
  def _split(self) -> Placement | None:
    """How logits are split, if they are."""
    place = self.placement
    return place if place is not None and self._divides(place) else None

  @property
  def _is_reduced(self) -> bool:
    return isinstance(self.model, ThinModel) and self.model.is_reduced

  @property
  def _width(self) -> int:
    """Of logits."""
    return self.model.draft_vocab if self._is_reduced else self.vocab_size

  def _run(self, params, ctx):
    """The model with its parameters: what is left are tokens and cache."""
    if isinstance(self.model, ThinModel):
      return functools.partial(self.model, params, ctx.target_params)
    return functools.partial(self.model, params)

  def _resize(self, logits):
    """Draft logits [..., V of the draft] over those that are proposed.

    With one tokenizer, only padding differs: what the draft lacks it never
    proposes, and what the target lacks is cut off.
    """
    missing = self._width - logits.shape[-1]
    if missing <= 0:
      return logits[..., : self._width]
    pad = [(0, 0)] * (logits.ndim - 1) + [(0, missing)]
    return jnp.pad(logits, pad, constant_values=-jnp.inf)
