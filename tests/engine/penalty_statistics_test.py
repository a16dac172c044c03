"""Sampling under penalties and bias keeps the target's law (RULES.md 9, 10).

The law of a token depends on all that was said, so the joint law is enumerated
over whole histories, in float64. See chi_squared.py; seeds are fixed.
"""

import functools

import pytest

from specjax.penalties import Penalties
from specjax.verifiers.block import Block
from tests import exact
from tests.chi_squared import (
  DRAFT,
  PROPOSERS,
  TARGET,
  TOKENS,
  VOCAB,
  check,
  draw,
  laws,
  make_engine,
  p_value,
  p_values,
)

# Without id 2, so that what repetition counts changes on the way; its end was
# there before, so that lookup has something to copy.
PROMPT = (0, 1, 0, 1)
REPETITION = {"temperature": 1.0, "repetition_penalty": 1.5, "top_k": 2}
PRESENCE = {"temperature": 1.0, "presence_penalty": 1.0, "top_p": 0.8}
FREQUENCY = {"temperature": 0.7, "frequency_penalty": 0.7, "min_p": 0.1}
BIAS = {
  "temperature": 1.0,
  "logit_bias": ((1, -1.0), (2, 0.5)),
  "top_p": 0.8,
}
ALL = {
  "temperature": 1.5,
  "repetition_penalty": 1.5,
  "presence_penalty": 1.0,
  "frequency_penalty": -0.7,
  "logit_bias": ((0, -1.5),),
  "top_p": 0.9,
}
EVERY = [REPETITION, PRESENCE, FREQUENCY, BIAS, ALL]
SAMPLES = 10_000  # by default; the long test takes ten times as many
SOME = {"draft_model": [PRESENCE, ALL], "ngram": [REPETITION, BIAS]}


@pytest.fixture(scope="module")
def engines():
  return functools.cache(make_engine)


@pytest.mark.parametrize("settings", EVERY, ids=str)
def test_every_penalty_moves_the_law_of_target_and_draft(settings):
  bare = {k: v for k, v in settings.items() if k not in exact.PENALTIES}
  for params in (TARGET, DRAFT):
    with_it, without = (
      exact.tokens_law(exact.Chain(params, own, len(PROMPT)), PROMPT, TOKENS)
      for own in (settings, bare)
    )
    assert 16 < len(with_it) <= VOCAB**TOKENS
    moved = sum(
      abs(with_it.get(key, 0) - without.get(key, 0))
      for key in with_it.keys() | without.keys()
    )
    assert moved > 0.2


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("settings", EVERY, ids=str)
def test_enumeration_agrees_with_itself(settings, proposer):
  tokens, blocks = laws(proposer, PROMPT, **settings)
  summed = exact.marginal(blocks, 0)
  assert summed.keys() == tokens.keys()
  assert max(abs(summed[key] - tokens[key]) for key in tokens) < 1e-12


def test_rule_9_10_engine_keeps_the_law_under_penalties(engines):
  """Rows of different settings run side by side."""
  check(engines, SOME, seeds=(0,), samples=SAMPLES, prompt=PROMPT)


@pytest.mark.long
def test_rule_9_10_engine_keeps_the_law_under_every_penalty(engines):
  every = dict.fromkeys(PROPOSERS, EVERY)
  check(engines, every, seeds=(0, 1, 2), prompt=PROMPT)


@pytest.mark.long
def test_rule_6_9_block_verification_keeps_the_law_under_penalties():
  engine = make_engine("draft_model", verifier=Block())
  for settings, sample in zip(
    EVERY, draw(engine, EVERY, 0, 50_000, PROMPT), strict=True
  ):
    tokens, _ = laws("draft_model", PROMPT, **settings)
    seen = exact.marginal(sample.blocks, 0)
    assert p_value(seen, tokens, 50_000) > 0.01 / len(EVERY)


# The test sees what it should: faults, planted in the product's pieces.

FAULTY_SAMPLES = 10_000
REJECTED = 1e-6
BOTH = ("draft_model", pytest.param("ngram", marks=pytest.mark.long))


def p_of_tokens(engine, proposer, settings):
  (sample,) = draw(engine, [settings], 0, FAULTY_SAMPLES, PROMPT)
  tokens, blocks = p_values(proposer, settings, sample, PROMPT)
  print(f"p-values of tokens and of blocks: {tokens:.3g}, {blocks:.3g}")
  return tokens


@pytest.mark.parametrize("proposer", BOTH)
def test_sees_no_fault_where_none_is(engines, proposer):
  assert p_of_tokens(engines(proposer), proposer, PRESENCE) > 0.001


@pytest.mark.parametrize("proposer", BOTH)
def test_rule_9_sees_positions_blind_to_the_drafts_before_them(
  monkeypatch, proposer
):
  """Of the target and of the draft alike, so that much is accepted."""
  blind = lambda self, logits, drafted, first=0: self._apply(
    logits, drafted[:, :0], first
  )
  monkeypatch.setattr(Penalties, "apply", blind)
  engine = make_engine(proposer)
  assert p_of_tokens(engine, proposer, PRESENCE) < REJECTED


def test_rule_10_sees_a_bias_on_the_bonus_alone(monkeypatch):
  right = Penalties.apply

  def last(self, logits, drafted, first=0):
    return logits.at[:, -1].set(right(self, logits, drafted, first)[:, -1])

  monkeypatch.setattr(Penalties, "apply", last)
  engine = make_engine("draft_model")
  assert p_of_tokens(engine, "draft_model", BIAS) < REJECTED
