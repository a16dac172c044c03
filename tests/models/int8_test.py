"""Weights as whole numbers of eight bits, with and without the CPU's kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import config as config_lib
from specjax.models import cpu_kernel, decoder, gated, lookup, product
from specjax.models.heads import eagle
from specjax.models.int8 import Int8, quantised
from tests.models.heads import tiny

DTYPES = ("float32", "bfloat16")


def draw(*shape, dtype="float32", seed=0):
  values = np.random.default_rng(seed).normal(size=shape)
  return jnp.asarray(values, dtype)


def exact(x, weight):
  """In float64, of the whole numbers themselves."""
  values = np.asarray(weight.values, np.float64)
  rows = values * np.asarray(weight.scale, np.float64)[:, None]
  return np.asarray(x, np.float64) @ rows.T


@pytest.fixture(params=["on", "off"])
def kernels(request, monkeypatch):
  monkeypatch.setenv("SPECJAX_KERNELS", request.param)
  jax.clear_caches()
  if request.param == "on" and cpu_kernel.find() is None:
    pytest.skip("no kernel here: another backend, or no C++ compiler")
  return request.param


@pytest.mark.parametrize("dtype", DTYPES)
def test_is_the_nearest_of_255_steps_of_each_row(dtype):
  weight = draw(7, 3, 5, dtype=dtype) * jnp.asarray(
    [1e-3, 1, 50, 1, 1, 0, 1], dtype
  ).reshape(-1, 1, 1)
  found = Int8.of(weight, fold=2)
  assert found.values.dtype == jnp.int8 and found.scale.shape == (7,)
  most = np.abs(np.asarray(weight, np.float64)).max((1, 2))
  np.testing.assert_allclose(
    found.scale, np.where(most, most / 127, 1), rtol=1e-6
  )
  wide = np.asarray(found.values, np.float64) * np.asarray(
    found.scale, np.float64
  ).reshape(-1, 1, 1)
  off = np.abs(wide - np.asarray(weight, np.float64)).max((1, 2))
  assert (off <= most / 254 * (1 + 1e-5)).all()
  assert np.abs(np.asarray(found.values)).max() == 127
  flat = found.reshape(7, 15)
  np.testing.assert_array_equal(flat.values, found.values.reshape(7, 15))
  assert found[...] is found and found.astype(dtype).dtype == weight.dtype
  with pytest.raises(IndexError, match="as a whole"):
    found[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out, width", [(1, 1), (33, 7), (577, 64), (50, 577)])
def test_products_are_those_of_the_whole_numbers(out, width, dtype, kernels):
  x = draw(40, width, dtype=dtype)
  weight = Int8.of(draw(out, width, dtype=dtype, seed=1))
  found = np.asarray(jax.jit(product.product)(x, weight))
  assert found.dtype == np.float32 and found.shape == (40, out)
  expected = exact(x, weight)
  # The kernel rounds x as well, to 65535 steps.
  close = 1e-4 * np.abs(expected).max()
  np.testing.assert_allclose(found, expected, atol=close)
  for rows in (1, 2, 5, 8, 9) if kernels == "on" else ():
    few = jax.jit(product.product)(x[:rows], weight)
    np.testing.assert_array_equal(few, found[:rows])


@pytest.mark.parametrize("width", [1000, 70000])
def test_the_largest_of_numbers_do_not_overflow(width, kernels):
  """Whole numbers would have 38 bits."""
  sign = np.where(np.arange(width) % 3, 1.0, -1.0)
  x = jnp.asarray(np.stack([sign, np.ones(width)]) * 1e30, jnp.float32)
  weight = Int8.of(jnp.asarray(np.stack([sign, -sign]), jnp.float32))
  found = jax.jit(product.product)(x, weight)
  np.testing.assert_allclose(found, exact(x, weight), rtol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so_and_in_its_row(bad, kernels):
  x = draw(3, 19).at[1, 18].set(bad)
  weight = Int8.of(draw(9, 19, seed=1))
  found = np.asarray(jax.jit(product.product)(x, weight))
  assert not np.isfinite(found[1]).any()
  assert np.isfinite(found[[0, 2]]).all()
  run = jax.jit(gated.gated, static_argnums=3)
  both = np.asarray(run(x, weight, weight, "silu"))
  assert not np.isfinite(both[1]).any() and np.isfinite(both[[0, 2]]).all()


def test_a_weight_that_is_not_finite_spoils_its_own_row(kernels):
  x, weight = draw(3, 19), draw(9, 19, seed=1).at[4, 2].set(np.nan)
  found = np.asarray(jax.jit(product.product)(x, Int8.of(weight)))
  assert np.isnan(found[:, 4]).all()
  assert np.isfinite(np.delete(found, 4, axis=1)).all()


def test_rows_of_zeros_give_zeros(kernels):
  x, weight = jnp.zeros((2, 33)), Int8.of(jnp.zeros((5, 33)))
  np.testing.assert_array_equal(jax.jit(product.product)(x, weight), 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "relu"])
def test_a_gated_mlp_is_as_of_the_rounded_weights(activation, dtype, kernels):
  x = draw(9, 33, dtype=dtype)
  gate, up = (Int8.of(draw(50, 33, dtype=dtype, seed=n) / 6) for n in (1, 2))
  run = jax.jit(gated.gated, static_argnums=3)
  found = np.asarray(run(x, gate, up, activation), np.float64)
  left, right = (jnp.asarray(exact(x, one), dtype) for one in (gate, up))
  expected = gated.ACTIVATIONS[activation](left) * right
  close = dict(float32=1e-4, bfloat16=0.02)[dtype]
  np.testing.assert_allclose(
    found, np.asarray(expected, np.float64), rtol=close, atol=close
  )
  for rows in (1, 3, 8) if kernels == "on" else ():
    few = run(x[:rows], gate, up, activation)
    np.testing.assert_array_equal(np.asarray(few, np.float64), found[:rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_lookup_gives_rounded_rows(dtype):
  table = Int8.of(draw(9, 5, dtype=dtype))
  ids = jnp.asarray([[0, 8], [3, 11]])
  found = lookup.lookup(table, ids)
  assert found.dtype == table.dtype
  np.testing.assert_array_equal(found, table.whole()[jnp.minimum(ids, 8)])


def rounded(model, params):
  done = quantised(model.paths, params)
  pairs = zip(model.paths, done, strict=True)
  return {path for path, value in pairs if isinstance(value, Int8)}, done


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_of_a_model_what_is_multiplied_with_is_rounded(tied, scan_layers):
  config = config_lib.from_hugging_face(
    dict(
      architectures=["Qwen3ForCausalLM"],
      vocab_size=31,
      hidden_size=16,
      intermediate_size=24,
      num_hidden_layers=2,
      num_attention_heads=2,
      num_key_value_heads=2,
      head_dim=8,
      max_position_embeddings=64,
      tie_word_embeddings=tied,
    )
  )
  model = decoder.build(config, scan_layers=scan_layers)
  params = model.init(0)
  names, done = rounded(model, params)
  others = set(model.paths) - names
  assert all(path.endswith("norm.weight") for path in others - {"embed.weight"})
  assert ("embed.weight" in names) == tied
  shapes = jax.eval_shape(lambda given: quantised(model.paths, given), params)
  assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), shapes) == (
    jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), done)
  )
  tokens = jnp.asarray([[1, 2, 3]])
  whole = [v.whole() if isinstance(v, Int8) else v for v in done]
  found, expected = (
    jax.jit(model)(given, tokens, model.init_cache(1, 8)).logits
    for given in (done, tuple(whole))
  )
  np.testing.assert_allclose(found, expected, atol=2e-3)


def test_of_eagle_fc_stays_for_its_two_halves_are_of_other_sizes():
  target, params = tiny.target()
  config = eagle.small(target.config, fuses=False, draft_vocab=tiny.KEPT)
  model = eagle.build(config, target)
  given = model.complete(model.head.init(0), params, tiny.kept_ids())
  names, _ = rounded(model, given)
  assert set(model.paths) - names == {"fc.weight", "kept", "mlp_norm.weight"}
