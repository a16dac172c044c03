"""Rows of a table by their ids, as each backend does it best."""

import jax
import jax.numpy as jnp
from jax import lax

from specjax.types import Array

_FEW = 16  # ids of a step


def lookup(table: Array, ids: Array) -> Array:
  """table [V, D] at ids int32 [...]: [..., D]. Ids beyond it are its last.

  XLA's CPU backend reads bfloat16 as float32. Fused with the lookup that costs
  nothing, but out of a loop of drafts it takes the conversion of the whole
  table, before every step (SmolLM2, CPU: 60 ms). So it must not know that the
  table is the same in every round.
  """
  if table.dtype == jnp.bfloat16:
    table, ids = lax.optimization_barrier((table, ids))

  def gathered(table, ids):
    return jnp.take(table, ids, axis=0, mode="clip")

  if not 1 < ids.size <= _FEW or jax.device_count() > 1:
    return gathered(table, ids)
  return lax.platform_dependent(table, ids, cpu=_sliced, default=gathered)


def _sliced(table, ids):
  """A row at a time: XLA's CPU backend takes a few for as many as the table's.

  It wakes another thread for half of them, which takes 40 microseconds.
  """
  size = (1, table.shape[1])
  rows = [
    lax.dynamic_slice(table, (row, 0), size, allow_negative_indices=False)
    for row in ids.reshape(-1)
  ]
  return jnp.concatenate(rows).reshape(*ids.shape, table.shape[1])
