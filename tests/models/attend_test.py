"""Attention in JAX's own terms, as a TPU runs it, on a CPU."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.cache import BLOCK, KVCache
from specjax.models import attend

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
    attend._walk(q, cache, 0, at, window, bias=None, **one, **how)
    for one in (
      dict(block=BLOCK, laid=lambda part: part, kept=False),
      dict(block=attend.TPU_BLOCK, laid=lambda part: part, kept=True),
    )
  )
  np.testing.assert_allclose(narrow, wide, rtol=1e-5, atol=1e-6)
