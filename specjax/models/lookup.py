"""Rows of a table by their ids, as each backend does it best."""

import jax.numpy as jnp
from jax import lax

from specjax.types import Array


def lookup(table: Array, ids: Array) -> Array:
  """table [V, D] at ids int32 [...]: [..., D]. Ids beyond it are its last.

  XLA's CPU backend reads bfloat16 as float32. Fused with the lookup that costs
  nothing, but out of a loop of drafts it takes the conversion of the whole
  table, before every step (SmolLM2, CPU: 60 ms). So it must not know that the
  table is the same in every round.
  """
  if table.dtype == jnp.bfloat16:
    table, ids = lax.optimization_barrier((table, ids))
  return jnp.take(table, ids, axis=0, mode="clip")
