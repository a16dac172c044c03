"""Block verification (Sun et al. 2025, Alg. 2).

Looks at the whole block before it decides where to stop, and so never keeps
fewer tokens on average than the token rule. With p_0 = 1 and
p_i = min(p_{i-1} p(x_i) / q(x_i), 1), the probability of the best coupling of
the first i tokens, position i is a stop with probability

  h_i = R_i / (R_i + 1 - p_i),  R_i = sum_x max(p_i p(x | ..) - q(x | ..), 0)

(h_C = p_C at the row's own count). The last stop wins; none is a stop at 0.
There the next token is drawn from max(p_i p - q, 0), a residual of its own: the
token rule's would be wrong here.
"""

import dataclasses

import jax.numpy as jnp
from jax import lax

from specjax.proposers.base import Proposal
from specjax.types import Array
from specjax.verifiers.base import (
  Law,
  Verdict,
  VerifyNoise,
  emit,
  gather_drafted,
)


@dataclasses.dataclass(frozen=True)
class Block:
  """The block rule as a `Verifier`.

  In its `Law`, `accept[i - 1]` is h_i: the probability that position i is a
  stop, whatever the positions before it are.
  """

  def law(self, p: Array, proposal: Proposal) -> Law:
    """See `Verifier`."""
    drafted, q, p_token, q_token = gather_drafted(p, proposal)
    width = p_token.shape[0]
    possible = drafted[:width] & (q_token > 0)
    ratio = p_token / jnp.where(possible, q_token, 1)
    ratio = jnp.where(possible, ratio, 0)

    def couple(before, step):
      now = jnp.minimum(before * step, 1)
      return now, now

    one = jnp.ones((), p.dtype)
    _, coupled = lax.scan(couple, one, ratio)
    coupled = jnp.concatenate([one[None], coupled])  # p_0 .. p_C
    left = jnp.maximum(coupled[:, None] * p - q, 0)
    rest = jnp.sum(left, axis=1)  # R_0 .. R_C
    denominator = rest + (1 - coupled)
    stop = jnp.where(
      denominator > 0, rest / jnp.where(denominator > 0, denominator, 1), 1
    )
    # At the row's own count nothing is drafted: q is 0, so R = p_i and the
    # formula gives p_i, as it should. Beyond it nothing can be kept.
    index = jnp.arange(1, width + 1, dtype=jnp.int32)
    accept = jnp.where(index <= proposal.count, stop[1:], 0)
    return Law(tokens=proposal.tokens, accept=accept, left=left, p=p)

  def draw(self, law: Law, noise: VerifyNoise) -> Verdict:
    """See `Verifier`."""
    width = law.accept.shape[0]
    index = jnp.arange(1, width + 1, dtype=jnp.int32)
    stops = jnp.where(noise.uniform < law.accept, index, 0)
    return emit(law, jnp.max(stops, initial=0), noise)
