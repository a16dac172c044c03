"""The schedule, clipping, and which parameters decay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.training import optimizer

OPTIONS = optimizer.Options(
  learning_rate=1.0, steps=100, warmup=10, final=0.1, weight_decay=0.5
)


def test_the_rate_rises_in_a_line_and_falls_as_a_cosine():
  rate = jax.jit(jax.vmap(optimizer.schedule(OPTIONS)))
  rise = rate(np.arange(10))
  np.testing.assert_allclose(rise, np.arange(1, 11) / 10, rtol=1e-5)
  at = np.arange(10, 101)
  cosine = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * (at - 10) / 90))
  np.testing.assert_allclose(rate(at), cosine, rtol=1e-5)


@pytest.mark.parametrize("warmup", [0, 1])
def test_without_a_rise_the_first_step_has_the_whole_rate(warmup):
  options = optimizer.Options(learning_rate=0.5, steps=10, warmup=warmup)
  assert float(optimizer.schedule(options)(0)) == 0.5


def test_matrices_decay_and_norms_do_not():
  tx = optimizer.make(OPTIONS)
  params = {"w": jnp.ones((2, 2)), "norm": jnp.ones((2,))}
  zeros = {name: jnp.zeros_like(value) for name, value in params.items()}
  run = jax.jit(lambda grads: tx.update(grads, tx.init(params), params)[0])
  updates = run(zeros)
  np.testing.assert_allclose(updates["w"], -0.1 * 0.5, rtol=1e-5)
  np.testing.assert_allclose(updates["norm"], 0.0)


def test_gradients_are_clipped_together():
  big = {"a": jnp.full((3,), 100.0), "b": jnp.full((3,), 1.0)}
  small = {name: value / 100 for name, value in big.items()}
  params = {name: jnp.zeros_like(value) for name, value in big.items()}
  for clip, same in ((1.0, True), (0.0, False)):
    # Adam forgets sizes in one step; two in a row show them.
    options = optimizer.Options(learning_rate=1.0, steps=10, clip=clip)
    tx = optimizer.make(options)

    @jax.jit
    def run(first, tx=tx):
      _, state = tx.update(first, tx.init(params), params)
      return tx.update(small, state, params)[0]

    found = [run(first) for first in (big, small)]
    pairs = (np.allclose(found[0][n], found[1][n], atol=1e-4) for n in big)
    assert all(pairs) == same
