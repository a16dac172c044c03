"""Products of activations with weights, as each backend does them best."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from specjax.models import cpu_kernel
from specjax.models.int8 import Int8
from specjax.types import Array

_FEW = 16  # rows, below which a float32 product on CPU goes by columns


def precision_of(dtype) -> lax.Precision:
  """HIGHEST for float32: a TPU multiplies it in bfloat16 unless asked."""
  full = jnp.dtype(dtype) == jnp.float32
  return lax.Precision.HIGHEST if full else lax.Precision.DEFAULT


def product(x: Array, weight: Array | Int8) -> Array:
  """x [..., in] times weight [out..., in] -> float32 [..., out...].

  Weights lie (out, in), contracted on their last axis: on CPU 13-37% faster
  than (in, out) in float32 and the only fast order in bfloat16. There a few
  rows go by `cpu_kernel`; what follows it is for where that cannot be had.
  """
  return products(x, weight)[0]


def products(x: Array, *weights: Array | Int8) -> tuple[Array, ...]:
  """The product of one x with each of several weights; see `product`.

  All of them are arrays, or all `Int8`.
  """
  rows = x.reshape(-1, x.shape[-1])
  # As matrices: XLA's CPU backend transposes a weight of more dimensions, all
  # of it, on every call.
  matrices = [weight.reshape(-1, weight.shape[-1]) for weight in weights]
  multiply = _by_int8 if isinstance(weights[0], Int8) else _by_arrays
  return tuple(
    out.reshape(*x.shape[:-1], *weight.shape[:-1])
    for out, weight in zip(multiply(rows, matrices), weights, strict=True)
  )


def _by_int8(rows, matrices):
  """Products [T, out] float32 of rows [T, in] with `Int8`s [out, in].

  Scales come last: whole numbers of eight bits fit into bfloat16. The CPU's
  kernel rounds x to whole numbers of sixteen, each row by its own size.
  """

  def plain(rows, *matrices):
    return tuple(
      lax.dot_general(
        rows,
        matrix.values.astype(rows.dtype),
        (((1,), (1,)), ((), ())),
        precision=precision_of(rows.dtype),
        preferred_element_type=jnp.float32,
      )
      * matrix.scale
      for matrix in matrices
    )

  kernel = kernel_for(rows, matrices)
  if kernel is None:
    return plain(rows, *matrices)
  own = functools.partial(cpu_kernel.int8_products, kernel)
  return lax.platform_dependent(rows, *matrices, cpu=own, default=plain)


def _by_arrays(rows, matrices):
  """Products [T, out] float32 of rows [T, in] with matrices [out, in]."""

  def multiply(left, right, contract=1):
    return lax.dot_general(
      left,
      right,
      (((1,), (contract,)), ((), ())),
      precision=precision_of(rows.dtype),
      preferred_element_type=jnp.float32,
    )

  def each(multiply):
    return lambda rows, *matrices: tuple(multiply(rows, m) for m in matrices)

  def twice(rows, matrix):
    return multiply(jnp.concatenate([rows, rows]), matrix)[:1]

  count = rows.shape[0]
  narrow = rows.dtype == jnp.bfloat16
  whole = _with_narrow_slopes(multiply) if narrow else multiply
  kernel = kernel_for(rows, matrices)
  if kernel is not None:
    own = functools.partial(cpu_kernel.products, kernel)
    special = with_gradient_of(each(whole), own)
  elif count == 1 and rows.dtype == jnp.bfloat16:
    # XLA's CPU matrix-vector product in bfloat16 takes 10 times as long as a
    # product of two rows.
    special = each(twice)
  elif 1 < count < _FEW and rows.dtype == jnp.float32:
    special = each(functools.partial(_by_columns, multiply))
  else:
    special = each(whole)
  return lax.platform_dependent(
    rows, *matrices, cpu=special, default=each(whole)
  )


def _with_narrow_slopes(multiply):
  """`multiply` of bfloat16, whose slopes on the way back are bfloat16, too.

  Mixed precision's usual way (Micikevicius et al. 2018). Left to itself the
  slope of a float32 result meets the weights in float32, at half the speed.
  That of the weights, a sum over all rows, stays in float32.
  """
  run = jax.custom_jvp(lambda rows, matrix: multiply(rows, matrix))

  def forth(matrix, turn):
    return multiply(turn, matrix)

  def back(matrix, slope):
    return multiply(slope.astype(matrix.dtype), matrix, 0).astype(matrix.dtype)

  def jvp(primals, tangents):
    (rows, matrix), out = primals, run(*primals)
    zero, slope = jax.custom_derivatives.SymbolicZero, jnp.zeros_like(out)
    if not isinstance(tangents[0], zero):
      slope += jax.custom_derivatives.linear_call(
        forth, back, matrix, tangents[0]
      )
    if not isinstance(tangents[1], zero):
      slope += multiply(rows, tangents[1])
    return out, slope

  run.defjvp(jvp, symbolic_zeros=True)
  return run


def with_gradient_of(plain: Callable, special: Callable) -> Callable:
  """`special`, which has no gradient, with that of `plain`: the same product.

  Training mostly reads more rows at once than the kernel takes.
  """
  run = jax.custom_jvp(special)

  def jvp(primals, tangents):
    _, out = jax.jvp(plain, primals, tangents)
    return run(*primals), out  # By way of this again, for slopes of slopes.

  run.defjvp(jvp)
  return run


def kernel_for(rows, matrices) -> str | None:
  """The name of the CPU's own product, where it is the best there is."""
  suits = 0 < rows.shape[0] <= cpu_kernel.MOST_ROWS and all(
    matrix.size > 0
    and (rows.dtype == matrix.dtype or isinstance(matrix, Int8))
    and rows.dtype in (jnp.float32, jnp.bfloat16)
    for matrix in matrices
  )
  return cpu_kernel.find() if suits else None


def _by_columns(multiply, rows, matrix):
  """The product of a few rows, as the transpose of matrix times columns.

  XLA's CPU library packs the right operand on every call: 500 MB of weights
  for the sake of five rows. On the left they are read as they lie, and the few
  columns are packed instead (SmolLM2, CPU time of a pass: 2 to 6 rows
  take 1.6 to 1.8 times as long as one, against 2.4 to 2.8). The kernel
  takes 4, 8 or 16 columns; without any padding XLA would undo the transpose.
  """
  count = rows.shape[0]
  width = next(width for width in (4, 8, 16) if width > count)
  padded = jnp.pad(rows, ((0, width - count), (0, 0)))
  columns = lax.optimization_barrier(padded.T)
  return multiply(matrix, columns, 0)[:, :count].T
