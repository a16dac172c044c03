"""What kernels move and compute that are of this project's own making.

A compiler's text names a kernel and its operands. What it takes of them only
its author knows.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

from specjax.lab.program import Array
from specjax.models.attend import TPU_BLOCK


@dataclasses.dataclass(frozen=True)
class Taken:
  """Of one call.

  Attributes:
    shares: how much of each operand is read, of 1.
    flops: of its products.
  """

  shares: tuple[float, ...]
  flops: float


# The scopes around a kernel and its operands -> what it takes, or None: all.
Kernels = Callable[[tuple[str, ...], Sequence[Array]], Taken | None]


def attention(operands: Sequence[Array], blocks: float) -> Taken:
  """What a call of `tpu_attention` takes.

  Args:
    operands: of the call; the last three are queries [B, K, G T, H], and the
      stacks of keys and of values [L, B, K, S, H].
    blocks: how many blocks a row's walk has.
  """
  *numbers, queries, keys, values = operands
  layers, *_, capacity, _ = keys.dims
  seen = min(blocks * TPU_BLOCK, capacity)
  share = seen / capacity / layers
  assert keys.dims == values.dims and queries.dims[:2] == keys.dims[1:3]
  return Taken(
    shares=(*[1.0] * len(numbers), 1.0, share, share),
    flops=2 * 2.0 * math.prod(queries.dims) * seen,
  )
