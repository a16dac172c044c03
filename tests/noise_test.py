"""The noise that draws tokens: its keys, its range and its law.

RULES are the project's list of what a correct speculative decoder satisfies; a
test that shows one names its number.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import stats

from specjax import sampling
from specjax.engine.request import SamplingParams
from specjax.models import cpu_kernel

race = jax.jit(sampling.race)
SEEDS = (0, 1, 5, 5 + 2**32, -1, 2**32 - 1, 2**63, 2**64 - 2)


def words(seed):
  return SamplingParams(seed=seed).seed_words(0, "")


def noise(seeds, bases, is_greedy=False):
  return sampling.Noise(
    seed=jnp.asarray([words(seed) for seed in seeds], jnp.uint32),
    base=jnp.asarray(bases, jnp.int32),
    is_greedy=jnp.asarray(is_greedy),
  )


@functools.partial(jax.jit, static_argnums=3)
def bits_of(noise, purpose, offset, size):
  return noise._bits(purpose, offset, size)


@functools.partial(jax.jit, static_argnums=2)
def uniform(noise, purpose, size):
  return noise.uniform(purpose, size)


@functools.partial(jax.jit, static_argnums=3)
def exponential(noise, purpose, offset, size):
  return noise.exponential(purpose, offset, size)


def test_no_two_keys_agree():
  """RULES 1, 8a, 11: a key is its seed, base, offset and purpose."""
  seeds, bases = zip(*itertools.product(SEEDS, range(1, 40)), strict=True)
  made = noise(seeds, bases)
  purposes = (sampling.DRAFT, sampling.ACCEPT, sampling.RESIDUAL)
  bits = [
    np.asarray(bits_of(made, purpose, offset, 2))
    for purpose, offset in itertools.product(purposes, range(8))
  ]
  bits = np.concatenate(bits).astype(np.uint64)
  both = bits[:, 0] << np.uint64(32) | bits[:, 1]
  assert len(np.unique(both)) == len(both) == len(SEEDS) * 39 * 3 * 8


def test_seeds_differ_in_all_64_bits():
  """RULES 11: 5 and 5 + 2^32, -1 and 2^32 - 1 differ; a seed repeats."""
  drawn = {
    seed: uniform(noise([seed], [7]), sampling.ACCEPT, 4)[0].tolist()
    for seed in SEEDS
  }
  assert len(set(map(tuple, drawn.values()))) == len(SEEDS)
  again = uniform(noise([5], [7]), sampling.ACCEPT, 4)
  assert again[0].tolist() == drawn[5]
  assert words(-1) == words(2**64 - 1)  # the same 64 bits


def test_unseeded_rows_differ_by_their_id():
  """RULES 11: and by the engine's seed; neither slot nor order matters."""
  unseeded = SamplingParams()
  every = {
    unseeded.seed_words(seed, name) for seed in (0, 1) for name in ("a", "b")
  }
  assert len(every) == 4
  assert unseeded.seed_words(0, "a") == SamplingParams().seed_words(0, "a")


def test_rows_draw_alone():
  """RULES 7, 11: a row's noise knows neither its slot nor its neighbours."""
  together = exponential(noise([3, 1, 5], [9, 4, 7]), sampling.DRAFT, 1, 6)
  alone = exponential(noise([5], [7]), sampling.DRAFT, 1, 6)
  np.testing.assert_array_equal(together[2], alone[0])


def test_noise_is_independent():
  """RULES 1, 8a: of another step, purpose, offset or seed, each pair."""
  n = 50_000
  seeds, bases = range(n), [10] * n

  def unit(noise, purpose, offset=0):
    bits = bits_of(noise, purpose, offset, 2)
    return np.asarray(sampling.open_uniform(bits))

  one = noise(seeds, bases)
  first = unit(one, sampling.ACCEPT)
  others = [
    first[:, ::-1],
    unit(one, sampling.RESIDUAL),
    unit(one, sampling.DRAFT),
    unit(one, sampling.DRAFT, 1),
    unit(noise(seeds, [11] * n), sampling.ACCEPT),
    unit(noise(range(1, n + 1), bases), sampling.ACCEPT),
    unit(noise([seed + 2**32 for seed in seeds], bases), sampling.ACCEPT),
  ]
  worst = 1.0
  for other in others:
    cells = np.stack([first[:, 0], other[:, 0]], 1) * 8
    cells = cells.astype(int) @ [8, 1]
    worst = min(worst, stats.chisquare(np.bincount(cells, minlength=64)).pvalue)
  assert worst * len(others) > 0.01


def test_uniforms_lie_strictly_inside():
  """RULES 4: for every word of bits, the first and the last among them."""
  bits = jnp.asarray([0, 1, 511, 512, 2**31, 2**32 - 1], jnp.uint32)
  u = np.asarray(sampling.open_uniform(bits))
  assert u.dtype == np.float32
  assert u[0] == 2**-24 and u[-1] == 1 - 2**-24
  assert np.all((u > 0) & (u < 1)) and u[4] > 0.5


def test_exponentials_are_finite_and_positive():
  bits = jnp.asarray([0, 1, 2, 2**31, 2**32 - 2, 2**32 - 1], jnp.uint32)
  drawn = np.asarray(sampling.exponential(bits))
  assert drawn.dtype == np.float32
  assert np.all(np.isfinite(drawn) & (drawn > 0))
  # The least ones win races: they must not tie.
  assert drawn[0] < drawn[1] < drawn[2] < 1e-9
  assert abs(drawn[3] - np.log(2)) < 1e-6 and 16 < drawn[-1] < 17


def test_exponentials_have_their_law():
  drawn = exponential(noise(range(200), [1] * 200), sampling.RESIDUAL, 0, 500)
  assert stats.kstest(np.asarray(drawn).ravel(), "expon").pvalue > 0.01


def test_greedy_batches_draw_no_noise():
  made = noise([1, 2], [3, 4], is_greedy=True)
  assert np.all(np.asarray(uniform(made, sampling.ACCEPT, 3)) == 0.5 + 2**-24)
  drawn = np.asarray(exponential(made, sampling.RESIDUAL, 0, 3))
  assert np.all(drawn == drawn[0, 0])


# A likelihood so small that its score is rounded to 0.
@example([0.0, 0.0, 0.0, 1.2e-38], [2**32 - 1] * 4)
@settings(deadline=None, max_examples=100)
@given(
  st.lists(
    st.sampled_from([0.0, 0.0, 1.2e-38, 1e-6, 0.5, 1.0]), min_size=4, max_size=4
  ),
  st.lists(st.sampled_from([0, 1, 2**31, 2**32 - 1]), min_size=4, max_size=4),
)
def test_a_race_never_picks_weight_zero(weights, bits):
  """RULES 4."""
  assume(any(weights))
  drawn = sampling.exponential(jnp.asarray(bits, jnp.uint32))
  token = int(race(jnp.asarray(weights, jnp.float32), drawn))
  assert weights[token] > 0


def test_a_race_follows_its_weights():
  """Not normalised, from 0 to likely."""
  weights = np.array([0.0, 3.0, 1.0, 0.0, 0.05, 0.5, 0.002])
  n = 100_000
  drawn = exponential(noise(range(n), [5] * n), sampling.RESIDUAL, 0, 7)
  tokens = race(jnp.asarray(weights, jnp.float32), drawn)
  seen = np.bincount(np.asarray(tokens), minlength=7)
  some = weights > 0
  expected = weights[some] / weights.sum() * n
  assert seen.sum() == seen[some].sum() == n
  assert stats.chisquare(seen[some], expected).pvalue > 0.01


def test_a_race_over_a_vocabulary_does_not_tie():
  """All 32 bits count: of 49,152 equal tokens each wins about as often."""
  vocab, n = 49_152, 1_000
  one = jax.jit(
    lambda made: sampling.race(
      jnp.ones((vocab,), jnp.float32),
      made.exponential(sampling.DRAFT, 0, vocab),
    )
  )
  chunks = [
    np.asarray(one(noise(range(at, at + 100), [1] * 100)))
    for at in range(0, n, 100)
  ]
  tokens = np.concatenate(chunks)
  seen = np.bincount(tokens * 64 // vocab, minlength=64)
  assert stats.chisquare(seen).pvalue > 0.01


def test_the_cpus_own_noise_is_of_the_same_bits():
  """Every exponential, also the smallest, which win; at odd sizes too."""
  kernel = cpu_kernel.find()
  if kernel is None:
    pytest.skip("no kernel here: another backend, or no C++ compiler")
  keys = jax.random.split(jax.random.key(5, impl="threefry2x32"), 40)
  for size in (1, 15, 8192, 50_001):
    made = cpu_kernel.noise(kernel, jax.random.key_data(keys), size)
    bits = [jax.random.bits(key, (size,), jnp.uint32) for key in keys]
    theirs = np.asarray(sampling.exponential(jnp.stack(bits)), np.float64)
    np.testing.assert_allclose(made, theirs, rtol=4e-7)
