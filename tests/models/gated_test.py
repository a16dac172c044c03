"""A gated MLP's two products and what is made of them, with and without the
CPU's own kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import cpu_kernel, gated

DTYPES = ("float32", "bfloat16")
ACTIVATIONS = ("silu", "gelu_tanh", "relu")
KERNEL = ("silu", "gelu_tanh")


def draw(*shape, dtype="float32", seed=0):
  values = np.random.default_rng(seed).normal(size=shape)
  return jnp.asarray(values, dtype)


def parts(rows, wide, out, dtype="float32"):
  x = draw(rows, wide, dtype=dtype)
  return x, *(draw(out, wide, dtype=dtype, seed=seed) for seed in (1, 2))


def in_float64(x, gate, up, activation):
  x, gate, up = (np.asarray(one, np.float64) for one in (x, gate, up))
  left, right = x @ gate.T, x @ up.T
  if activation == "silu":
    left = left / (1 + np.exp(-left))
  elif activation == "gelu_tanh":
    inner = np.sqrt(2 / np.pi) * (left + 0.044715 * left**3)
    left = 0.5 * left * (1 + np.tanh(inner))
  else:
    left = np.maximum(left, 0)
  return left * right


@pytest.fixture
def name():
  found = cpu_kernel.find()
  if found is None:
    pytest.skip("no kernel here: another backend, or no C++ compiler")
  return found


@pytest.mark.parametrize("kernels", ["on", "off"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_equals_float64(rows, activation, kernels, monkeypatch):
  monkeypatch.setenv("SPECJAX_KERNELS", kernels)
  jax.clear_caches()
  own = parts(rows, 33, 50)
  found = jax.jit(gated.gated, static_argnums=3)(*own, activation)
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, in_float64(*own, activation), atol=2e-4)


@pytest.mark.parametrize("activation", KERNEL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide, out", [(16, 1), (33, 24), (577, 49), (7, 1000)])
def test_rows_of_the_kernel_know_nothing_of_each_other(
  wide, out, dtype, activation, name
):
  x, gate, up = parts(cpu_kernel.MOST_ROWS, wide, out, dtype)
  every = np.asarray(cpu_kernel.gated(name, activation, x, gate, up))
  assert every.dtype == np.asarray(x).dtype
  for rows in (1, 2, 5, 6, 7, 13):
    some = cpu_kernel.gated(name, activation, x[-rows:], gate, up)
    np.testing.assert_array_equal(some, every[-rows:])


@pytest.mark.parametrize("rows", [1, 3, 7, 32])
def test_bfloat16_is_rounded_where_the_plain_one_is(rows, name):
  """After the products, after the activation and at the end."""
  x, gate, up = parts(rows, 64, 1000, "bfloat16")
  left, right = (
    out.astype(jnp.bfloat16) for out in cpu_kernel.products(name, x, gate, up)
  )
  found = cpu_kernel.gated(name, "silu", x, gate, up)
  plain = gated.ACTIVATIONS["silu"](left) * right
  ulps = np.asarray(found).view(np.int16) - np.asarray(plain).view(np.int16)
  # A logistic function of 1 ulp in float32 may fall to a tie's other side.
  assert np.abs(ulps).max() <= 1 and (ulps == 0).mean() > 0.999


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(bad, dtype, name):
  x, gate, up = parts(3, 19, 26, dtype)
  spoilt = cpu_kernel.gated(name, "silu", x.at[1, 4].set(bad), gate, up)
  spoilt = np.asarray(spoilt, np.float32)
  assert np.isfinite(spoilt[[0, 2]]).all()
  # A gate of -inf is shut: silu is -inf * 0.
  assert not np.isfinite(spoilt[1]).any()


def test_has_the_slopes_of_what_it_stands_for():
  own = parts(3, 20, 10)
  plain = lambda x, gate, up: jnp.sum(
    (jax.nn.silu(x @ gate.T) * (x @ up.T)) ** 2
  )
  total = lambda *own: jnp.sum(gated.gated(*own, "silu") ** 2)
  found = jax.jit(jax.grad(total, (0, 1, 2)))(*own)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4),
    found,
    jax.grad(plain, (0, 1, 2))(*own),
  )


def test_keeps_batch_axes_and_another_backend_gets_two_products():
  x, gate, up = parts(6, 8, 5)
  found = gated.gated(x.reshape(2, 3, 8), gate, up, "silu")
  assert found.shape == (2, 3, 5)
  traced = jax.jit(gated.gated, static_argnums=3).trace(x, gate, up, "silu")
  text = traced.lower(lowering_platforms=("tpu",)).as_text()
  assert text.count("dot_general") == 2 and "custom_call" not in text
