"""Filters against a sort in numpy. Noise has its own tests: noise_test.py.

RULES are the project's list of what a correct speculative decoder satisfies; a
test that shows one names its number.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specjax import sampling
from tests import exact

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
probs = jax.jit(sampling.probs)
top_k = jax.jit(sampling._top_k)


def rows(*settings):
  """RowSettings of dicts; what one does not name is off."""
  full = [{**OFF, **each} for each in settings]

  def column(name, dtype):
    return jnp.asarray([row[name] for row in full], dtype)

  return sampling.RowSettings(
    temperature=column("temperature", jnp.float32),
    top_k=column("top_k", jnp.int32),
    top_p=column("top_p", jnp.float32),
    min_p=column("min_p", jnp.float32),
    seed=jnp.zeros((len(full), 2), jnp.uint32),
  )


def law(logits, **settings):
  """The law [V] of one position of one row."""
  logits = jnp.asarray(logits, jnp.float32)[None, None]
  return np.asarray(probs(logits, rows(settings))[0, 0])


def kept(logits, **settings):
  """Ids that keep a probability."""
  return np.flatnonzero(law(logits, **settings)).tolist()


# Filters. Logits lie on a grid, so that ties are common and the float32 and
# float64 sums decide alike, but for the few cases that are passed over.

VOCAB = 8
grid = st.integers(-24, 24).map(lambda n: n / 4)
vectors = st.lists(grid, min_size=VOCAB, max_size=VOCAB)
each = st.fixed_dictionaries(
  {
    "temperature": st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.0]),
    "top_k": st.integers(0, VOCAB + 2),
    "top_p": st.sampled_from([0.05, 0.3, 0.7, 0.9, 0.99, 1.0]),
    "min_p": st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
  }
)


def close_call(logits, settings):
  """Whether rounding may decide: the reference turns on a 1e-5."""
  nudged = [
    exact.filtered(logits, **{**settings, name: value * factor})
    for name, factor in itertools.product(
      ("top_p", "min_p"), (1 - 1e-5, 1.00001)
    )
    if (value := settings[name]) not in (OFF[name], 1.0)
  ]
  support = exact.filtered(logits, **settings) > 0
  return any(np.any((law > 0) != support) for law in nudged)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(vectors, each), min_size=3, max_size=3))
def test_filters_equal_a_sort(batch):
  """RULES 7, 8: every row by its own settings, whatever the others' are."""
  for logits, own in batch:
    assume(not close_call(logits, own))
  logits = jnp.asarray([logits for logits, _ in batch], jnp.float32)
  got = np.asarray(probs(logits[:, None], rows(*(own for _, own in batch))))
  for (logits, own), row in zip(batch, got[:, 0], strict=True):
    want = exact.filtered(logits, **own)
    np.testing.assert_array_equal(row > 0, want > 0)
    np.testing.assert_allclose(row, want, atol=2e-6)
    assert abs(row.sum() - 1) < 1e-6


def test_ties_at_a_threshold_are_kept():
  logits = np.log([0.1, 0.3, 0.2, 0.2, 0.2])
  logits[[2, 3, 4]] = logits[2]
  assert kept(logits, top_k=2) == [1, 2, 3, 4]
  assert kept(logits, top_p=0.4) == [1, 2, 3, 4]
  assert kept(logits, min_p=0.66) == [1, 2, 3, 4]
  assert kept([1, 1, 1, 1], top_k=1) == [0, 1, 2, 3]


def test_top_k_comes_before_top_p():
  # Of the two left by top-k, one holds 4/7; of all four, it holds 0.4.
  logits = np.log([0.4, 0.3, 0.2, 0.1])
  assert kept(logits, top_p=0.5) == [0, 1]
  assert kept(logits, top_k=2, top_p=0.5) == [0]


def test_top_p_comes_before_min_p():
  # Without the last token, the first two would hold more than 0.82.
  logits = np.log([0.5, 0.3, 0.15, 0.05])
  assert kept(logits, min_p=0.2) == [0, 1, 2]
  assert kept(logits, top_p=0.82, min_p=0.2) == [0, 1, 2]


def test_temperature_comes_before_all():
  """RULES 8: at T = 3 a mass of 0.7 takes more tokens than at T = 1."""
  logits = [3.0, 2.0, 1.0, 0.0]
  assert kept(logits, top_p=0.7) == [0, 1]
  assert kept(logits, temperature=3, top_p=0.7) == [0, 1, 2]
  assert kept(logits, min_p=0.3) == [0, 1]
  assert kept(logits, temperature=3, min_p=0.3) == [0, 1, 2, 3]


def test_top_p_reached_exactly_is_enough():
  # Powers of two: the sums are exact.
  logits = np.log2([0.5, 0.25, 0.125, 0.125]) * np.log(2)
  assert kept(logits, top_p=0.75) == [0, 1]
  assert kept(logits, top_p=np.nextafter(np.float32(0.75), 1)) == [0, 1, 2, 3]
  assert kept(logits, top_p=1e-6) == [0]


def test_greedy_is_the_lowest_best():
  assert law([1, 5, 5, 2], temperature=0).tolist() == [0, 1, 0, 0]
  filters = {"top_k": 2, "top_p": 0.9, "min_p": 0.1}
  assert law([1, 5, 5, 2], temperature=0, **filters).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-6])
def test_a_tiny_temperature_is_nearly_greedy(temperature):
  got = law([-3e38, 1, 3, 2.999, -np.inf], temperature=temperature)
  assert got.tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("temperature", [1e8, 1e30, 3e38, np.inf])
def test_a_huge_temperature_is_nearly_uniform(temperature):
  """RULES 5, 28: no NaN where a logit is -inf, and top-k still counts."""
  logits = [1, 5, 3, -np.inf]
  np.testing.assert_allclose(
    law(logits, temperature=temperature), [1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-6
  )
  assert kept(logits, temperature=temperature, top_k=2) == [1, 2]


def test_impossible_logits_stay_impossible():
  """RULES 4: also where a filter asks for more tokens than there are."""
  logits = [-np.inf, 2, -np.inf, 1, -np.inf]
  for own in (
    {},
    {"top_k": 4},
    {"top_p": 0.9999999},
    {"min_p": 1e-30},
    {"temperature": 100.0},
    {"top_k": 100, "top_p": 0.99, "min_p": 1e-9, "temperature": 3.0},
  ):
    assert kept(logits, **own) == [1, 3]
    assert not np.isnan(law(logits, **own)).any()
  assert law([-np.inf, 0, -np.inf]).tolist() == [0, 1, 0]


def test_unusable_logits_are_told():
  """RULES 5."""
  logits = jnp.asarray(
    [
      [0, 1, 2],
      [0, -np.inf, 2],
      [0, np.nan, 2],
      [0, np.inf, 2],
      [-np.inf, -np.inf, -np.inf],
      [np.nan, np.nan, np.nan],
    ],
    jnp.float32,
  )
  good = sampling.usable(logits[None])[0].tolist()
  assert good == [True, True, False, False, False, False]


@pytest.mark.parametrize("size", [1000, 4096, 49152])
def test_one_bad_logit_among_many_is_told(size):
  """RULES 5, at the size of a real vocabulary: XLA's max may lose a NaN."""
  draws = np.random.default_rng(size)
  places = (0, 1, size // 2, size - 1, *draws.integers(0, size, 5))
  logits = draws.normal(size=(len(places) + 1, 2, size)).astype(np.float32)
  for row, place in enumerate(places):
    logits[row, 1, place] = np.nan
  good = np.asarray(jax.jit(sampling.usable)(logits))
  assert good[:, 0].all() and good[-1].all()
  assert not good[:-1, 1].any()


@pytest.mark.parametrize("size", [1, 511, 1023, 1024, 1535, 50257])
def test_argmax_is_the_lowest_index_of_the_largest(size):
  draws = np.random.default_rng(size)
  many = draws.integers(0, 50, (2, 3, size)).astype(np.float32)  # full of ties
  for x in (many, -many, np.full_like(many, -np.inf)):
    np.testing.assert_array_equal(
      jax.jit(sampling.argmax)(x), np.argmax(x, axis=-1)
    )
  many[0, 1, size // 2] = np.nan
  found = np.asarray(jax.jit(sampling.argmax)(many))
  assert (found >= 0).all() and (found < size).all()


def test_rows_beside_a_filtered_one_keep_every_bit():
  """RULES 7: filtered or not, greedy or not, is a row's own affair."""
  draws = np.random.default_rng(0)
  logits = jnp.asarray(draws.normal(0, 3, (2, 3, 1000)), jnp.float32)
  every = (
    {},
    {"temperature": 0},
    {"temperature": 0.7},
    {"top_k": 20},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"temperature": 1.3, "top_k": 50, "top_p": 0.8, "min_p": 0.01},
  )
  for own in every:
    laws = [probs(logits, rows(own, beside))[0] for beside in every]
    for other in laws[1:]:
      np.testing.assert_array_equal(laws[0], other)


@settings(deadline=None, max_examples=200)
@given(
  st.lists(
    st.floats(width=32, allow_nan=False, allow_subnormal=False),
    min_size=VOCAB,
    max_size=VOCAB,
  ),
  st.integers(0, VOCAB - 1),
  st.integers(1, VOCAB),
)
def test_thresholds_are_exact(values, near, k):
  """The bisection tells neighbours of floats apart, over all of float32."""
  values = np.asarray(values, np.float32)
  top = np.finfo(np.float32).max
  values = np.clip(values, -top, top)
  values[0] = np.nextafter(values[near], top)
  values[np.abs(values) < np.finfo(np.float32).tiny] = 0
  got = np.asarray(top_k(jnp.asarray(values), jnp.int32(k)))
  np.testing.assert_array_equal(got, values >= np.sort(values)[-k])


@pytest.mark.parametrize("mass", [1e-30, 1e-38, 1e-45])
def test_the_smallest_top_p_keeps_the_best(mass):
  """RULES 4, 5: float32 flushes such a mass to 0, which nothing reaches."""
  logits = jnp.asarray([[[0.0, 3.0, 1.0]]])
  settings = dataclasses.replace(
    sampling.RowSettings.greedy(1),
    temperature=jnp.ones((1,)),
    top_p=jnp.asarray([mass], jnp.float32),
  )
  law = sampling.probs(logits, settings)
  np.testing.assert_array_equal(law[0, 0], [0, 1, 0])


@pytest.mark.parametrize("size", (9, 1500))
def test_the_largest_of_nothing_is_nothing_and_has_no_slope(size):
  assert sampling.argmax(jnp.zeros((3, 0, size))).shape == (3, 0)
  assert sampling.usable(jnp.zeros((0, 2, size))).shape == (0, 2)

  def value(x):
    place = sampling.argmax(x)
    return jnp.where(sampling.usable(x), x[place], 0.0)

  slope = jax.grad(value)(jnp.arange(size, dtype=jnp.float32))
  np.testing.assert_array_equal(slope, np.arange(size) == size - 1)
