"""Attention in JAX's own terms, as a TPU runs it, on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.cache import BLOCK, KVCache
from specjax.models import attend
from tests.models import beside

LENGTHS = (3, 2 * BLOCK - 1, 5 * BLOCK - 4)
WIDTH = 4


def filled():
  """A cache of five blocks of numbers, and queries at its rows' lengths."""
  draws = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(draws.normal(size=shape), jnp.float32)
  shape = (1, len(LENGTHS), 2, 5 * BLOCK, 16)
  length = jnp.asarray(LENGTHS, jnp.int32)
  cache = KVCache(k=draw(*shape), v=draw(*shape), length=length)
  return draw(len(LENGTHS), WIDTH, 4, 16), cache


@pytest.mark.parametrize("window", [None, 40, 2 * BLOCK])
def test_wide_blocks_find_what_narrow_ones_find(window):
  """A TPU's blocks do not divide the cache: the last one begins earlier."""
  assert 5 * BLOCK % attend.TPU_BLOCK
  q, cache = filled()
  at = cache.length[:, None] + jnp.arange(WIDTH, dtype=jnp.int32)
  window = None if window is None else jnp.int32(window)
  how = dict(scale=0.25, softcap=None, over=())
  narrow, wide = (
    attend._walk(q, cache, 0, at, at, window, bias=None, **one, **how)
    for one in (
      dict(block=BLOCK, laid=lambda part: part, kept=False),
      dict(block=attend.TPU_BLOCK, laid=lambda part: part, kept=True),
    )
  )
  np.testing.assert_allclose(narrow, wide, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("how", [{}, dict(softcap=2.0), dict(bias=True)])
def test_a_sibling_sees_what_lies_before_its_position_and_its_own_key(
  how, window
):
  """Around edges of blocks, wide and narrow ones alike."""
  draws = np.random.default_rng(1)
  draw = lambda *shape: jnp.asarray(draws.normal(size=shape), jnp.float32)
  lengths = (0, BLOCK - 3, 2 * BLOCK - 6, 4 * BLOCK - 5)
  shape = (1, len(lengths), 2, 5 * BLOCK, 16)
  cache = KVCache(k=draw(*shape), v=draw(*shape), length=jnp.array(lengths))
  q = draw(len(lengths), beside.WIDTH, 4, 16)
  bias = draw(4, 9) if how.pop("bias", False) else None
  how = {"scale": 0.25, "softcap": None, "over": (), "bias": bias} | how
  window = None if window is None else jnp.int32(window)
  for block, kept in ((BLOCK, False), (attend.TPU_BLOCK, True)):
    walk = jax.jit(
      lambda q, cache, at, slots, block=block, kept=kept: attend._walk(
        *(q, cache, 0, at, slots, window),
        **dict(block=block, laid=lambda part: part, kept=kept),
        **how,
      )
    )
    beside.check(walk, q, cache, atol=2e-6, exact_chain=False)
