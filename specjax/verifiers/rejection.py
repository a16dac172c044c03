"""Token rejection (Leviathan et al. 2023, Alg. 1; Chen et al. 2023, Alg. 2).

Accept x_i while u_i < p_i(x_i) / q_i(x_i). At the first rejection emit a draw
from norm(max(0, p_i - q_i)); after all of the row's own drafts, one from p.
The emitted sequence follows the target's law exactly.
"""

import dataclasses

import jax.numpy as jnp

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
class Rejection:
  """The token rule as a `Verifier`."""

  def law(self, p: Array, proposal: Proposal) -> Law:
    """See `Verifier`."""
    drafted, q, p_token, q_token = gather_drafted(p, proposal)
    possible = drafted[: p_token.shape[0]] & (q_token > 0)
    ratio = p_token / jnp.where(possible, q_token, 1)
    return Law(
      tokens=proposal.tokens,
      accept=jnp.where(possible, jnp.minimum(ratio, 1), 0),
      left=jnp.maximum(p - q, 0),
      p=p,
    )

  def draw(self, law: Law, noise: VerifyNoise) -> Verdict:
    """See `Verifier`."""
    passed = jnp.cumprod((noise.uniform < law.accept).astype(jnp.int32))
    return emit(law, jnp.sum(passed, dtype=jnp.int32), noise)
