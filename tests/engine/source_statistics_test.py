"""Encoder-decoders keep the target's law: chi-squared on exact joint laws.

See chi_squared.py. Seeds are fixed, so nothing here is flaky.
"""

import functools

import jax.numpy as jnp
import pytest

from specjax.proposers import draft_model
from tests import exact, sourced
from tests.chi_squared import p_value
from tests.decoder_laws import sampled_of
from tests.sourced import START, Laws

VOCAB, LOOKAHEAD, TOKENS = 3, 2, 5
SOURCE = (0, 1, 2, 2, 0, 1)
PROPOSERS = ("draft_model", "ngram", "layer_skip")
SETTINGS = {"temperature": 1.0, "top_p": 0.9}
HOT = {"temperature": 2.0, "top_k": 2}


@functools.cache
def engine(kind):
  return sourced.engine(
    kind,
    VOCAB,
    LOOKAHEAD,
    slots=64,
    whole_batch_prefill=True,
    stop_ids=(),
  )


def laws_of(model, params, settings):
  return Laws(model, params, SOURCE, settings, TOKENS)


def proposals(kind, settings):
  """Of each history what would be drafted, as `exact.drafts` has them."""
  (target, params), (draft, draft_params) = sourced.pair(VOCAB)
  if kind == "ngram":
    propose = exact.lookups(shortest=1)
    return lambda history, count: propose((*SOURCE, *history), count)
  if kind == "layer_skip":
    return exact.drafts(laws_of(target.only((1,)), params, settings))
  return exact.drafts(laws_of(draft, draft_params, settings))


def p_values(made, kind, settings, samples, seed=0):
  """Of the joint law of the tokens, and of tokens and blocks."""
  (target, params), _ = sourced.pair(VOCAB)
  law = laws_of(target, params, settings)
  tokens = exact.tokens_law(law, (START,), TOKENS)
  blocks = exact.blocks_law(
    law, proposals(kind, settings), (START,), TOKENS, LOOKAHEAD
  )
  seen = sampled_of(made, SOURCE, TOKENS, settings, samples, seed)
  p = (
    p_value(exact.marginal(seen, 0), tokens, samples),
    p_value(seen, blocks, samples),
  )
  print("p-values of tokens and of blocks: {:.3g}, {:.3g}".format(*p))
  return p


# The others' engines are two more to compile.
@pytest.mark.parametrize(
  "kind",
  [
    pytest.param(kind, marks=() if kind == "draft_model" else pytest.mark.long)
    for kind in PROPOSERS
  ],
)
def test_rules_1_2_8a_the_engine_keeps_the_law(kind):
  assert min(p_values(engine(kind), kind, SETTINGS, 8_000)) > 0.005


@pytest.mark.long
@pytest.mark.parametrize("kind", PROPOSERS)
def test_the_engine_keeps_the_law_everywhere(kind):
  found = []
  for seed, settings in enumerate((SETTINGS, HOT, {"temperature": 0.7})):
    found += p_values(engine(kind), kind, settings, 40_000, seed + 1)
  assert min(found) * len(found) > 0.01


class Elsewhere(draft_model.DraftModel):
  """Reads one token too few of every source."""

  def read(self, params, state, source, size, ctx):
    size = jnp.where(size > 0, size - 1, 0)
    return super().read(params, state, source, size, ctx)


@pytest.mark.long  # As statistics_test.py sees a cache one token behind.
def test_sees_a_draft_that_reads_another_source():
  """The blocks' law tells; the tokens' stays, since q is still the draft's."""
  (target, params), (draft, draft_params) = sourced.pair(VOCAB)
  made = sourced.engines.build(
    target,
    params,
    Elsewhere(model=draft, lookahead=LOOKAHEAD, vocab_size=VOCAB),
    draft_params,
    slots=64,
    whole_batch_prefill=True,
    stop_ids=(),
    capacity=sourced.CAPACITY,
    prefill_widths=sourced.WIDTHS,
  )
  tokens, blocks = p_values(made, "draft_model", SETTINGS, 8_000)
  assert blocks < 1e-6 < tokens
