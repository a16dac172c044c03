"""Rows of a table by their ids, as each backend does it best."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from specjax.models import cpu_kernel
from specjax.models.int8 import Int8
from specjax.types import Array


def lookup(table: Array | Int8, ids: Array) -> Array:
  """table [V, D] at ids int32 [...]: [..., D]. Ids beyond it are its last.

  XLA's CPU backend reads bfloat16 as float32, and takes a lookup for the
  conversion of the whole table: it wakes a thread for that (88 microseconds
  instead of 2), or does take it out of a loop of drafts, before every step
  (SmolLM2: 60 ms). Where the CPU's own kernel cannot be had, it must not know
  that the table is the same in every round.
  """
  if isinstance(table, Int8):
    scale = _take(table.scale, ids)[..., None]
    values = _take(table.values, ids).astype(jnp.float32)
    return (values * scale).astype(table.dtype)
  if table.dtype != jnp.bfloat16:
    return _take(table, ids)
  kernel = cpu_kernel.find() if table.size else None
  if kernel is None:
    return _take(*lax.optimization_barrier((table, ids)))
  return _special(kernel, table, ids.astype(jnp.int32))


def _take(table, ids):
  return jnp.take(table, ids, axis=0, mode="clip")


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _special(kernel, table, ids):
  special = functools.partial(cpu_kernel.lookup, kernel)
  return lax.platform_dependent(table, ids, cpu=special, default=_take)


@_special.defjvp
def _differentiate(kernel, primals, tangents):
  return _special(kernel, *primals), _take(tangents[0], primals[1])
