"""Attention over a cache as the CPU does it best: cpu/attention.h."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.cache import KVCache
from specjax.models import cpu_kernel
from specjax.types import Array

# What a cache stores of activations of each dtype that the kernel takes.
_STORED = {"float32": "float32", "bfloat16": "uint16"}


def find(q: Array, cache: KVCache) -> str | None:
  """The name that `attend` goes by; None where XLA's is to be used."""
  suits = q.size > 0 and _STORED.get(q.dtype.name) == cache.k.dtype.name
  return cpu_kernel.find() if suits else None


def attend(
  name: str,
  q: Array,
  cache: KVCache,
  layer,
  positions: Array,
  slots: Array,
  window,
  *,
  scale: float,
  softcap: float | None,
  bias: Array | None,
) -> Array:
  """As `models.attend.attend`, which says what the arguments are.

  A query's result depends on what it sees alone, bit for bit: not on T, nor on
  other rows.

  Args:
    name: what `find` returned.
    window: int32 scalar; 0 is all.
  """
  call = functools.partial(
    jax.ffi.ffi_call(
      f"{name}_attention_{q.dtype.name}",
      jax.ShapeDtypeStruct(q.shape, q.dtype),
      vmap_method="sequential",
    ),
    scale=np.float32(scale),
    softcap=np.float32(softcap or 0),
  )
  layer, window = jnp.int32(layer), jnp.int32(window)
  if bias is None:
    bias = jnp.zeros((q.shape[2], 0), jnp.float32)
  return call(q, cache.k, cache.v, layer, positions, slots, window, bias)
