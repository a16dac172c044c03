"""Block verification is exact, with the residual that is its own (RULES 6)."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.verifiers.base import Law, VerifyNoise
from specjax.verifiers.block import Block
from specjax.verifiers.rejection import Rejection
from tests.verifiers import rejection_test
from tests.verifiers.enumeration import (
  EXACT,
  KINDS,
  SHAPES,
  along,
  check_every_certain_draft,
  check_every_pair,
  emitted_law,
  every_law,
  in_float64,
  joint,
  pair,
  proposal,
  sequences,
)

RULE = Block()


def kept(accept):
  """The last stop wins; where none is, nothing is kept."""
  ones = np.ones((len(accept), 1))
  later = np.cumprod((1 - accept)[:, ::-1], axis=1)[:, ::-1]
  later = np.concatenate([later, ones], 1)  # no stop at i + 1 .. C
  return np.concatenate([ones, accept], 1) * later


@in_float64
@pytest.mark.parametrize("vocab,width", SHAPES)
def test_rule_6_emitted_sequence_follows_the_target(vocab, width):
  check_every_pair(RULE, kept, vocab, width)


@in_float64
@pytest.mark.parametrize("vocab,width", [(3, 2), (3, 3), (5, 4)])
def test_rule_6_deterministic_proposals_too(vocab, width):
  check_every_certain_draft(RULE, kept, vocab, width)


@dataclasses.dataclass(frozen=True)
class TokenResidual:
  """The fault a published port had: the token rule's residual."""

  def law(self, p, proposed):
    left = Rejection().law(p, proposed).left
    return dataclasses.replace(RULE.law(p, proposed), left=left)


@in_float64
@pytest.mark.parametrize("width", [2, 3])
def test_rule_6_the_token_rules_residual_would_be_wrong(width):
  errors = []
  for vocab in (3, 4, 5):
    p, q = pair("random", vocab, width)
    tokens = sequences(vocab, width)
    drafts = along(q, tokens)
    chance = np.take_along_axis(drafts, tokens[..., None], 2)[..., 0]
    law = emitted_law(
      TokenResidual(), kept, p, tokens, np.prod(chance, 1), drafts, width
    )
    errors.append(np.abs(law - joint(p)).max())
  assert max(errors) > 1e-3, errors


@in_float64
@pytest.mark.parametrize("kind", KINDS)
def test_never_keeps_fewer_tokens_than_the_token_rule(kind):
  p, q = pair(kind, 4, 3)
  tokens = sequences(4, 3)
  drafts = along(q, tokens)
  weights = np.prod(
    np.take_along_axis(drafts, tokens[..., None], 2)[..., 0], axis=1
  )
  means = []
  for rule, stops in (
    (Rejection(), rejection_test.kept),
    (RULE, kept),
  ):
    law = every_law(rule, False)(along(p, tokens), proposal(tokens, drafts, 3))
    means.append(weights @ stops(np.asarray(law.accept)) @ np.arange(4))
  assert means[1] > means[0] - EXACT
  if kind == "random":
    assert means[1] > means[0] + 1e-3


def test_the_last_stop_wins():
  law = Law(
    tokens=jnp.asarray([1, 2, 3], jnp.int32),
    accept=jnp.asarray([0.5, 0.5, 0.5]),
    left=jnp.eye(8)[jnp.arange(4, 8)],
    p=jnp.eye(8)[jnp.arange(4, 8)],
  )
  for uniform, count in (
    ((0.4, 0.6, 0.6), 1),
    ((0.6, 0.6, 0.4), 3),  # the failures before it do not matter
    ((0.4, 0.4, 0.6), 2),
    ((0.6, 0.6, 0.6), 0),
    ((0.5, 0.5, 0.5), 0),
  ):
    noise = VerifyNoise(
      uniform=jnp.asarray(uniform), exponential=jnp.ones((8,))
    )
    verdict = RULE.draw(law, noise)
    expected = [*[1, 2, 3][:count], 4 + count, *[0] * (3 - count)]
    assert verdict.tokens.tolist() == expected
    assert int(verdict.count) == count + 1
