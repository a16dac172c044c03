"""Drawing one draft after another: what all proposers that sample share."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from specjax import sampling
from specjax.penalties import Penalties
from specjax.proposers.base import Context, Proposal, Siblings
from specjax.types import Array, struct

# A draft is kept less often than it is reached, and costs a pass that a sibling
# does not. Drafts and tokens a step of SmolLM2's EAGLE head, C = 4, M = 3: at 1
# 3.1 and 2.09, at 1/2 2.8 and 2.09, at 1/4 2.3 and 2.09, at 1/8 2.0 and 2.05.
_SHARE = math.log(1 / 4)


def draw_each(
  ctx: Context,
  logits: Array,
  step: Callable[[Array, Array, Any], tuple[Array, Any]],
  carry: Any,
  *,
  width: int,
  vocab_size: int,
  kept: Array | None = None,
  ready: Array | None = None,
  siblings: int = 0,
  top_k: Callable[[Array, int], tuple[Array, Array]] = lax.top_k,
) -> tuple[Proposal, Any]:
  """Draws drafts one after another, each from what is known after the last.

  With siblings a row drafts on only while a further draft is worth more than
  the sibling whose place in the pass it would take (EAGLE-2; Li et al. 2024b).
  That is settled by the drafts before it, so none that was drawn is dropped.

  The q of a draft is the law that it was drawn from, after penalties and
  filters. With a reduced vocabulary all of that happens on its ids alone: that
  is the point of it.

  Args:
    ctx: its lookahead says how many are drawn.
    logits: float32 [B, Vd], of the first draft.
    step: of a drawn token (int32 [B], the target's ids), its index in the
      proposal (int32 scalar, >= 1 for what comes after it) and the carry:
      logits [B, Vd] of the draft at that index, and the carry.
    carry: what `step` takes and gives.
    width: C.
    vocab_size: V.
    kept: int32 [Vd], the target's ids that logits are of, ascending; None
      where they are of all.
    ready: bool [B], rows that have anything to propose; None for all.
    siblings: M, for a row of C drafts; of all that were not drawn, those that
      the draft thinks the likeliest to be reached and said, each beside the
      draft at its place.
    top_k: finds the largest of logits [B, 1, Vd], as `lax.top_k` does.

  Returns:
    The proposal, and the last carry.
  """
  rows, size = logits.shape
  assert kept is not None or size == vocab_size
  penalties = ctx.penalties
  if kept is not None:
    penalties = _of_kept(penalties, kept)

  @jax.named_scope("sampling")
  def draw(index, logits, drawn):
    tokens, q, good, others = drawn
    # As the target will see it: the drafts so far count.
    raw = penalties.apply(logits[:, None], tokens, index)
    law = sampling.probs(raw, ctx.sampling)[:, 0]
    best = sampling.argmax(raw)[:, 0]

    def race():
      noise = ctx.noise.exponential(sampling.DRAFT, index, size)
      return sampling.race(law, noise)

    token = lax.cond(ctx.noise.is_greedy, lambda: best, race)
    # A draft that is not a number ends its row's proposal before it.
    usable = sampling.usable(logits) & (good == index)
    if siblings:
      usable &= goes_on(index, drawn)
    good = good + usable.astype(jnp.int32)
    tokens = lax.dynamic_update_slice_in_dim(
      tokens, token[:, None], index, axis=1
    )
    q = lax.dynamic_update_slice_in_dim(q, law[:, None], index, axis=1)
    if siblings:
      others = others.with_those(raw, token, index, usable, top_k)
    return token, (tokens, q, good, others)

  def goes_on(index, drawn):
    """Rows that draft at a place: bool [B]."""
    wanted = index < ctx.lookahead
    if not siblings:
      return wanted
    _, _, good, others = drawn
    return wanted & (good == index) & others.worth(index)

  def body(loop):
    index, token, carry, drawn = loop
    logits, carry = step(_ids(kept, token), index, carry)
    token, drawn = draw(index, logits, drawn)
    return index + 1, token, carry, drawn

  drawn = (
    jnp.zeros((rows, width), jnp.int32),
    jnp.zeros((rows, width, size), jnp.float32),
    jnp.zeros((rows,), jnp.int32),
    _Others.none(rows, siblings and width - 1 + siblings),
  )
  token, drawn = draw(jnp.int32(0), logits, drawn)
  _, _, carry, (tokens, q, good, others) = lax.while_loop(
    lambda loop: jnp.any(goes_on(loop[0], loop[3])),
    body,
    (jnp.int32(1), token, carry, drawn),
  )
  count = jnp.minimum(good, ctx.lookahead)
  if ready is not None:
    count = jnp.where(ready, count, 0)
  tokens = _ids(kept, tokens)
  beside = None
  if siblings:
    places = jnp.where(others.chances > -jnp.inf, others.places, -1)
    beside = Siblings(tokens=_ids(kept, others.tokens), places=places)
  proposal = Proposal(
    tokens=tokens, q=q, count=count, siblings=beside, kept=kept
  )
  return proposal, carry


@struct
class _Others:
  """The best siblings so far.

  Attributes:
    path: float32 [B], the draft's log-probability of all drafts so far.
    chances: float32 [B, C - 1 + M], of each sibling behind the drafts before
      it, descending; -inf where there is none.
    tokens, places: int32 [B, C - 1 + M].
  """

  path: Array
  chances: Array
  tokens: Array
  places: Array

  @classmethod
  def none(cls, rows: int, count: int) -> "_Others":
    return cls(
      path=jnp.zeros((rows,), jnp.float32),
      chances=jnp.full((rows, count), -jnp.inf, jnp.float32),
      tokens=jnp.zeros((rows, count), jnp.int32),
      places=jnp.zeros((rows, count), jnp.int32),
    )

  def worth(self, index) -> Array:
    """Rows in which a draft at a place is worth a sibling's: bool [B].

    It may be kept where all before it are.
    """
    last = self.chances.shape[1] - index  # that a pass with it has no room for
    other = lax.dynamic_index_in_dim(self.chances, last, 1, keepdims=False)
    return (index == 0) | (self.path + _SHARE >= other)

  def with_those(self, logits, token, index, wanted, top_k) -> "_Others":
    """The best of these and of what might have been drawn at a place.

    Args:
      logits: [B, 1, Vd], what was drawn from.
      token: int32 [B], what was drawn. index: int32 scalar, its place.
      wanted: bool [B], rows that draft there.
      top_k: see `draw_each`.
    """
    count = self.chances.shape[1]
    total = jax.nn.logsumexp(logits[:, 0], axis=1)
    own = jnp.take_along_axis(logits[:, 0], token[:, None], axis=1)[:, 0]
    most = min(count + 1, logits.shape[-1])
    best, ids = (one[:, 0] for one in top_k(logits, most))
    chances = self.path[:, None] + best - total[:, None]
    takes = wanted[:, None] & (ids != token[:, None]) & (chances > -jnp.inf)
    chances = jnp.where(takes, chances, -jnp.inf)
    every = lambda old, new: jnp.concatenate([old, new], axis=1)
    chances, at = lax.top_k(every(self.chances, chances), count)
    pick = lambda old, new: jnp.take_along_axis(every(old, new), at, axis=1)
    return _Others(
      path=jnp.where(wanted, self.path + own - total, self.path),
      chances=chances,
      tokens=pick(self.tokens, ids),
      places=pick(self.places, jnp.full_like(ids, index)),
    )


def _ids(kept, tokens):
  """Drafts as the target's ids."""
  return tokens if kept is None else jnp.take(kept, tokens, mode="clip")


def _of_kept(penalties: Penalties, kept) -> Penalties:
  """Penalties of rows that have no other ids; nothing where no row asks."""

  def take(wide):
    return tuple(jnp.take(one, kept, axis=1, mode="clip") for one in wide)

  def none(wide):
    rows = wide[0].shape[0]
    return tuple(jnp.zeros((rows, kept.shape[0]), one.dtype) for one in wide)

  wide = (penalties.bias, penalties.prompt, penalties.output)
  asked = jnp.any(penalties.asked)
  bias, prompt, output = lax.cond(asked, take, none, wide)
  return dataclasses.replace(penalties, bias=bias, prompt=prompt, output=output)
