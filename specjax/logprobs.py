"""Log-probabilities of what was emitted, by the raw target.

They are the target's own: before penalties, bias, temperature and filters, so
that they can be compared across settings and equal a teacher-forced rescore.
"""

import jax
import jax.numpy as jnp
from jax import lax

from specjax.types import Array, struct


@struct
class Scores:
  """Of the tokens of a block; zeros where no row asks.

  Attributes:
    own: float32 [B, T], of each token.
    top_ids: int32 [B, T, k], the likeliest ids, best first, lowest of equals.
    top: float32 [B, T, k], theirs.
  """

  own: Array
  top_ids: Array
  top: Array

  def row(self, index: int) -> "Scores":
    """Of one row: the same without the first axis."""
    return Scores(
      own=self.own[index], top_ids=self.top_ids[index], top=self.top[index]
    )


def score(
  logits: Array,
  tokens: Array,
  wanted: Array,
  top: int,
  top_k=lax.top_k,
  at: Array | None = None,
) -> Scores:
  """Scores a block; costs nothing where nobody asks.

  Args:
    logits: raw, float32 [B, T, V].
    tokens: int32 [B, T], what each position emitted.
    wanted: bool scalar, whether any row asks.
    top: k, static; 0 compiles no search for the likeliest.
    top_k: finds them, as `lax.top_k` does.
    at: int32 [B, T], which position of the logits, then [B, any, V], each token
      belongs to; its own index unless given.
  """

  def scored(logits, tokens):
    if at is not None:
      logits = jnp.take_along_axis(logits, at[..., None], axis=1)
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    own = jnp.take_along_axis(logits, tokens[..., None], axis=-1) - total
    best = jnp.zeros((*tokens.shape, 0), jnp.float32)
    ids = jnp.zeros(best.shape, jnp.int32)
    if top:
      best, ids = top_k(logits, top)
    return Scores(own=own[..., 0], top_ids=ids, top=best - total)

  def nothing(logits, tokens):
    del logits
    shape = (*tokens.shape, top)
    return Scores(
      own=jnp.zeros(tokens.shape, jnp.float32),
      top_ids=jnp.zeros(shape, jnp.int32),
      top=jnp.zeros(shape, jnp.float32),
    )

  return lax.cond(wanted, scored, nothing, logits, tokens)
