"""T5's relative positions: attention's scores biased by classes of distance.

Half of the classes are of one distance each, the others of ranges that grow
with it, up to a distance from which on all are alike (Raffel et al. 2020,
section 2.1). A bias is a function of the distance alone: a short table of it
serves every query, whatever the lengths are.
"""

import math

import jax.numpy as jnp
import numpy as np

from specjax.types import Array, struct


@struct
class Biases:
  """What is added to scores, for a layer that has these in place of rotation.

  Attributes:
    by_distance: float32 [N, R]; [:, d] is for a key that lies d tokens before
      the query, and the last for all that lie further.
  """

  by_distance: Array


def classes(distance: np.ndarray, buckets: int, furthest: int) -> np.ndarray:
  """The class, int32, of each distance >= 0.

  Args:
    distance: whole numbers.
    buckets: how many classes there are.
    furthest: the distance from which on all are of the last one.
  """
  exact = buckets // 2
  # In float32, as the models were trained: a boundary may fall on a number.
  ratio = np.maximum(distance, exact).astype(np.float32) / np.float32(exact)
  share = np.log(ratio) / np.float32(math.log(furthest / exact))
  wide = exact + (share * np.float32(buckets - exact)).astype(np.int32)
  found = np.where(distance < exact, distance, np.minimum(wide, buckets - 1))
  return found.astype(np.int32)


def causal(table: Array, furthest: int) -> Array:
  """Biases of keys at and before a query; see `Biases`.

  Args:
    table: [buckets, N], of each class and head.
    furthest: see `classes`.

  Returns:
    float32 [N, furthest + 1].
  """
  found = classes(np.arange(furthest + 1), table.shape[0], furthest)
  return table[found].astype(jnp.float32).T


def both_ways(table: Array, furthest: int) -> Array:
  """The same of keys on both sides, of an encoder.

  Half of the classes are for keys behind the query.

  Returns:
    float32 [N, 2 furthest + 1]; [:, furthest + o] is for a key `o` tokens
    behind the query, before it where o < 0.
  """
  half = table.shape[0] // 2
  offset = np.arange(-furthest, furthest + 1)
  found = classes(np.abs(offset), half, furthest) + half * (offset > 0)
  return table[found].astype(jnp.float32).T
