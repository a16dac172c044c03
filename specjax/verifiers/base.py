"""A verifier is `law` (what happens with which probability) and `draw`.

Both work on one row; the step maps them over rows. `law` holds all of the
algorithm's exactness, so tests enumerate it; `draw` only compares and draws.
"""

from typing import Protocol

import jax.numpy as jnp

from specjax import sampling
from specjax.proposers.base import Proposal
from specjax.types import Array, struct


@struct
class Law:
  """What a verifier will do with one row's proposal.

  Attributes:
    tokens: int32 [C], the drafted tokens.
    accept: [C], with which probability each place passes; what that means is
      the rule's (the token rule: the token is accepted once it is reached). 0
      at and after the row's own count.
    left: [C + 1, V], what is left of the target's law after each number of
      accepted tokens, up to a factor; after the row's own count all of it.
    p: [C + 1, V], the target's law, for where nothing is left. That is where
      p = q: no stop happens there, except by rounding, where p is the best
      answer.
  """

  tokens: Array
  accept: Array
  left: Array
  p: Array

  @property
  def residual(self) -> Array:
    """[C + 1, V], the law of the token that follows so many accepted ones.

    At all of them; `emit` works out the one that it draws from.
    """
    return _normalized(self.left, self.p)


@struct
class VerifyNoise:
  """One row's noise.

  Attributes:
    uniform: [C], strictly inside (0, 1).
    exponential: [V], positive and finite.
  """

  uniform: Array
  exponential: Array


@struct
class Verdict:
  """What one row emits.

  Attributes:
    tokens: int32 [C + 1]; entries at or after `count` are 0.
    count: int32, accepted tokens and the one drawn after them, 1..C + 1.
  """

  tokens: Array
  count: Array


class Verifier(Protocol):
  """See the module's docstring."""

  def law(self, p: Array, proposal: Proposal) -> Law:
    """p [C + 1, V] is the target's law at every position of the block."""

  def draw(self, law: Law, noise: VerifyNoise) -> Verdict:
    """Draws what the row emits."""


def gather_drafted(
  p: Array, proposal: Proposal
) -> tuple[Array, Array, Array, Array]:
  """What every rule asks of a row's proposal.

  Returns:
    Which positions were drafted (bool [C + 1]), q at every position ([C + 1,
    V]; 0 beyond the row's own count, where there is no draft to subtract), and
    p and q of each drafted token ([C]).
  """
  width, vocab = p.shape[0] - 1, p.shape[1]
  drafted = jnp.arange(width + 1, dtype=jnp.int32) < proposal.count
  q = jnp.pad(proposal.law(vocab).astype(p.dtype), ((0, 1), (0, 0)))
  q = jnp.where(drafted[:, None], q, 0)
  at = proposal.tokens[:, None]
  p_token = jnp.take_along_axis(p[:width], at, axis=1)[:, 0]
  q_token = jnp.take_along_axis(q[:width], at, axis=1)[:, 0]
  return drafted, q, p_token, q_token


def _normalized(left: Array, p: Array) -> Array:
  """left [..., V] as a law; p where nothing is left."""
  total = jnp.sum(left, axis=-1, keepdims=True)
  return jnp.where(total > 0, left / jnp.where(total > 0, total, 1), p)


def emit(law: Law, accepted: Array, noise: VerifyNoise) -> Verdict:
  """The first `accepted` drafted tokens and one drawn from the residual."""
  width = law.accept.shape[0]
  residual = _normalized(law.left[accepted], law.p[accepted])
  token = sampling.race(residual, noise.exponential)
  index = jnp.arange(width + 1, dtype=jnp.int32)
  tokens = jnp.where(index < accepted, jnp.pad(law.tokens, (0, 1)), 0)
  tokens = jnp.where(index == accepted, token, tokens)
  return Verdict(tokens=tokens, count=accepted + 1)


def greedy(best: Array, proposal: Proposal) -> Verdict:
  """What every rule does, for sure, where all of p is one-hot.

  A draft that is the target's choice has p / q of at least 1, any other one 0;
  and what is left of p where drafts stop is the choice itself.

  Args:
    best: int32 [C + 1], the target's choice at each position.
    proposal: one row's.
  """
  width = proposal.tokens.shape[0]
  index = jnp.arange(width + 1, dtype=jnp.int32)
  same = (proposal.tokens == best[:width]) & (index[:width] < proposal.count)
  accepted = jnp.sum(jnp.cumprod(same.astype(jnp.int32)), dtype=jnp.int32)
  tokens = jnp.where(index <= accepted, best, 0)
  return Verdict(tokens=tokens, count=accepted + 1)
