"""The largest of logits, found one after another as a TPU does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from specjax.sharding import search

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("count", [1, 3, 6])
@pytest.mark.parametrize(
  "row",
  [
    (0.5, -2.0, 3.0, 0.25, 1.0, -1.0),
    (1.0, 2.0, 2.0, 1.0, 2.0, 1.0),
    (-INF, 0.0, -INF, -INF, 7.0, -INF),
    (-INF,) * 6,
    (INF, 1.0, NAN, 0.0, NAN, INF),
  ],
)
def test_one_after_another_they_are_those_of_one_sort(row, count):
  x = jnp.array([[row, row[::-1]]], jnp.float32)
  got = search._each_in_turn(x, count=count)
  for one, other in zip(got, lax.top_k(x, count), strict=True):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


def test_nobody_else_looks_for_them_one_by_one():
  x = jnp.arange(40.0)[None]
  for count in (0, 3, 20):
    for one, other in zip(
      jax.jit(search.top_k, static_argnums=1)(x, count),
      lax.top_k(x, count),
      strict=True,
    ):
      np.testing.assert_array_equal(one, other)
