"""Searches of logits that are split over devices, without gathering them."""

import jax
import jax.numpy as jnp
from jax import lax

from specjax.sharding import axes
from specjax.sharding.placement import LOGITS, Placement
from specjax.types import Array


def largest(
  placement: Placement | None, logits: Array, count: int
) -> tuple[Array, Array]:
  """`lax.top_k` of logits [B, T, V]: values and ids [B, T, count].

  Each device finds those of its part, and the best of all parts' are kept:
  lowest id first of equals, as in one go.
  """
  if placement is None:
    return lax.top_k(logits, count)
  over = placement.over(axes.VOCAB)

  def local(logits):
    size = logits.shape[-1]
    best, ids = lax.top_k(logits, min(count, size))
    if not over:
      return best, ids
    ids = ids + size * lax.axis_index(over).astype(jnp.int32)
    every = lambda x: lax.all_gather(x, over, axis=x.ndim - 1, tiled=True)
    # Parts are in order, and so are places in one.
    best, ids = every(best), every(ids)
    best, at = lax.top_k(best, count)
    return best, jnp.take_along_axis(ids, at, axis=-1)

  out = placement.spec((*LOGITS[:-1], None))
  return jax.shard_map(
    local,
    mesh=placement.mesh,
    in_specs=placement.spec(LOGITS),
    out_specs=(out, out),
    check_vma=False,
  )(logits)
