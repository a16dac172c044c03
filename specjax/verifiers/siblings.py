"""One token more, where what a row emits last is among its siblings.

A row's verdict ends with a token that the target said and nobody had drafted
there. Where that is one of the proposal's siblings at that place, the target's
pass has read it behind just what was accepted, so the token after it can be
drawn as well: plainly, from the target's own law. How the verdict came about
does not matter, so every verifier keeps its law (two levels of a tree of
deterministic candidates, as in SpecInfer, Miao et al. 2024).
"""

import jax.numpy as jnp

from specjax.proposers.base import Siblings
from specjax.types import Array
from specjax.verifiers.base import Verdict


def find(verdict: Verdict, siblings: Siblings, count: Array) -> Array:
  """Which sibling each row's last token is: int32 [B], -1 for none.

  Args:
    verdict: [B, ...]; see `Verdict`.
    siblings: of the same proposal.
    count: int32 [B], the row's own count of drafts. Where all of them were
      accepted there is no sibling of the token that follows.
  """
  place = verdict.count - 1
  last = jnp.take_along_axis(verdict.tokens, place[:, None], axis=1)
  same = (siblings.tokens == last) & (siblings.places == place[:, None])
  same &= (place < count)[:, None]
  first = jnp.argmax(same, axis=1).astype(jnp.int32)
  return jnp.where(jnp.any(same, axis=1), first, -1)


def extend(verdict: Verdict, found: Array, token: Array) -> Verdict:
  """The verdict with int32 [B] tokens added to rows that have a sibling.

  Args:
    verdict: [B, ...].
    found: from `find`.
    token: what the target says after each row's sibling; anything for others.
  """
  index = jnp.arange(verdict.tokens.shape[1], dtype=jnp.int32)
  more = found >= 0
  here = more[:, None] & (index == verdict.count[:, None])
  return Verdict(
    tokens=jnp.where(here, token[:, None], verdict.tokens),
    count=verdict.count + more.astype(jnp.int32),
  )


def read_at(verdict: Verdict, found: Array) -> Array:
  """Which position of the pass each emitted token was drawn at.

  Its own index, for the siblings stand behind the C + 1 others; but for what
  was drawn after a sibling.

  Args:
    verdict: [B, ...], extended.
    found: from `find`.

  Returns:
    int32 [B, C + 1]; anything after the verdict's count.
  """
  width = verdict.tokens.shape[1]
  index = jnp.arange(width, dtype=jnp.int32)
  last = index == verdict.count[:, None] - 1
  more = (found >= 0)[:, None] & last
  return jnp.where(more, width + found[:, None], index)
