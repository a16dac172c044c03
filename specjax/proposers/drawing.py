"""Drawing one draft after another: what all proposers that sample share."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from specjax import sampling
from specjax.penalties import Penalties
from specjax.proposers.base import Context, Proposal, Siblings
from specjax.types import Array, struct


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

  The q of a draft is the law that it was drawn from, after penalties and
  filters. With a reduced vocabulary all of that happens on its ids alone (that
  is the point of it), and q is spread over the target's once, at the end.

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
    siblings: M; of all that were not drawn, those that the draft thinks the
      likeliest to be reached and said, each beside the draft at its place.
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
    good = good + usable.astype(jnp.int32)
    tokens = lax.dynamic_update_slice_in_dim(
      tokens, token[:, None], index, axis=1
    )
    q = lax.dynamic_update_slice_in_dim(q, law[:, None], index, axis=1)
    if siblings:
      wanted = usable & (index < ctx.lookahead)
      others = others.with_those(raw, token, index, wanted, top_k)
    return token, (tokens, q, good, others)

  def body(loop):
    index, token, carry, drawn = loop
    logits, carry = step(_ids(kept, token), index, carry)
    token, drawn = draw(index, logits, drawn)
    return index + 1, token, carry, drawn

  drawn = (
    jnp.zeros((rows, width), jnp.int32),
    jnp.zeros((rows, width, size), jnp.float32),
    jnp.zeros((rows,), jnp.int32),
    _Others.none(rows, siblings),
  )
  token, drawn = draw(jnp.int32(0), logits, drawn)
  bound = jnp.max(ctx.lookahead)
  _, _, carry, (tokens, q, good, others) = lax.while_loop(
    lambda loop: loop[0] < bound,
    body,
    (jnp.int32(1), token, carry, drawn),
  )
  count = jnp.minimum(good, ctx.lookahead)
  if ready is not None:
    count = jnp.where(ready, count, 0)
  if kept is not None:
    with jax.named_scope("sampling"):
      tokens, q = _ids(kept, tokens), _spread(q, kept, vocab_size)
  beside = None
  if siblings:
    places = jnp.where(others.chances > -jnp.inf, others.places, -1)
    beside = Siblings(tokens=_ids(kept, others.tokens), places=places)
  proposal = Proposal(tokens=tokens, q=q, count=count, siblings=beside)
  return proposal, carry


@struct
class _Others:
  """The best siblings so far.

  Attributes:
    path: float32 [B], the draft's log-probability of all drafts so far.
    chances: float32 [B, M], of each sibling behind the drafts before it; -inf
      where there is none.
    tokens, places: int32 [B, M].
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
    best, ids = (
      one[:, 0] for one in top_k(logits, min(count + 1, logits.shape[-1]))
    )
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


def _spread(q, kept, vocab_size):
  """q [B, C, Vd] over the target's ids: [B, C, V]."""
  whole = jnp.zeros((*q.shape[:2], vocab_size), q.dtype)
  return whole.at[:, :, kept].set(
    q, mode="drop", indices_are_sorted=True, unique_indices=True
  )


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
