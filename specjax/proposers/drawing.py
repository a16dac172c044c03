"""Drawing one draft after another: what all proposers that sample share."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from specjax import sampling
from specjax.penalties import Penalties
from specjax.proposers.base import Context, Proposal
from specjax.types import Array


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
    tokens, q, good = drawn
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
    return token, (tokens, q, good)

  def body(loop):
    index, token, carry, drawn = loop
    logits, carry = step(_ids(kept, token), index, carry)
    token, drawn = draw(index, logits, drawn)
    return index + 1, token, carry, drawn

  drawn = (
    jnp.zeros((rows, width), jnp.int32),
    jnp.zeros((rows, width, size), jnp.float32),
    jnp.zeros((rows,), jnp.int32),
  )
  token, drawn = draw(jnp.int32(0), logits, drawn)
  bound = jnp.max(ctx.lookahead)
  _, _, carry, (tokens, q, good) = lax.while_loop(
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
  return Proposal(tokens=tokens, q=q, count=count), carry


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
