"""Token rejection is exact: the product's own `law`, enumerated in float64.

RULES are the project's list of what a correct speculative decoder satisfies; a
test that shows one names its number.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.verifiers.base import Law, VerifyNoise
from specjax.verifiers.rejection import Rejection
from tests.verifiers.enumeration import (
  EXACT,
  KINDS,
  SHAPES,
  along,
  check_every_certain_draft,
  check_every_pair,
  every_law,
  in_float64,
  pair,
  proposal,
  sequences,
)

RULE = Rejection()


def kept(accept):
  """Token after token, up to the first that is turned down."""
  ones = np.ones((len(accept), 1))
  passed = np.cumprod(np.concatenate([ones, accept], 1), axis=1)
  return passed * np.concatenate([1 - accept, ones], 1)


@in_float64
@pytest.mark.parametrize("vocab,width", SHAPES)
def test_emitted_sequence_follows_the_target(vocab, width):
  """RULES 2, 4: for every kind of p and q, and every count of drafts."""
  check_every_pair(RULE, kept, vocab, width)


@in_float64
@pytest.mark.parametrize("vocab,width", SHAPES)
def test_deterministic_proposals_are_one_hot(vocab, width):
  """RULES 3: with q = None each drafted token counts as drawn for certain."""
  check_every_certain_draft(RULE, kept, vocab, width)


@in_float64
@pytest.mark.parametrize("kind", KINDS)
def test_none_is_the_one_hot_q(kind):
  """RULES 3: q = None and the one-hot q are the same proposal."""
  p, _ = pair(kind, 5, 3)
  tokens = jnp.asarray([4, 0, 2], jnp.int32)
  rows = jnp.stack([jnp.asarray(law[0]) for law in p])
  laws = [
    RULE.law(rows, proposal(tokens, q, 2))
    for q in (None, jax.nn.one_hot(tokens, 5, dtype=jnp.float64))
  ]
  jax.tree.map(np.testing.assert_array_equal, *laws)


@in_float64
def test_equal_laws_accept_everything():
  """RULES 17: a model that drafts for itself is never turned down."""
  p, _ = pair("equal", 4, 3)
  tokens = sequences(4, 3)
  rows = along(p, tokens)
  law = every_law(RULE, False)(rows, proposal(tokens, rows[:, :3], 3))
  np.testing.assert_array_equal(law.accept, 1)
  np.testing.assert_allclose(law.residual, rows, atol=EXACT)


@in_float64
def test_impossible_tokens_are_turned_down():
  """RULES 4: a draft that the target never emits is never accepted."""
  p, q = pair("disjoint", 5, 4)
  tokens = sequences(5, 4)
  rows = along(p, tokens)
  law = every_law(RULE, False)(rows, proposal(tokens, along(q, tokens), 4))
  at = np.take_along_axis(rows[:, :4], tokens[..., None], 2)[..., 0]
  assert not np.asarray(law.accept)[at == 0].any()
  assert not np.asarray(law.residual)[rows == 0].any()


# `draw` at its thresholds. It runs in float32, as in the step.

LOWEST = np.float32(2**-24)  # the smallest and largest uniform there are
HIGHEST = np.float32(1 - 2**-24)


def draw(accept, residual, uniform, exponential=None, tokens=(1, 2, 3)):
  residual = np.asarray(residual, np.float32)
  if exponential is None:
    exponential = np.ones(residual.shape[1])
  verdict = RULE.draw(
    Law(
      tokens=jnp.asarray(tokens, jnp.int32),
      accept=jnp.asarray(accept, jnp.float32),
      left=jnp.asarray(residual, jnp.float32),
      p=jnp.asarray(residual, jnp.float32),
    ),
    VerifyNoise(
      uniform=jnp.asarray(uniform, jnp.float32),
      exponential=jnp.asarray(exponential, jnp.float32),
    ),
  )
  return np.asarray(verdict.tokens).tolist(), int(verdict.count)


# The token emitted after n accepted ones tells n: 4 + n.
TELLING = np.eye(8)[[4, 5, 6, 7]]


def test_accepts_just_below_the_threshold_and_not_at_it():
  edge = np.float32(0.3)
  below = np.nextafter(edge, np.float32(0))
  above = np.nextafter(edge, np.float32(1))
  for place in range(3):
    accept = np.ones(3, np.float32)
    accept[place] = edge
    for u, passes in ((below, True), (edge, False), (above, False)):
      uniform = np.full(3, 0.5, np.float32)
      uniform[place] = u
      tokens, count = draw(accept, TELLING, uniform)
      kept = 3 if passes else place
      assert count == kept + 1
      assert tokens == [*(1, 2, 3)[:kept], 4 + kept, *[0] * (3 - kept)]


def test_certain_tokens_pass_at_the_highest_uniform():
  tokens, count = draw([1, 1, 1], TELLING, [HIGHEST] * 3)
  assert (tokens, count) == ([1, 2, 3, 7], 4)


def test_impossible_tokens_fail_at_the_lowest_uniform():
  """RULES 4: 0 < u, so u < 0 never holds, whatever comes after."""
  tokens, count = draw([0, 1, 1], TELLING, [LOWEST] * 3)
  assert (tokens, count) == ([4, 0, 0, 0], 1)


def test_nothing_after_the_first_rejection_counts():
  tokens, count = draw([1, 0.5, 1], TELLING, [0.1, 0.9, 0.1])
  assert (tokens, count) == ([1, 5, 0, 0], 2)


def test_rows_without_drafts_emit_one_token():
  tokens, count = draw(np.zeros(3), TELLING, [LOWEST] * 3, tokens=(9, 9, 9))
  assert (tokens, count) == ([4, 0, 0, 0], 1)
  tokens, count = draw([], TELLING[:1], [], tokens=())
  assert (tokens, count) == ([4], 1)


def test_last_token_comes_from_the_residual_alone():
  """RULES 4: weight 0 never wins, however small its exponential."""
  tiny, huge = np.float32(2**-33), np.float32(16.7)
  for possible in range(4):
    exponential = np.full(4, tiny)
    exponential[possible] = huge
    residual = np.tile(np.eye(4)[possible] * 1e-30, (4, 1))
    tokens, count = draw([0, 0, 0], residual, [0.5] * 3, exponential)
    assert (tokens, count) == ([possible, 0, 0, 0], 1)
  # Of two possible tokens the one with the larger weight / exponential.
  residual = np.tile([0.0, 0.25, 0.75, 0.0], (4, 1))
  for ratio, winner in ((2.99, 2), (3.01, 1)):
    exponential = [tiny, 1, ratio, tiny]
    tokens, _ = draw([0, 0, 0], residual, [0.5] * 3, exponential)
    assert tokens[0] == winner
