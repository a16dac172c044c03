"""Where the target's law is one-hot, every rule does what `greedy` says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.proposers.base import Proposal
from specjax.verifiers.base import VerifyNoise, greedy
from specjax.verifiers.block import Block
from specjax.verifiers.rejection import Rejection

VOCAB, WIDTH = 5, 3


@functools.partial(jax.jit, static_argnums=0)
def both(rule, p, best, proposal, noise):
  return rule.draw(rule.law(p, proposal), noise), greedy(best, proposal)


@pytest.mark.parametrize("rule", [Rejection(), Block()])
@pytest.mark.parametrize("deterministic", [True, False])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_is_what_the_rule_draws_for_any_draft_and_noise(
  rule, deterministic, data
):
  ids = st.integers(0, VOCAB - 1)
  best = data.draw(st.lists(ids, min_size=WIDTH + 1, max_size=WIDTH + 1))
  tokens = data.draw(st.lists(ids, min_size=WIDTH, max_size=WIDTH))
  count = data.draw(st.integers(0, WIDTH))
  seed = data.draw(st.integers(0, 2**32 - 1))
  draws = np.random.default_rng(seed)
  q = None
  if not deterministic:
    # Flat, peaked or one-hot, but never without the token that it drew.
    q = draws.dirichlet(
      [data.draw(st.sampled_from([0.05, 1, 20]))] * VOCAB, WIDTH
    )
    q[np.arange(WIDTH), tokens] += data.draw(st.sampled_from([1e-6, 1.0, 1e6]))
    q = jnp.asarray(q / q.sum(1, keepdims=True), jnp.float32)
  proposal = Proposal(
    tokens=jnp.asarray(tokens, jnp.int32), q=q, count=jnp.int32(count)
  )
  noise = VerifyNoise(
    uniform=jnp.asarray(draws.uniform(1e-6, 1 - 1e-6, WIDTH), jnp.float32),
    exponential=jnp.asarray(draws.exponential(size=VOCAB) + 1e-9, jnp.float32),
  )
  best = jnp.asarray(best, jnp.int32)
  p = jax.nn.one_hot(best, VOCAB, dtype=jnp.float32)
  drawn, chosen = both(rule, p, best, proposal, noise)
  np.testing.assert_array_equal(chosen.tokens, drawn.tokens)
  assert chosen.count == drawn.count
