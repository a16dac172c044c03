"""Rows of a table, in a loop too, without a copy of the table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from specjax.models.lookup import lookup

ROWS, WIDTH = 997, 24


def in_a_loop(find):
  """The HLO of three lookups in a loop, each by what was found before."""

  def run(table, ids):
    def body(carry):
      count, ids, total = carry
      total = total + find(table, ids).astype(jnp.float32)
      return count + 1, ids + jnp.int32(total[0, 0]), total

    start = (jnp.int32(0), ids, jnp.zeros((1, WIDTH)))
    return lax.while_loop(lambda carry: carry[0] < 3, body, start)

  table = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16)
  ids = jax.ShapeDtypeStruct((1,), jnp.int32)
  hlo = jax.jit(run).lower(table, ids).compile().as_text()
  (loop,) = [line for line in hlo.splitlines() if " while(" in line]
  return loop


def plain(table, ids):
  return jnp.take(table, ids, axis=0, mode="clip")


def test_a_loop_does_not_take_a_table_in_float32_along():
  whole = f"f32[{ROWS},{WIDTH}]"
  assert whole not in in_a_loop(lookup)
  if jax.default_backend() == "cpu":
    assert whole in in_a_loop(plain)  # else the barrier can go


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
def test_it_finds_rows_and_has_a_gradient(dtype):
  draws = np.random.default_rng(0)
  table = jnp.asarray(draws.normal(size=(7, 3)), dtype)
  ids = jnp.asarray([[0, 6, 2], [6, 9, 6]], jnp.int32)
  found = lookup(table, ids)
  np.testing.assert_array_equal(
    np.asarray(found), np.asarray(table)[np.minimum(ids, 6)]
  )
  total = lambda table: jnp.sum(lookup(table, ids).astype(jnp.float32))
  slope = jax.grad(total)(table)
  np.testing.assert_array_equal(
    np.asarray(slope[:, 0], np.float32), [1, 0, 1, 0, 0, 0, 4]
  )
  each = jax.vmap(lookup, in_axes=(None, 0))(table, ids)
  np.testing.assert_array_equal(np.asarray(each), np.asarray(found))
