"""The CPU's own attention, held against a plain one in float64."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.cache import KVCache
from specjax.models import attend, cpu_attention, cpu_kernel
from tests.models import beside

DTYPES = ("float32", "bfloat16")
CHUNK = 256  # positions whose softmax is one


@pytest.fixture(scope="module", autouse=True)
def name():
  found = cpu_kernel.find()
  if found is None:
    pytest.skip("no kernel here: another backend, or no C++ compiler")
  return found


def filled(lengths, *, heads=2, size=16, capacity=768, dtype="float32", seed=0):
  """A cache of two layers, full of numbers beyond the lengths too."""
  cache = KVCache.zeros(
    layers=2,
    rows=len(lengths),
    heads=heads,
    capacity=capacity,
    head_dim=size,
    dtype=dtype,
  )
  draws = np.random.default_rng(seed)
  rows, count = len(lengths), cache.capacity
  for layer in range(2):
    k, v = (
      jnp.asarray(draws.normal(size=(rows, count, heads, size)), dtype)
      for _ in range(2)
    )
    cache = cache.write(layer, k, v)
  return cache.at(jnp.asarray(lengths, jnp.int32))


def queries(rows, width, heads, size, dtype="float32", seed=1):
  values = np.random.default_rng(seed).normal(size=(rows, width, heads, size))
  return jnp.asarray(values, dtype)


def at(cache, width):
  return cache.length[:, None] + jnp.arange(width, dtype=jnp.int32)


def biases(heads, count=129, seed=2):
  values = np.random.default_rng(seed).normal(size=(heads, count))
  return jnp.asarray(3 * values, jnp.float32)


def plain(
  q,
  cache,
  layer,
  positions,
  *,
  scale=None,
  softcap=None,
  window=0,
  bias=None,
):
  """Every number in float64."""
  wide = jnp.bfloat16 if cache.k.dtype == jnp.uint16 else cache.k.dtype
  k, v = (
    np.asarray(jax.lax.bitcast_convert_type(x[layer], wide), np.float64)
    for x in (cache.k, cache.v)
  )
  q, positions = np.asarray(q, np.float64), np.asarray(positions)
  group = q.shape[2] // k.shape[1]
  out = np.zeros(q.shape)
  for b, t, n in np.ndindex(q.shape[:3]):
    last = positions[b, t]
    seen = slice(max(last - window + 1, 0) if window else 0, last + 1)
    scores = k[b, n // group, seen] @ q[b, t, n]
    scores *= q.shape[-1] ** -0.5 if scale is None else scale
    if softcap:
      scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
      far = last - np.arange(seen.start, seen.stop)
      scores += np.asarray(bias)[n, np.minimum(far, bias.shape[1] - 1)]
    weights = np.exp(scores - scores.max())
    out[b, t, n] = weights @ v[b, n // group, seen] / weights.sum()
  return out


def run(q, cache, layer, positions, **how):
  """As the model calls it."""
  assert cpu_attention.find(q, cache) is not None
  call = lambda *args: attend.attend(*args, **how)
  return np.asarray(jax.jit(call)(q, cache, layer, positions), np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
  "group, size, width",
  [(1, 4, 1), (3, 64, 1), (3, 64, 5), (1, 20, 7), (2, 80, 33), (8, 128, 2)],
)
def test_equals_float64_for_every_shape(group, size, width, dtype):
  cache = filled((0, 130, 500), size=size, dtype=dtype)
  q = queries(3, width, 2 * group, size, dtype)
  found = run(q, cache, 1, at(cache, width))
  bound = 2e-6 if dtype == "float32" else 8e-3
  expected = plain(q, cache, 1, at(cache, width))
  np.testing.assert_allclose(found, expected, atol=bound)


@pytest.mark.parametrize("length", [0, 6, 7, 8, 254, 255, 256, 511, 512, 760])
@pytest.mark.parametrize("window", [None, 1, 3, 100, 300])
def test_chunks_and_windows_end_where_they_should(length, window):
  cache = filled((length,))
  q = queries(1, 3, 4, 16)
  found = run(q, cache, 0, at(cache, 3), window=window)
  expected = plain(q, cache, 0, at(cache, 3), window=window or 0)
  np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("how", [dict(scale=0.3), dict(softcap=2.0)])
def test_scale_and_softcap_are_followed(how):
  cache = filled((300,))
  q = queries(1, 2, 4, 16) * 3
  found = run(q, cache, 0, at(cache, 2), **how)
  expected = plain(q, cache, 0, at(cache, 2), **how)
  np.testing.assert_allclose(found, expected, atol=5e-6)
  assert np.abs(found - plain(q, cache, 0, at(cache, 2))).max() > 0.01


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", range(1, 9))
def test_biases_are_added_by_distance(width, dtype):
  group = 1 + width % 2
  # Empty; around the last of the distances; far beyond it, in a later chunk.
  cache = filled((0, 1, 127, 128, 129, 600), size=20, dtype=dtype)
  q, bias = queries(6, width, 2 * group, 20, dtype), biases(2 * group)
  how = dict(bias=bias, scale=1.0)
  found = run(q, cache, 1, at(cache, width), **how)
  bound = 5e-6 if dtype == "float32" else 1.2e-2
  expected = plain(q, cache, 1, at(cache, width), **how)
  np.testing.assert_allclose(found, expected, atol=bound)
  without = plain(q, cache, 1, at(cache, width), scale=1.0)
  assert np.abs(found - without).max() > 1


@pytest.mark.parametrize("count", [1, 5, 400])
@pytest.mark.parametrize("how", [{}, dict(window=9), dict(softcap=2.0)])
def test_biases_go_with_windows_softcaps_and_any_furthest_distance(how, count):
  cache = filled((0, 40, 500))
  how = dict(how, bias=biases(4, count))
  q = queries(3, 5, 4, 16)
  found = run(q, cache, 0, at(cache, 5), **how)
  expected = plain(q, cache, 0, at(cache, 5), **how)
  np.testing.assert_allclose(found, expected, atol=5e-6)


def test_garbage_in_unused_places_is_never_seen():
  cache = filled((60, 3), capacity=128)
  width, bias = 4, biases(4)
  used = np.arange(128) < np.asarray(cache.length)[:, None] + width
  spoilt = KVCache(
    k=jnp.where(used[:, None, :, None], cache.k, jnp.nan),
    v=jnp.where(used[:, None, :, None], cache.v, jnp.nan),
    length=cache.length,
  )
  q = queries(2, width, 4, 16)
  for width in (1, 4):
    good, bad = (
      run(q[:, :width], c, 1, at(c, width), bias=bias) for c in (cache, spoilt)
    )
    np.testing.assert_array_equal(good, bad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
  "how", [{}, dict(window=90), dict(bias=True), dict(bias=True, window=90)]
)
def test_rule_7_22_a_query_knows_nothing_of_others(how, dtype):
  lengths = (3, CHUNK - 4, 2 * CHUNK + 17)
  cache = filled(lengths, size=24, dtype=dtype)
  width = 9
  q, positions = queries(3, width, 6, 24, dtype), at(cache, width)
  if "bias" in how:
    how = dict(how, bias=biases(6))
  whole = run(q, cache, 1, positions, **how)
  for row in range(3):
    alone = KVCache(
      k=cache.k[:, row : row + 1],
      v=cache.v[:, row : row + 1],
      length=cache.length[row : row + 1],
    )
    for part in (slice(0, 1), slice(4, 6), slice(1, 9)):
      one = run(
        q[row : row + 1, part],
        alone,
        1,
        positions[row : row + 1, part],
        **how,
      )
      np.testing.assert_array_equal(one[0], whole[row, part])


def test_capacity_changes_nothing():
  small, large = (filled((200,), capacity=size) for size in (256, 768))
  same = lambda big, little: big.at[:, :, :, : little.shape[3]].set(little)
  large = KVCache(
    k=same(large.k, small.k), v=same(large.v, small.v), length=small.length
  )
  q = queries(1, 4, 4, 16)
  first, second = (run(q, c, 1, at(c, 4)) for c in (small, large))
  np.testing.assert_array_equal(first, second)


def test_what_is_not_a_number_reaches_who_sees_it_and_nobody_else():
  cache = filled((CHUNK + 40,))
  bad = CHUNK + 41
  cache = KVCache(
    k=cache.k.at[1, 0, 1, bad].set(jnp.nan), v=cache.v, length=cache.length
  )
  out = run(queries(1, 4, 4, 16), cache, 1, at(cache, 4))
  assert np.isfinite(out[0, 0]).all()  # It comes before,
  assert np.isfinite(out[0, :, :2]).all()  # these read the other head.
  assert np.isnan(out[0, 1:, 2:]).all()


def test_huge_scores_stay_numbers():
  cache = filled((400,))
  q = queries(1, 2, 4, 16) * 1e18
  out = run(q, cache, 0, at(cache, 2))
  assert np.isfinite(out).all()
  np.testing.assert_allclose(out, plain(q, cache, 0, at(cache, 2)), atol=1e-6)


def test_calls_from_several_threads_give_the_same_bits():
  cache = filled((700,), heads=4, size=64)
  q = queries(1, 16, 12, 64)
  call = jax.jit(lambda q, cache: attend.attend(q, cache, 1, at(cache, 16)))
  expected = np.asarray(call(q, cache))
  wrong = []

  def repeat():
    for _ in range(15):
      if not np.array_equal(np.asarray(call(q, cache)), expected):
        wrong.append(1)

  threads = [threading.Thread(target=repeat) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not wrong


@pytest.mark.parametrize("biased", [False, True])
def test_equals_what_runs_where_it_cannot_be_had(monkeypatch, biased):
  cache = filled((0, 5, 300))
  how = dict(window=40, bias=biases(4) if biased else None)
  q = queries(3, 3, 4, 16)
  ours = run(q, cache, 1, at(cache, 3), **how)
  monkeypatch.setenv("SPECJAX_KERNELS", "off")
  assert cpu_attention.find(q, cache) is None
  call = lambda q, cache: attend.attend(q, cache, 1, at(cache, 3), **how)
  np.testing.assert_allclose(ours, jax.jit(call)(q, cache), atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
  "how",
  [
    {},
    dict(window=3),
    dict(window=90),
    dict(softcap=2.0),
    dict(bias=True),
    dict(bias=True, window=300, softcap=2.0),
  ],
  ids=str,
)
def test_a_sibling_sees_what_lies_before_its_position_and_its_own_key(
  how, dtype
):
  """Across edges of chunks; and the chain before it is bit for bit its own."""
  lengths = (0, 5, CHUNK - 6, CHUNK - 3, 2 * CHUNK - 5, 2 * CHUNK + 130)
  cache = filled(lengths, dtype=dtype)
  if "bias" in how:
    how = dict(how, bias=biases(4))
  call = jax.jit(
    lambda q, cache, at, slots: attend.attend(
      q, cache, 1, at, slots=slots, **how
    )
  )
  q = queries(len(lengths), beside.WIDTH, 4, 16, dtype)
  assert cpu_attention.find(q, cache) is not None
  atol = 2e-6 if dtype == "float32" else 8e-3
  beside.check(call, q, cache, atol=atol)


def test_rule_7_a_sibling_knows_nothing_of_other_rows():
  """Nor of how far behind it the keys of others lie."""
  lengths = (3, CHUNK - 2, 2 * CHUNK + 17)
  cache = filled(lengths)
  q = queries(3, beside.WIDTH, 4, 16)
  at, slots = beside.at(lengths)
  call = jax.jit(
    lambda *args: attend.attend(*args[:2], 0, args[2], slots=args[3])
  )
  whole = np.asarray(call(q, cache, at, slots))
  for row in range(3):
    part = slice(row, row + 1)
    alone = KVCache(
      k=cache.k[:, part], v=cache.v[:, part], length=cache.length[part]
    )
    one = call(q[part], alone, at[part], slots[part])
    np.testing.assert_array_equal(one[0], whole[row])
