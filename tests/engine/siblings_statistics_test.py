"""Siblings keep the target's law: chi-squared on exact joint laws.

See chi_squared.py; seeds are fixed. The law of tokens and of their blocks is
enumerated with the siblings that the draft chooses, so it sees as well which
ones were read, where, and what was kept for the next step.
"""

import functools

import pytest

from specjax import sampling
from specjax.proposers.draft_model import DraftModel
from specjax.verifiers.block import Block
from tests import exact
from tests.chi_squared import (
  DRAFT,
  LOOKAHEAD,
  PROMPT,
  TARGET,
  TOKENS,
  draw,
  make_engine,
  p_value,
)
from tests.table_model import TableModel

SIBLINGS = 2
EVERY = (
  {"temperature": 1.0},
  {"temperature": 0.6, "top_k": 2},
  {"temperature": 3.0, "top_p": 0.8},
  {
    "temperature": 1.2,
    "repetition_penalty": 1.5,
    "frequency_penalty": 0.7,
    "logit_bias": ((0, -0.5),),
    "top_p": 0.9,
  },
)
SAMPLES = 10_000
REJECTED = 1e-6


def engine(**how):
  kind = functools.partial(DraftModel, siblings=SIBLINGS)
  return make_engine("draft_model", kind, **how)


@functools.cache
def sound():
  return engine()


def siblings(settings):
  """As `exact.step_law` takes them: by what the draft says without filters."""
  own = {k: v for k, v in settings.items() if k in exact.PENALTIES}
  raw = exact.Chain(DRAFT, {"temperature": 1.0, **own}, len(PROMPT))
  best = exact.likeliest(SIBLINGS, LOOKAHEAD)

  def beside(history, tokens, laws):
    whole = [raw.law((*history, *tokens[:i])) for i in range(len(laws))]
    return best(history, tokens, whole)

  return beside


def laws(settings):
  target = exact.Chain(TARGET, settings, len(PROMPT))
  propose = exact.drafts(exact.Chain(DRAFT, settings, len(PROMPT)))
  return (
    exact.tokens_law(target, PROMPT, TOKENS),
    exact.blocks_law(
      target, propose, PROMPT, TOKENS, LOOKAHEAD, siblings(settings)
    ),
  )


def p_values(sample, settings):
  """Of the tokens' law, and of the tokens' and blocks'."""
  tokens, blocks = laws(settings)
  count = sample.blocks.total()
  found = (
    p_value(exact.marginal(sample.blocks, 0), tokens, count),
    p_value(sample.blocks, blocks, count),
  )
  print("p-values of tokens and of blocks: {:.3g}, {:.3g}".format(*found))
  return found


@pytest.mark.parametrize("settings", EVERY, ids=str)
def test_enumeration_agrees_with_itself(settings):
  """A sibling that is kept, enumerated by hand, leaves the target's law."""
  tokens, blocks = laws(settings)
  summed = exact.marginal(blocks, 0)
  assert summed.keys() == tokens.keys()
  assert max(abs(summed[key] - tokens[key]) for key in tokens) < 1e-12
  # Blocks of two in which nothing was drafted right: only siblings make them.
  target = exact.Chain(TARGET, settings, len(PROMPT))
  propose = exact.drafts(exact.Chain(DRAFT, settings, len(PROMPT)))
  size = lambda *beside: sum(
    len(block) * mass
    for block, mass in exact.step_law(
      target, propose, PROMPT, LOOKAHEAD, *beside
    ).items()
  )
  assert size(siblings(settings)) > size() + 0.05


def test_the_engine_keeps_the_law_of_tokens_and_of_blocks():
  """RULES 1, 2, 7, 8a, 9, 17, 19."""
  drawn = draw(sound(), EVERY, 0, SAMPLES)
  found = []
  for settings, sample in zip(EVERY, drawn, strict=True):
    found += p_values(sample, settings)
  assert min(found) * len(found) > 0.01


@pytest.mark.long
@pytest.mark.parametrize("seed", (1, 2))
def test_the_engine_keeps_the_law_with_many_samples(seed):
  drawn = draw(sound(), EVERY, seed, 10 * SAMPLES)
  found = []
  for settings, sample in zip(EVERY, drawn, strict=True):
    found += p_values(sample, settings)
  assert min(found) * len(found) > 0.01


@pytest.mark.long
def test_block_verification_keeps_the_law():
  """RULES 6: of tokens; blocks are longer."""
  every = EVERY[:2]
  drawn = draw(engine(verifier=Block()), every, 0, 3 * SAMPLES)
  token = draw(sound(), every, 0, 3 * SAMPLES)
  for settings, sample, other in zip(every, drawn, token, strict=True):
    tokens, _ = laws(settings)
    seen = exact.marginal(sample.blocks, 0)
    assert p_value(seen, tokens, sample.blocks.total()) > 0.01
    assert sample.accepted / sample.drafted > other.accepted / other.drafted


# The test sees what it should: three faults, planted in the product's pieces.


def p_values_of(made):
  settings = EVERY[0]
  (sample,) = draw(made, [settings], 0, SAMPLES)
  return p_values(sample, settings)


def test_sees_one_noise_for_a_sibling_and_what_follows_it(monkeypatch):
  """RULES 1."""
  exponential = sampling.Noise.exponential

  def same(noise, purpose, offset, size):
    offset = 0 if purpose == sampling.RESIDUAL else offset
    return exponential(noise, purpose, offset, size)

  monkeypatch.setattr(sampling.Noise, "exponential", same)
  tokens, _ = p_values_of(engine())
  assert tokens < REJECTED


def test_sees_an_entry_that_stayed_where_it_was(monkeypatch):
  """RULES 17: the next step reads the rejected draft's."""
  monkeypatch.setattr(TableModel, "move", lambda self, cache, *places: cache)
  tokens, _ = p_values_of(engine())
  assert tokens < REJECTED


@pytest.mark.long
def test_sees_other_siblings_than_the_likeliest(monkeypatch):
  """The blocks' law tells; the tokens' stays, whatever the siblings."""
  made = engine()
  settings = {"temperature": 1.0}
  (sample,) = draw(made, [settings], 0, SAMPLES)
  target = exact.Chain(TARGET, settings)
  blocks = exact.blocks_law(
    target,
    exact.drafts(exact.Chain(DRAFT, settings)),
    *(PROMPT, TOKENS, LOOKAHEAD, exact.likeliest(SIBLINGS - 1, LOOKAHEAD)),
  )
  assert p_value(sample.blocks, blocks, SAMPLES) < REJECTED
