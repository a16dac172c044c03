"""One token more, where what a row emits last is among its siblings.

A row's verdict ends with a token that the target said and nobody had drafted
there. Where that is one of the proposal's siblings at that place, the target's
pass has read it behind just what was accepted, so the token after it can be
drawn as well: plainly, from the target's own law. How the verdict came about
does not matter, so every verifier keeps its law (two levels of a tree of
deterministic candidates, as in SpecInfer, Miao et al. 2024).
"""

import jax.numpy as jnp

from specjax.proposers.base import Proposal
from specjax.types import Array
from specjax.verifiers.base import Verdict


def layout(proposal: Proposal) -> tuple[Array, Array]:
  """What of a proposal the target's pass reads behind the last token.

  A row's own drafts, and behind them siblings, until the pass is full.

  Returns:
    Tokens int32 [B, C + M], and their distance from the last token: a draft's
    place plus one, and so a sibling's.
  """
  places = jnp.broadcast_to(
    jnp.arange(proposal.tokens.shape[1], dtype=jnp.int32), proposal.tokens.shape
  )
  others = proposal.siblings
  if others is None:
    return proposal.tokens, places + 1
  index = jnp.arange(proposal.size, dtype=jnp.int32)
  # The drafts first, then the siblings, wherever they begin.
  at = jnp.where(
    index < proposal.count[:, None],
    index,
    places.shape[1] + index - proposal.count[:, None],
  )

  def pick(drafts, siblings):
    both = jnp.concatenate([drafts, siblings], axis=1)
    return jnp.take_along_axis(both, at, axis=1, mode="clip")

  tokens = pick(proposal.tokens, others.tokens)
  return tokens, 1 + pick(places, jnp.maximum(others.places, 0))


def find(verdict: Verdict, proposal: Proposal) -> Array:
  """Where in the pass each row's last token was read: int32 [B], 0 for nowhere.

  Args:
    verdict: [B, ...]; see `Verdict`.
    proposal: with siblings. Where all of a row's drafts were accepted there is
      none of the token that follows.
  """
  others, place = proposal.siblings, verdict.count - 1
  last = jnp.take_along_axis(verdict.tokens, place[:, None], axis=1)
  same = (others.tokens == last) & (others.places == place[:, None])
  same &= (place < proposal.count)[:, None]
  first = jnp.argmax(same, axis=1).astype(jnp.int32)
  at = 1 + proposal.count + first
  return jnp.where(jnp.any(same, axis=1) & (at <= proposal.size), at, 0)


def extend(verdict: Verdict, found: Array, token: Array) -> Verdict:
  """The verdict with int32 [B] tokens added to rows that have a sibling.

  Args:
    verdict: [B, ...].
    found: from `find`.
    token: what the target says after each row's sibling; anything for others.
  """
  index = jnp.arange(verdict.tokens.shape[1], dtype=jnp.int32)
  more = found > 0
  here = more[:, None] & (index == verdict.count[:, None])
  return Verdict(
    tokens=jnp.where(here, token[:, None], verdict.tokens),
    count=verdict.count + more.astype(jnp.int32),
  )


def read_at(verdict: Verdict, found: Array) -> Array:
  """Which position of the pass each emitted token was drawn at.

  Its own index, but for what was drawn after a sibling.

  Args:
    verdict: [B, ...], extended.
    found: from `find`.

  Returns:
    int32 [B, C + 1]; anything after the verdict's count.
  """
  index = jnp.arange(verdict.tokens.shape[1], dtype=jnp.int32)
  last = index == verdict.count[:, None] - 1
  return jnp.where((found > 0)[:, None] & last, found[:, None], index)
