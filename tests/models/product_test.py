"""Products of any number of rows, in the ways that each backend likes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import product as product_lib


@pytest.mark.parametrize("kernels", ["on", "off"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 40])
def test_equals_the_product_in_float64(rows, dtype, kernels, monkeypatch):
  monkeypatch.setenv("SPECJAX_KERNELS", kernels)
  jax.clear_caches()
  rng = np.random.default_rng(rows)
  x = jnp.asarray(rng.normal(size=(rows, 33)), dtype)
  weight = jnp.asarray(rng.normal(size=(50, 33)), dtype)
  expected = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
  out = jax.jit(product_lib.product)(x, weight)
  assert out.dtype == jnp.float32
  np.testing.assert_allclose(out, expected, atol=2e-5)


@pytest.mark.parametrize("batch", [(1, 1), (1, 5), (3, 2), (2, 9)])
def test_keeps_batch_and_output_axes(batch):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(*batch, 8)), jnp.float32)
  weight = jnp.asarray(rng.normal(size=(3, 4, 8)), jnp.float32)
  out = jax.jit(product_lib.product)(x, weight)
  assert out.shape == (*batch, 3, 4)
  expected = np.einsum("btd,nhd->btnh", x, weight)
  np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 5, 9])
def test_without_a_kernel_xla_leaves_the_weights_unpacked_on_cpu(
  rows, monkeypatch
):
  """The weights are the left operand, and nothing of their size is made."""
  monkeypatch.setenv("SPECJAX_KERNELS", "off")
  x = jax.ShapeDtypeStruct((rows, 64), jnp.float32)
  weight = jax.ShapeDtypeStruct((512, 64), jnp.float32)
  lowered = jax.jit(product_lib.product).lower(x, weight)
  compiled = lowered.compile()
  if jax.default_backend() == "cpu":
    assert "tensor<512x64xf32>, tensor<64x" in lowered.as_text()
    assert compiled.memory_analysis().temp_size_in_bytes < 512 * 64 * 4


def test_other_backends_get_one_plain_product():
  x = jax.ShapeDtypeStruct((5, 64), jnp.float32)
  weight = jax.ShapeDtypeStruct((512, 64), jnp.float32)
  traced = jax.jit(product_lib.product).trace(x, weight)
  text = traced.lower(lowering_platforms=("tpu",)).as_text()
  assert text.count("dot_general") == 1
  assert "tensor<5x64xf32>, tensor<512x64xf32>" in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_few_rows_have_the_gradient_of_many(rows, dtype):
  rng = np.random.default_rng(0)
  weight = jnp.asarray(rng.normal(size=(50, 33)), dtype)
  x = jnp.asarray(rng.normal(size=(rows, 33)), dtype)

  def of(x, weight):
    return jnp.sum(jnp.sin(product_lib.product(x, weight)))

  few = jax.jit(jax.grad(of, argnums=(0, 1)))(x, weight)
  padded = jnp.concatenate([x, jnp.zeros((64, 33), dtype)])  # sin(0) is flat
  many = jax.jit(jax.grad(of, argnums=(0, 1)))(padded, weight)
  close = dict(rtol=2e-2, atol=2e-2 if dtype == "bfloat16" else 1e-4)
  np.testing.assert_allclose(
    np.asarray(few[0], np.float32),
    np.asarray(many[0][:rows], np.float32),
    **close,
  )
  np.testing.assert_allclose(
    np.asarray(few[1], np.float32), np.asarray(many[1], np.float32), **close
  )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 5])
def test_that_there_is_a_gradient_changes_no_program(rows, dtype, monkeypatch):
  x = jax.ShapeDtypeStruct((rows, 64), dtype)
  weight = jax.ShapeDtypeStruct((512, 64), dtype)

  def compiled():
    jax.clear_caches()
    text = jax.jit(product_lib.product).lower(x, weight).compile().as_text()
    # But for where it was written.
    tables = r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*"
    return re.sub(tables + r"|, metadata=\{[^}]*\}", "", text)

  with_gradient = compiled()
  assert "ROOT" in with_gradient
  monkeypatch.setattr(product_lib, "with_gradient_of", lambda _, own: own)
  assert compiled() == with_gradient


def test_slopes_of_bfloat16_are_those_of_float32_to_rounding(monkeypatch):
  monkeypatch.setenv("SPECJAX_KERNELS", "off")
  rng = np.random.default_rng(0)
  x, weight, turn = (
    rng.normal(size=shape).astype(np.float32)
    for shape in ((40, 16), (24, 16), (40, 16))
  )

  def loss(x, weight):
    return jnp.sum(jnp.sin(product_lib.product(x, weight)))

  def both(dtype):
    args = jnp.asarray(x, dtype), jnp.asarray(weight, dtype)
    slopes = jax.jit(jax.grad(loss, argnums=(0, 1)))(*args)
    # Forwards and back say the same, and frozen weights have no slope.
    _, along = jax.jvp(
      lambda x: loss(x, args[1]), args[:1], (jnp.asarray(turn, dtype),)
    )
    return (*slopes, along)

  for found, wanted in zip(both(jnp.bfloat16), both(jnp.float32), strict=True):
    off = np.abs(np.asarray(found, np.float32) - np.asarray(wanted))
    assert np.max(off) < 0.05 * np.max(np.abs(np.asarray(wanted)))
