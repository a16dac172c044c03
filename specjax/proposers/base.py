"""What a proposer is: two pure functions and a state.

`ingest` takes newly committed tokens at any width (prompt chunks and the last
step's block alike); `draft` proposes. Both get a `Context`.
"""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from specjax.penalties import Penalties
from specjax.sampling import Noise, RowSettings
from specjax.sharding.placement import Placement
from specjax.types import Array, Block, Params, struct


@struct
class Context:
  """What a proposer may look at.

  Attributes:
    target_params: the target's parameters.
    cache: the target's cache; whoever writes into it hands it back.
    last_token: int32 [B], committed but not yet in the target's cache.
    length: int32 [B], tokens in the target's cache; last_token stands there.
    history: int32 [B, S], prompt and output; valid up to and with `length`.
    sampling: settings of each row.
    penalties: penalties and biases of each row, to be applied to raw logits.
    noise: this step's noise.
    lookahead: int32 [B], how many tokens each row may propose now, 0..C.
  """

  target_params: Params
  cache: Any
  last_token: Array
  length: Array
  history: Array
  sampling: RowSettings
  penalties: Penalties
  noise: Noise
  lookahead: Array


@struct
class Siblings:
  """Second guesses: what else may stand at a place of the proposal.

  The target reads them behind the drafts, each after the drafts before its
  place. Where the target's own token turns out to be one of them, the token
  after it is known as well. They may be chosen by anything: they do not change
  what is emitted, only how soon.

  Of a row that drafts all C tokens M of them are read; of one that drafts
  fewer, so many more.

  Attributes:
    tokens: int32 [B, C - 1 + M], best first, no two alike at a place, nor like
      the draft there.
    places: int32 [B, C - 1 + M], of the draft that each stands beside; -1 where
      there is none.
  """

  tokens: Array
  places: Array


@struct
class Proposal:
  """Drafted tokens and the distribution each was drawn from.

  Attributes:
    tokens: int32 [B, C] (one row: [C]).
    q: float32 [B, C, V], the law of each token after every filter; None says
      that the tokens are deterministic, so each law is one-hot, also at
      temperature > 0. With a reduced vocabulary [B, C, Vd]; see `whole`.
    count: int32 [B], valid tokens of each row, 0..C. It may depend on anything
      known before the token beyond it was drawn; a drawn token is never
      dropped.
    siblings: second guesses, or None.
    kept: int32 [Vd], the target's ids that q is of, ascending; None where it is
      of all.
  """

  tokens: Array
  q: Array | None
  count: Array
  siblings: Siblings | None = None
  kept: Array | None = None

  @property
  def size(self) -> int:
    """C + M, what of it the target's pass reads."""
    others = 0 if self.siblings is None else self.siblings.tokens.shape[1] + 1
    return max(self.tokens.shape[1], others)

  def whole(self, vocab_size: int) -> "Proposal":
    """The same with q over all of the target's ids.

    Only where rows sample: it takes as long as drawing a draft.
    """
    if self.kept is None:
      return self
    shape = (*self.q.shape[:2], vocab_size)
    q = (
      jnp.zeros(shape, self.q.dtype)
      .at[:, :, self.kept]
      .set(self.q, mode="drop", indices_are_sorted=True, unique_indices=True)
    )
    return dataclasses.replace(self, q=q, kept=None)

  def law(self, vocab_size: int) -> Array:
    """q, one-hot where the proposal is deterministic: [..., C, V]."""
    if self.q is not None:
      return self.q
    return jax.nn.one_hot(self.tokens, vocab_size, dtype=jnp.float32)


def placement_of(part: Any) -> Placement | None:
  """How a model or proposer is split over a mesh; None where it says none."""
  return getattr(part, "placement", None)


def siblings_of(proposer: Any) -> int:
  """M, how many second guesses a proposer makes; 0 where it says nothing."""
  return getattr(proposer, "siblings", 0)


def pass_width(proposer: Any) -> int:
  """Positions that the target reads of a row in a step: 1 + C + M."""
  return 1 + proposer.lookahead + siblings_of(proposer)


class Proposer(Protocol):
  """Two pure functions; see the module's docstring.

  One that is split over a mesh in a way of its own has a `placement`, and
  `shardings(state, placement)` gives its state's; without, the target's holds
  and its state is split by rows.

  One whose proposals have `Siblings` says how many by `siblings`, M.

  One that drafts with an encoder-decoder has `read(params, state, source,
  size, ctx)`: its state once it has read new sources, int32 [B, T] of int32 [B]
  tokens each. A row whose size is 0 keeps what it has.

  Attributes:
    lookahead: C, the compiled width of a proposal.
    features: target layers whose hidden states `ingest` reads.
  """

  lookahead: int
  features: tuple[int, ...]

  def init(self, rows: int, capacity: int) -> Any:
    """An empty state; rows on axis 0 of every leaf, or KVCaches."""

  def ingest(
    self, params: Params, state: Any, block: Block, ctx: Context
  ) -> Any:
    """Takes newly committed tokens; a row's count may be 0."""

  def draft(
    self, params: Params, state: Any, ctx: Context
  ) -> tuple[Proposal, Any, Any]:
    """Proposes; returns the proposal, the state and the target's cache."""

  def promising(self, history: Array, length: Array) -> Array:
    """Whether `draft` would propose anything for each row: bool [B].

    Where no row's would, the engine runs the plain program instead of a pass
    of C + 1. A proposer whose state must see every token is `Steady`.

    Args:
      history: int32 [B, S]; see `Context`.
      length: int32 [B]; the last valid entry of history.
    """


class Steady:
  """A proposer that has something to propose for every row in every step."""

  def promising(self, history, length):
    """See `Proposer`."""
    del history
    return jnp.ones(length.shape, bool)
