"""How a tensor of a file and parameters hold the same numbers.

The letters are DESIGN.md's glossary.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

Shape = tuple[int, ...]

PART = -1  # in `Transform.axes`: which of the parts that share the tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transform:
  """How a tensor of a file and a parameter (or several) hold the same numbers.

  Attributes:
    name: the change, from the file's axes to ours.
    axes: of each axis of the file, which of ours it is made of, outer first;
      None where they are ours.
    parts: how many parameters share the tensor.
  """

  name: str
  axes: tuple[tuple[int, ...], ...] | None = None
  parts: int = 1

  def order(self, rank: int) -> tuple[int, ...]:
    """Our axes, and PART, in the order in which the file has them."""
    if self.axes is None:
      return tuple(range(rank))
    return tuple(axis for folded in self.axes for axis in folded)

  def view(self, shape: Shape) -> Shape:
    """The file's tensor with an axis for each of `order`, for our shape."""
    order = self.order(len(shape))
    return tuple(self.parts if a == PART else shape[a] for a in order)

  def file_shape(self, shape: Shape) -> Shape:
    """The shape in the file, for our shape."""
    if self.axes is None:
      return tuple(shape)
    sizes = (*shape, self.parts)  # PART is the last
    return tuple(
      math.prod(sizes[axis] for axis in folded) for folded in self.axes
    )

  def to_file(self, values: Sequence[np.ndarray]) -> np.ndarray:
    """The file's tensor, of all parameters that share it."""
    shape = values[0].shape
    whole = np.stack(values, axis=-1) if self.parts > 1 else values[0]
    whole = whole.transpose(self.order(len(shape)))
    return whole.reshape(self.file_shape(shape))


AS_IS = Transform(name="as it is")
SPLIT_ROWS = Transform(name="(N H) D → N H D", axes=((0, 1), (2,)))
SPLIT_COLUMNS = Transform(name="D (N H) → D N H", axes=((0,), (1, 2)))
SPLIT_BIAS = Transform(name="(N H) → N H", axes=((0, 1),))
# GPT-2's products are (in, out), and query, key and value lie in one tensor.
TRANSPOSE = Transform(name="in out → out in", axes=((1,), (0,)))
TRANSPOSE_COLUMNS = Transform(name="(N H) D → D N H", axes=((1, 2), (0,)))
THIRD_OF_COLUMNS = Transform(
  name="D (3 N H) → 3 of N H D", axes=((2,), (PART, 0, 1)), parts=3
)
THIRD_OF_BIAS = Transform(
  name="(3 N H) → 3 of N H", axes=((PART, 0, 1),), parts=3
)
