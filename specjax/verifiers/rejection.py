"""Token rejection (Leviathan et al. 2023, Alg. 1; Chen et al. 2023, Alg. 2).

Accept x_i while u_i < p_i(x_i) / q_i(x_i). At the first rejection emit a draw
from norm(max(0, p_i - q_i)); after all of the row's own drafts, one from p.
The emitted sequence follows the target's law exactly.
"""

import dataclasses

import jax.numpy as jnp

from specjax import sampling
from specjax.proposers.base import Proposal
from specjax.types import Array
from specjax.verifiers.base import Law, Verdict, VerifyNoise


@dataclasses.dataclass(frozen=True)
class Rejection:
  """The token rule as a `Verifier`."""

  def law(self, p: Array, proposal: Proposal) -> Law:
    """See `Verifier`."""
    width, vocab = p.shape[0] - 1, p.shape[1]
    index = jnp.arange(width + 1, dtype=jnp.int32)
    drafted = index < proposal.count
    q = jnp.pad(proposal.law(vocab).astype(p.dtype), ((0, 1), (0, 0)))
    # Beyond the row's own count there is no draft to subtract: what is left
    # is p, and the bonus is drawn from it.
    q = jnp.where(drafted[:, None], q, 0)

    at = proposal.tokens[:, None]
    p_token = jnp.take_along_axis(p[:width], at, axis=1)[:, 0]
    q_token = jnp.take_along_axis(q[:width], at, axis=1)[:, 0]
    possible = drafted[:width] & (q_token > 0)
    ratio = p_token / jnp.where(possible, q_token, 1)
    accept = jnp.where(possible, jnp.minimum(ratio, 1), 0)

    left = jnp.maximum(p - q, 0)
    total = jnp.sum(left, axis=1, keepdims=True)
    # Nothing is left where p = q: the ratio is 1 and no rejection happens,
    # except by rounding, where p itself is the best answer.
    residual = jnp.where(total > 0, left / jnp.where(total > 0, total, 1), p)
    return Law(tokens=proposal.tokens, accept=accept, residual=residual)

  def draw(self, law: Law, noise: VerifyNoise) -> Verdict:
    """See `Verifier`."""
    width = law.accept.shape[0]
    passed = jnp.cumprod((noise.uniform < law.accept).astype(jnp.int32))
    accepted = jnp.sum(passed, dtype=jnp.int32)
    token = sampling.race(law.residual[accepted], noise.exponential)
    index = jnp.arange(width + 1, dtype=jnp.int32)
    tokens = jnp.pad(law.tokens, (0, 1))
    tokens = jnp.where(index < accepted, tokens, 0)
    tokens = jnp.where(index == accepted, token, tokens)
    return Verdict(tokens=tokens, count=accepted + 1)
