"""Weights as whole numbers of eight bits, with a scale for each of their rows.

A draft is bound by reading its weights, and may be a little wrong: the target
checks it anyway. Of bfloat16 half the bytes are read.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from specjax.types import Array, Params

ROWS = "rows"  # what `heads.borrowed` calls those of the target's head
_MOST = 127


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=("values", "scale"),
  meta_fields=("dtype",),
)
@dataclasses.dataclass(frozen=True)
class Int8:
  """A weight [out..., in], which products take in an array's place.

  Attributes:
    values: int8 [out..., in].
    scale: float32 [out...]: a row is its values times this.
    dtype: of the weight that it stands for, and of what it is multiplied with.
  """

  values: Array
  scale: Array
  dtype: jnp.dtype

  @classmethod
  def of(cls, weight: Array, fold: int = 1) -> "Int8":
    """The nearest to a weight, whose last `fold` axes are the input's.

    To the nearest of 255 steps of each row's own size (Dettmers et al. 2022,
    section 2.1).
    """
    wide = weight.astype(jnp.float32)
    inputs = tuple(range(-fold, 0))
    most = jnp.max(jnp.abs(wide), axis=inputs, keepdims=True)
    scale = jnp.where(most == 0, 1.0, most / _MOST)  # NaN where a weight is.
    values = jnp.round(wide / scale).astype(jnp.int8)
    return cls(values, scale.reshape(weight.shape[:-fold]), weight.dtype)

  @property
  def shape(self) -> tuple[int, ...]:
    """Of the weight."""
    return self.values.shape

  @property
  def ndim(self) -> int:
    """Of the weight."""
    return self.values.ndim

  @property
  def size(self) -> int:
    """Numbers of the weight."""
    return math.prod(self.shape)

  def __getitem__(self, index) -> "Int8":
    """Itself: there are parts of it that nobody asks for."""
    if index is not Ellipsis:
      raise IndexError("a weight in int8 is given as a whole")
    return self

  def astype(self, dtype) -> "Int8":
    """Of another dtype's weight."""
    return dataclasses.replace(self, dtype=jnp.dtype(dtype))

  def reshape(self, *shape: int) -> "Int8":
    """With the rows in another arrangement, and one axis of the input."""
    values = self.values.reshape(shape)
    scale = self.scale.reshape(values.shape[:-1])
    return dataclasses.replace(self, values=values, scale=scale)

  def whole(self) -> Array:
    """The weight as an array again, of its dtype."""
    scale = self.scale.reshape(
      *self.scale.shape, *[1] * (self.ndim - self.scale.ndim)
    )
    return (self.values.astype(jnp.float32) * scale).astype(self.dtype)


def quantised(paths: Sequence[str], params: Params) -> Params:
  """Parameters whose products are with `Int8`; the others are as they were.

  Args:
    paths: their dotted names; see `decoder.Model` and `heads.borrowed`.
    params: arrays, or their shapes under `jax.eval_shape`.
  """
  # A model's embedding is multiplied with where it is the head, too.
  tied = "embed.weight" in paths and "head.weight" not in paths
  # EAGLE's fc reads embeddings beside states, whose weights are of other sizes:
  # a row's scale fits one of the two.
  others = {"position", "relative", "fc"} | (set() if tied else {"embed"})

  def one(path, param):
    *names, last = path.split(".")
    is_norm = bool(names) and names[-1].endswith("norm")  # Of stacked layers.
    if last not in ("weight", ROWS) or param.ndim < 2 or is_norm:
      return param
    if others & set(names):
      return param
    return Int8.of(param, 2 if names[-1:] == ["o"] else 1)

  return jax.jit(lambda params: tuple(map(one, paths, params)))(tuple(params))
