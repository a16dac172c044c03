"""What proposers share that draft with a head beside the target."""

import dataclasses
import functools

from specjax import layout
from specjax.models.heads.borrowed import HeadModel
from specjax.proposers import drawing
from specjax.proposers.base import Proposal, Steady
from specjax.sharding.placement import Placement
from specjax.sharding.search import largest
from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnHead(Steady):
  """Drafts with a head, one chain.

  Attributes:
    model: the head; its parameters are the proposer's.
    lookahead: C.
    siblings: M; see `drawing.draw_each`.
  """

  model: HeadModel
  lookahead: int
  siblings: int = 0

  @property
  def features(self) -> tuple[int, ...]:
    """See `Proposer`."""
    return self.model.features

  @property
  def placement(self) -> Placement | None:
    """Of the head; see `heads.module.beside`."""
    return self.model.placement

  def shardings(self, state, placement):
    """See `Proposer`."""
    found = layout.by_rows(state, placement)
    if not hasattr(state, "logits"):
      return found
    return dataclasses.replace(found, logits=self.model.logits_sharding)

  def draw(
    self, params, ctx, logits, step, carry, ready: Array
  ) -> tuple[Proposal, object]:
    """`drawing.draw_each`, of what the head can draft."""
    return drawing.draw_each(
      *(ctx, logits, step, carry),
      width=self.lookahead,
      vocab_size=self.model.vocab_size,
      kept=self.model.kept(params),
      ready=ready,
      siblings=self.siblings,
      top_k=functools.partial(largest, self.model.logits_placement),
    )
