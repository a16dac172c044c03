"""A verifier is `law` (what happens with which probability) and `draw`.

Both work on one row; the step maps them over rows. `law` holds all of the
algorithm's exactness, so tests enumerate it; `draw` only compares and draws.
"""

from typing import Protocol

from specjax.proposers.base import Proposal
from specjax.types import Array, struct


@struct
class Law:
  """What a verifier will do with one row's proposal.

  Attributes:
    tokens: int32 [C], the drafted tokens.
    accept: [C], probability of accepting each token once it is reached; 0 at
      and after the row's own count.
    residual: [C + 1, V], the law of the token emitted after each number of
      accepted ones; after the row's own count it is the target's (the bonus).
  """

  tokens: Array
  accept: Array
  residual: Array


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
