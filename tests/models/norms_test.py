"""Norms: the definition, and the CPU's own kernel beside XLA's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from specjax.models import cpu_kernel, norms

DTYPES = ("float32", "bfloat16")
SIZES = (1, 7, 16, 40, 576)


def made(size, dtype, plus_one=False):
  """A norm with weights, and its pure function of weights and x."""
  norm = norms.RMSNorm((size,), ("embed",), 1e-5, dtype, plus_one=plus_one)
  graph, _ = nnx.split(norm)

  def run(weight, x):
    return nnx.merge(graph, nnx.State({"weight": nnx.Param(weight)}))(x)

  return run


def draws(size, dtype, rows, seed=0):
  draw = np.random.default_rng(seed)
  weight = jnp.asarray(draw.normal(1, 0.3, size), dtype)
  return weight, jnp.asarray(draw.normal(0, 3, (rows, size)), dtype)


def defined(weight, x, plus_one):
  weight, x = np.asarray(weight, np.float64), np.asarray(x, np.float64)
  normed = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-5)
  return normed * (weight + 1 if plus_one else weight)


@pytest.mark.parametrize("plus_one", (False, True))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_rows_are_divided_by_their_root_mean_square(size, dtype, plus_one):
  weight, x = draws(size, dtype, 5)
  out = jax.jit(made(size, dtype, plus_one))(weight, x)
  assert out.dtype == x.dtype
  close = 1e-5 if dtype == "float32" else 2e-2
  np.testing.assert_allclose(
    np.asarray(out, np.float64), defined(weight, x, plus_one), close, close
  )


@pytest.mark.parametrize("dtype", DTYPES)
def test_rule_22_a_row_is_the_same_at_every_width(dtype):
  if cpu_kernel.find() is None:
    pytest.skip("no kernel here: XLA sums in another order from eight rows on")
  size, rows = 576, 32
  weight, x = draws(size, dtype, rows)
  run = jax.jit(made(size, dtype))
  whole = np.asarray(run(weight, x))
  for width in (1, 2, 7, 8, 9, 16):
    part = np.asarray(run(weight, x[rows - width :]))
    np.testing.assert_array_equal(part, whole[rows - width :])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_in_its_row(dtype):
  weight, x = draws(40, dtype, 3)
  out = np.asarray(jax.jit(made(40, dtype))(weight, x.at[1, 5].set(jnp.nan)))
  assert np.isnan(out[1].astype(np.float32)).all()
  assert np.isfinite(out[[0, 2]].astype(np.float32)).all()


def test_it_has_slopes_and_runs_in_loops_and_maps():
  weight, x = draws(40, "float32", 4)
  run = made(40, "float32")

  def plain(weight, x):
    scale = lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5)
    return x * scale * weight

  def total(run):
    return jax.grad(lambda *args: jnp.sum(run(*args) ** 3), (0, 1))(weight, x)

  for ours, theirs in zip(total(run), total(plain), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
  again = lambda run: jax.grad(lambda x: jnp.sum(jax.grad(
    lambda x: jnp.sum(run(weight, x) ** 3))(x) ** 2))(x)  # fmt: skip
  np.testing.assert_allclose(again(run), again(plain), rtol=1e-3, atol=1e-2)
  each = jax.vmap(run, in_axes=(None, 0))(weight, x)
  looped = lax.map(lambda row: run(weight, row), x)
  np.testing.assert_array_equal(each, run(weight, x))
  np.testing.assert_array_equal(looped, run(weight, x))
