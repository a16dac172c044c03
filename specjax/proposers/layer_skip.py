"""Drafting with some of the target's own layers, without any training.

The layers chosen, then the target's norm and head (Draft & Verify, Zhang et
al. 2023; a prefix is LayerSkip's early exit, Elhoushi et al. 2024). Weights are
the target's: a draft takes no memory for them.

A prefix's keys and values are the target's own, so it drafts in the target's
cache: nothing to ingest and no state. What it writes there beyond the committed
length the target's pass writes over. Any other subset sees other hidden states,
so it has a cache of its own and works as a draft model does.
"""

import dataclasses
import functools

from specjax.models.decoder import Model
from specjax.proposers import drawing
from specjax.proposers.base import Steady, placement_of
from specjax.proposers.draft_model import DraftModel
from specjax.sharding.placement import Placement
from specjax.sharding.search import largest


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSkip(Steady):
  """Some of the target's layers; its parameters are the target's.

  Attributes:
    model: the target.
    layers: numbers of the layers that draft, ascending, not all of them.
    lookahead: C.
    vocab_size: V of the target.
    siblings: M; see `drawing.draw_each`.

  Raises:
    ValueError: there are no such layers, or nothing is left out; says how
      many there are.
  """

  model: Model
  layers: tuple[int, ...]
  lookahead: int
  vocab_size: int
  siblings: int = 0
  features: tuple[int, ...] = ()

  def __post_init__(self):
    count = self.model.config.layers
    try:
      self.model.only(self.layers)
    except ValueError as error:
      raise ValueError(f"draft_layers: {error}") from None
    if len(self.layers) == count:
      raise ValueError(
        f"draft_layers: all {count} layers of the target would draft, at the "
        "cost of the target itself; leave some out"
      )

  @property
  def is_prefix(self) -> bool:
    """Whether the layers are the first ones, which share the target's cache."""
    return self.layers == tuple(range(len(self.layers)))

  @property
  def placement(self) -> Placement | None:
    """How the target is split over a mesh."""
    return placement_of(self.model)

  @functools.cached_property
  def _part(self) -> Model:
    return self.model.only(self.layers)

  @functools.cached_property
  def _drafter(self) -> DraftModel:
    """What a subset with a cache of its own is."""
    return DraftModel(
      model=self._part,
      lookahead=self.lookahead,
      vocab_size=self.vocab_size,
      siblings=self.siblings,
    )

  def shardings(self, state, placement):
    """See `Proposer`."""
    return () if self.is_prefix else self._drafter.shardings(state, placement)

  def init(self, rows, capacity):
    """See `Proposer`."""
    return () if self.is_prefix else self._drafter.init(rows, capacity)

  def read(self, params, state, source, size, ctx):
    """See `Proposer`."""
    del params
    if self.is_prefix:  # The target's cache has the source.
      return state
    return self._drafter.read(ctx.target_params, state, source, size, ctx)

  def ingest(self, params, state, block, ctx):
    """See `Proposer`."""
    del params  # the target's are all it has
    if self.is_prefix:
      return state
    return self._drafter.ingest(ctx.target_params, state, block, ctx)

  def draft(self, params, state, ctx):
    """See `Proposer`."""
    del params
    if not self.is_prefix:
      return self._drafter.draft(ctx.target_params, state, ctx)

    def step(token, index, cache):
      cache = cache.at(ctx.length + index)
      out = self._part(ctx.target_params, token[:, None], cache)
      return out.logits[:, 0], out.cache

    logits, cache = step(ctx.last_token, 0, ctx.cache)
    proposal, cache = drawing.draw_each(
      ctx,
      logits,
      step,
      cache,
      width=self.lookahead,
      vocab_size=self.vocab_size,
      siblings=self.siblings,
      top_k=functools.partial(largest, self.placement),
    )
    return proposal, state, cache.at(ctx.length)
