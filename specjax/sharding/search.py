"""Searches of logits that are split over devices, without gathering them."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from specjax.sharding import axes
from specjax.sharding.placement import LOGITS, Placement
from specjax.types import Array

_FEW = 16  # are found one after another


def largest(
  placement: Placement | None, logits: Array, count: int
) -> tuple[Array, Array]:
  """`lax.top_k` of logits [B, T, V]: values and ids [B, T, count].

  Each device finds those of its part, and the best of all parts' are kept:
  lowest id first of equals, as in one go.
  """
  if placement is None:
    return top_k(logits, count)
  over = placement.over(axes.VOCAB)

  def local(logits):
    size = logits.shape[-1]
    best, ids = top_k(logits, min(count, size))
    if not over:
      return best, ids
    ids = ids + size * lax.axis_index(over).astype(jnp.int32)
    every = lambda x: lax.all_gather(x, over, axis=x.ndim - 1, tiled=True)
    # Parts are in order, and so are places in one.
    best, ids = every(best), every(ids)
    best, at = top_k(best, count)
    return best, jnp.take_along_axis(ids, at, axis=-1)

  out = placement.spec((*LOGITS[:-1], None))
  return jax.shard_map(
    local,
    mesh=placement.mesh,
    in_specs=placement.spec(LOGITS),
    out_specs=(out, out),
    check_vma=False,
  )(logits)


def top_k(x: Array, count: int) -> tuple[Array, Array]:
  """`lax.top_k`, whose TPU program sorts all there is, whatever the count.

  A few are found there one after another: each takes one reading of what lies
  in fast memory, where a sort makes dozens of passes over it.
  """
  if not 0 < count <= min(_FEW, x.shape[-1]):
    return lax.top_k(x, count)
  each = functools.partial(_each_in_turn, count=count)
  other = lambda x: tuple(lax.top_k(x, count))
  return lax.platform_dependent(x, tpu=each, default=other)


def _each_in_turn(x, *, count):
  """`lax.top_k` of float32, by as many searches for the largest."""
  index = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
  left = jnp.full(x.shape, True)
  values, places = [], []
  for _ in range(count):
    value = jnp.max(jnp.where(left, x, -jnp.inf), axis=-1, keepdims=True)
    # What is NaN is larger than all else; what was found is no longer there.
    same = jnp.where(jnp.isnan(value), jnp.isnan(x), x == value) & left
    place = jnp.min(jnp.where(same, index, x.shape[-1]), axis=-1, keepdims=True)
    left &= index != place
    values.append(value)
    places.append(place)
  return jnp.concatenate(values, axis=-1), jnp.concatenate(places, axis=-1)
