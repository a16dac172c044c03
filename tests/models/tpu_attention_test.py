"""The TPU's attention as one kernel, interpreted, against JAX's own terms."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.cache import BLOCK, KVCache
from specjax.models import attend, tpu_attention
from tests.models import beside

SIZE, WIDTH = 128, 4
CAPACITY = 9 * BLOCK  # Two whole blocks of the kernel and a quarter of one.
# Empty, within a block, a block's last place, the cache's.
LENGTHS = (0, 3, 4 * BLOCK - 1, 4 * BLOCK, CAPACITY - WIDTH)


# Compiled but once for each shape.
interpreted = jax.jit(
  functools.partial(tpu_attention.attend, scale=SIZE**-0.5, interpret=True),
  static_argnames="softcap",
)
walking = jax.jit(
  functools.partial(
    attend._walk, bias=None, block=BLOCK, laid=lambda part: part, kept=False,
    over=(), scale=SIZE**-0.5,
  ),
  static_argnames="softcap",
)  # fmt: skip


def filled(lengths=LENGTHS, heads=4, kv_heads=2, width=WIDTH, dtype="float32"):
  """A cache of two layers, and queries at its rows' lengths."""
  draws = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(draws.normal(size=shape), dtype)
  shape = (2, len(lengths), kv_heads, CAPACITY, SIZE)
  cache = KVCache(k=draw(*shape), v=draw(*shape), length=jnp.array(lengths))
  at = cache.length[:, None] + jnp.arange(width, dtype=jnp.int32)
  return draw(len(lengths), width, heads, SIZE), cache, at


def both(q, cache, at, slots=None, *, layer=1, window=None, softcap=None):
  """What the kernel makes, and what `attend` makes in JAX's own terms."""
  layer, seen = jnp.int32(layer), jnp.int32(window or 0)
  slots = at if slots is None else slots
  made = interpreted(q, cache, layer, at, slots, seen, softcap=softcap)
  seen = None if window is None else seen
  return made, walking(q, cache, layer, at, slots, seen, softcap=softcap)


def check(made, walked, tolerance=2e-6):
  assert made.dtype == walked.dtype and made.shape == walked.shape
  made, walked = (np.asarray(one, np.float32) for one in (made, walked))
  np.testing.assert_allclose(made, walked, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("heads, kv_heads", [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize("layer", [0, 1])
def test_it_is_what_attention_is(heads, kv_heads, layer):
  check(*both(*filled(heads=heads, kv_heads=kv_heads), layer=layer))


@pytest.mark.parametrize("lengths", [(700,), (5, 700), (700, 5, 90)])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_rows_or_halves_of_heads_are_shared_out(lengths, kv_heads):
  check(*both(*filled(lengths, kv_heads=kv_heads)))


@pytest.mark.parametrize("width", [1, 5, 16])
def test_blocks_of_a_step_have_any_width(width):
  lengths = (0, 1, 4 * BLOCK - 2, CAPACITY - width)
  check(*both(*filled(lengths, width=width)))


@pytest.mark.parametrize("offset", range(-WIDTH, WIDTH + 1))
def test_every_offset_from_a_blocks_edge(offset):
  check(*both(*filled((4 * BLOCK + offset, 8 * BLOCK + offset))))


@pytest.mark.parametrize("window", [1, 3, 40, 4 * BLOCK, 700, 10 * BLOCK])
def test_windows(window):
  check(*both(*filled(), window=window))


def test_a_soft_cap():
  check(*both(*filled(), softcap=0.5))


def test_bfloat16_is_rounded_alike():
  check(*both(*filled(dtype="bfloat16")), tolerance=1e-2)


@pytest.mark.parametrize("window", [None, 40])
def test_what_no_query_sees_does_not_matter(window):
  """Not even if it is no number: behind the last query, beyond the cache."""
  q, cache, at = filled()
  made, _ = both(q, cache, at, window=window)
  behind = jnp.arange(CAPACITY)[:, None] > at[:, -1][:, None, None, None]
  hurt = lambda stack: jnp.where(behind, jnp.nan, stack).at[0].set(jnp.nan)
  cache = dataclasses.replace(cache, k=hurt(cache.k), v=hurt(cache.v))
  again, _ = both(q, cache, at, window=window)
  np.testing.assert_array_equal(made, again)
  assert np.isfinite(made).all()


def test_a_rows_result_is_its_own():
  """Bit for bit: beside longer rows, and alone in the same place."""
  q, cache, at = filled((3, 700))
  together, _ = both(q, cache, at)
  shorter, _ = both(q, cache, at.at[1].set(jnp.arange(WIDTH)))
  np.testing.assert_array_equal(together[0], shorter[0])


def test_a_key_that_is_no_number_reaches_those_who_see_it():
  q, cache, at = filled((3, 700))
  cache = dataclasses.replace(cache, k=cache.k.at[1, 1, :, 600].set(jnp.nan))
  made, _ = both(q, cache, at)
  assert np.isfinite(made[0]).all() and np.isnan(made[1]).all()


@pytest.mark.parametrize("window", [None, 40])
def test_a_sibling_sees_what_lies_before_its_position_and_its_own_key(window):
  """Around a block's edge; and what else is written behind it, nobody sees."""
  lengths = (0, 4 * BLOCK - 5, 4 * BLOCK - 2, CAPACITY - beside.WIDTH)
  q, cache, _ = filled(lengths, width=beside.WIDTH)
  call = lambda q, cache, at, slots: interpreted(
    q, cache, jnp.int32(1), at, slots, jnp.int32(window or 0), softcap=None
  )
  beside.check(call, q, cache, atol=2e-6, exact_chain=False)
  check(*both(q, cache, *beside.at(lengths), window=window))


def test_it_is_for_steps_on_a_v5p():
  q, cache, _ = filled()
  suits = tpu_attention.suits
  assert suits("TPU v5", q, cache)
  for chip in ("TPU v4", "TPU v5 lite", "TPU v6 lite", "cpu", None):
    assert not suits(chip, q, cache)
  assert not suits("TPU v5", jnp.tile(q, (1, 8, 1, 1)), cache)  # a prompt's
  assert not suits("TPU v5", q.astype("bfloat16"), cache)
  small = dataclasses.replace(cache, k=cache.k[..., :64], v=cache.v[..., :64])
  assert not suits("TPU v5", q[..., :64], small)
