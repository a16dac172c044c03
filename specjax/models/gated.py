"""Activations, and what a gated MLP makes of its two products."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from specjax.models import cpu_kernel
from specjax.models.int8 import Int8
from specjax.models.product import kernel_for, products, with_gradient_of
from specjax.types import Array


def _rounded_once(activate: Callable[[Array], Array]):
  """In float32 inside and rounded at the end, as PyTorch does."""
  return lambda x: activate(x.astype(jnp.float32)).astype(x.dtype)


ACTIVATIONS = {
  "silu": _rounded_once(jax.nn.silu),
  "relu": jax.nn.relu,
  "gelu_tanh": _rounded_once(jax.nn.gelu),
}


def gated(
  x: Array, gate: Array | Int8, up: Array | Int8, activation: str
) -> Array:
  """act(x gate^T) * (x up^T) in x's dtype, [..., F] (Shazeer 2020).

  On CPU a few rows go by a kernel of their own, cpu/gated.h.

  Args:
    x: [..., D].
    gate, up: [F, D].
    activation: one of ACTIVATIONS.
  """

  def plain(rows, *weights):
    left, right = (out.astype(x.dtype) for out in products(rows, *weights))
    return ACTIVATIONS[activation](left) * right

  rows = x.reshape(-1, x.shape[-1])
  kernel = kernel_for(rows, (gate, up))
  if kernel is None or activation not in cpu_kernel.ACTIVATIONS:
    out = plain(rows, gate, up)
  else:
    own = functools.partial(cpu_kernel.gated, kernel, activation)
    special = own
    if not isinstance(gate, Int8):
      special = with_gradient_of(plain, own)
    out = lax.platform_dependent(rows, gate, up, cpu=special, default=plain)
  return out.reshape(*x.shape[:-1], -1)
