"""The CPU's own product, in every place that a program may call it from."""

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from specjax.models import cpu_kernel, product

DTYPES = ("float32", "bfloat16")
ROOT = pathlib.Path(__file__).parent.parent.parent
FIND = "from specjax.models import cpu_kernel; print(cpu_kernel.find())"


@pytest.fixture(scope="module")
def name():
  found = cpu_kernel.find()
  if found is None:
    pytest.skip("no kernel here: another backend, or no C++ compiler")
  return found


def draw(*shape, dtype="float32", seed=0):
  values = np.random.default_rng(seed).normal(size=shape)
  return jnp.asarray(values, dtype)


def exact(x, weight):
  return np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T


def one(name, x, weight):
  return cpu_kernel.products(name, x, weight)[0]


def find_elsewhere(**environment):
  """What a fresh process finds."""
  command = [sys.executable, "-c", FIND]
  environment = os.environ | {"JAX_PLATFORMS": "cpu"} | environment
  return subprocess.Popen(
    command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
  )


def answer(process):
  out, _ = process.communicate(timeout=120)
  assert process.returncode == 0
  return out.strip()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
  "out, width",
  [(1, 1), (7, 16), (33, 7), (8, 33), (577, 1), (1, 577), (50, 577)],
)
def test_equals_float64_and_rows_know_nothing_of_each_other(
  out, width, dtype, name
):
  x = draw(cpu_kernel.MOST_ROWS, width, dtype=dtype)
  weight = draw(out, width, dtype=dtype, seed=1)
  counts = (*range(1, 9), 11, 16, cpu_kernel.MOST_ROWS)

  @jax.jit
  def run(x, weight):
    return [one(name, x[-rows:], weight) for rows in counts]

  found = [np.asarray(out) for out in run(x, weight)]
  assert found[-1].dtype == np.float32
  np.testing.assert_allclose(
    found[-1], exact(x, weight), atol=1e-6 * width + 1e-5
  )
  for out in found:
    np.testing.assert_array_equal(out, found[-1][-len(out) :])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 9])
@pytest.mark.parametrize("sizes", [(3, 1, 7), (1000, 24), (24, 1, 1000)])
def test_several_weights_in_one_call_are_as_one_by_one(
  sizes, rows, dtype, name
):
  x = draw(rows, 577, dtype=dtype)
  weights = [draw(size, 577, dtype=dtype, seed=size) for size in sizes]
  found = cpu_kernel.products(name, x, *weights)
  for out, weight in zip(found, weights, strict=True):
    np.testing.assert_array_equal(out, one(name, x, weight))
  found = product.products(x[None], *weights)
  for out, weight in zip(found, weights, strict=True):
    np.testing.assert_array_equal(out[0], one(name, x, weight))


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_threads_give_the_same_bits_every_time(dtype, name):
  x, weight = draw(5, 576, dtype=dtype), draw(4099, 576, dtype=dtype, seed=1)
  first = np.asarray(one(name, x, weight))
  np.testing.assert_allclose(first, exact(x, weight), atol=1e-3)
  for _ in range(20):
    again = np.asarray(one(name, x, weight))
    np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 18])
def test_what_is_not_finite_stays_so_and_where_it_is(place, bad, dtype, name):
  x, weight = draw(3, 19, dtype=dtype), draw(9, 19, dtype=dtype, seed=1)
  spoilt = np.asarray(one(name, x.at[1, place].set(bad), weight))
  assert not np.isfinite(spoilt[1]).any()
  assert np.isfinite(spoilt[[0, 2]]).all()
  spoilt = np.asarray(one(name, x, weight.at[4, place].set(bad)))
  assert not np.isfinite(spoilt[:, 4]).any()
  assert np.isfinite(np.delete(spoilt, 4, axis=1)).all()


def test_stays_itself_in_loops_in_vmap_and_with_donation(name):
  weight, x = draw(64, 64) / 8, draw(3, 64)
  step = lambda x: jnp.tanh(product.product(x, weight))
  expected = x
  for _ in range(4):
    expected = step(expected)
  scanned, _ = lax.scan(lambda x, _: (step(x), None), x, length=4)
  np.testing.assert_array_equal(scanned, expected)
  turn = lambda carry: (carry[0] - 1, step(carry[1]))
  looped = jax.jit(
    lambda x: lax.while_loop(lambda c: c[0] > 0, turn, (4, x))[1],
    donate_argnums=0,
  )
  np.testing.assert_array_equal(looped(jnp.array(x)), expected)
  mapped = jax.jit(jax.vmap(step))(x[:, None])[:, 0]
  np.testing.assert_array_equal(mapped, step(x))


def test_has_the_slopes_of_a_product(name):
  x, weight = draw(3, 20), draw(5, 20, seed=1)
  total = lambda x, weight: jnp.sum(product.product(x, weight) ** 2)
  plain = lambda x, weight: jnp.sum((x @ weight.T) ** 2)
  for which in (0, 1, (0, 1)):
    found = jax.jit(jax.grad(total, which))(x, weight)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
      found,
      jax.grad(plain, which)(x, weight),
    )


def test_several_have_the_slopes_of_each(name):
  x, weights = draw(3, 20), (draw(5, 20, seed=1), draw(7, 20, seed=2))

  def total(multiply):
    return lambda x, weights: sum(
      jnp.sum(out**2) for out in multiply(x, weights)
    )

  ours = total(lambda x, weights: product.products(x, *weights))
  plain = total(lambda x, weights: [x @ weight.T for weight in weights])
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
    jax.jit(jax.grad(ours, (0, 1)))(x, weights),
    jax.grad(plain, (0, 1))(x, weights),
  )


def test_is_called_on_cpu_for_a_few_rows_and_nowhere_else(name):
  weight = jax.ShapeDtypeStruct((64, 32), jnp.float32)
  most = cpu_kernel.MOST_ROWS
  for rows, platform, there in (
    (most, "cpu", True),
    (most + 1, "cpu", False),
    (most, "tpu", False),
  ):
    x = jax.ShapeDtypeStruct((rows, 32), jnp.float32)
    traced = jax.jit(product.product).trace(x, weight)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert (name in text) == there


def test_the_switch_turns_it_off(monkeypatch):
  monkeypatch.setenv("SPECJAX_KERNELS", "off")
  assert cpu_kernel.find() is None
  monkeypatch.setenv("SPECJAX_KERNELS", "maybe")
  with pytest.raises(ValueError, match="SPECJAX_KERNELS='maybe'.* on or off"):
    cpu_kernel.find()


def test_not_with_several_devices(name, monkeypatch):
  monkeypatch.setattr(jax, "device_count", lambda: 2)
  assert cpu_kernel.find() is None


@pytest.mark.parametrize(
  "environment",
  [
    {"PATH": ""},  # No compiler,
    {"CXX": "/bin/false"},  # one that fails,
    {"SPECJAX_CACHE": "/proc/nowhere"},  # no folder.
  ],
)
def test_without_a_kernel_products_are_xlas(environment, monkeypatch):
  monkeypatch.delenv("CXX", raising=False)
  for key, value in environment.items():
    monkeypatch.setenv(key, value)
  monkeypatch.setattr(
    cpu_kernel, "_registered", cpu_kernel._registered.__wrapped__
  )
  assert cpu_kernel.find() is None
  x, weight = draw(3, 20), draw(5, 20, seed=1)
  out = jax.jit(lambda x, weight: product.product(x, weight))(x, weight)
  np.testing.assert_allclose(out, exact(x, weight), atol=1e-5)


@pytest.mark.long
def test_two_at_once_build_it_and_one_mends_it(name, tmp_path, monkeypatch):
  both = [find_elsewhere(SPECJAX_CACHE=str(tmp_path)) for _ in range(2)]
  assert [answer(process) for process in both] == [name, name]
  (path,) = (tmp_path / "kernels").iterdir()
  code = path.read_bytes()
  monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
  for broken in (b"", code[:-1], code[: len(code) // 2]):
    path.write_bytes(broken)
    assert not cpu_kernel._whole(path)
  assert cpu_kernel._load() and cpu_kernel._whole(path)
  inode = path.stat().st_ino
  assert cpu_kernel._load() and path.stat().st_ino == inode


def test_a_folder_that_others_write_to_is_not_trusted(tmp_path, monkeypatch):
  monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
  folder = tmp_path / "kernels"
  folder.mkdir()
  folder.chmod(0o777)
  with pytest.raises(PermissionError, match="others may write"):
    cpu_kernel._folder()


@pytest.mark.parametrize("size", (1, 7, 16, 17, 33, 1000, 4099))
def test_the_largest_of_a_row_is_found_where_it_first_is(size, name):
  rng = np.random.default_rng(size)
  x = rng.integers(-3, 4, (6, size)).astype(np.float32)  # full of equals
  x[1], x[2] = -np.inf, 0.0
  x[2, size // 2 :] = -0.0  # equal to 0
  x[3, -1], x[4, size // 2] = np.inf, 9
  find = jax.jit(functools.partial(cpu_kernel.largest, name))
  places, tops = find(x)
  np.testing.assert_array_equal(places, np.argmax(x, axis=-1))
  np.testing.assert_array_equal(tops, np.max(x, axis=-1))
  beside, _ = jax.vmap(jax.vmap(find))(x.reshape(2, 3, size))
  np.testing.assert_array_equal(beside.ravel(), places)


@pytest.mark.parametrize("size", (1, 16, 50))
@pytest.mark.parametrize("bad", (np.nan, -np.nan))
def test_the_largest_loses_no_nan_wherever_it_is(bad, size, name):
  x = np.full((size + 1, size), np.inf, np.float32)
  x[np.arange(size), np.arange(size)] = bad
  places, tops = map(np.asarray, cpu_kernel.largest(name, jnp.asarray(x)))
  assert np.isnan(tops[:size]).all() and tops[size] == np.inf
  assert (places >= 0).all() and (places < size).all()
