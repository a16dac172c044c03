"""The whole engine keeps the target's law: chi-squared on exact joint laws.

See chi_squared.py. Seeds are fixed, so nothing here is flaky. RULES are the
project's list of what a correct speculative decoder satisfies; a test that
shows one names its number.
"""

import dataclasses
import functools
import itertools
import types

import jax.numpy as jnp
import pytest

from specjax import sampling
from specjax.proposers import draft_model, drawing
from specjax.verifiers.block import Block
from specjax.verifiers.rejection import Rejection
from tests import exact
from tests.chi_squared import (
  DRAFT,
  PROMPT,
  PROPOSERS,
  SAMPLES,
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

TEMPERATURES = (0.5, 1.0, 3.0)
FILTERS = ({"top_k": 2}, {"top_p": 0.8}, {"min_p": 0.3})
EVERY = [
  {"temperature": temperature, **keep}
  for temperature, keep in itertools.product(TEMPERATURES, FILTERS)
]
# Both proposers, every temperature and every filter once.
DIAGONAL = {"draft_model": [EVERY[0], EVERY[8]], "ngram": [EVERY[4]]}


@pytest.fixture(scope="module")
def engines():
  return functools.cache(make_engine)


def test_enumeration_agrees_with_itself():
  """Token rejection, enumerated by hand, gives the target's law."""
  for proposer, settings in itertools.product(PROPOSERS, EVERY):
    tokens, blocks = laws(proposer, **settings)
    summed = exact.marginal(blocks, 0)
    assert summed.keys() == tokens.keys()
    assert max(abs(summed[key] - tokens[key]) for key in tokens) < 1e-12
    assert abs(sum(tokens.values()) - 1) < 1e-12


@pytest.mark.parametrize("settings", EVERY, ids=str)
def test_filters_filter(settings):
  """Each setting takes something away, from the target and from the draft."""
  for params in (TARGET, DRAFT):
    tokens = exact.tokens_law(exact.Chain(params, settings), PROMPT, TOKENS)
    assert 16 < len(tokens) < VOCAB**TOKENS


def test_engine_keeps_the_law(engines):
  """RULES 1, 2, 3, 4, 7, 8, 8a, 17, 19: one seed, each filter once."""
  check(engines, DIAGONAL, seeds=(0,), samples=SAMPLES * 3 // 10)


@pytest.mark.long
def test_block_verification_keeps_the_law():
  """RULES 6, 8a: and keeps more of the drafts than token by token."""
  every, samples = DIAGONAL["draft_model"], SAMPLES // 2
  drawn = {
    verifier: draw(
      make_engine("draft_model", verifier=verifier), every, 0, samples
    )
    for verifier in (Block(), Rejection())
  }
  for settings, block, token in zip(every, *drawn.values(), strict=True):
    tokens = exact.marginal(block.blocks, 0)
    law, _ = laws("draft_model", **settings)
    assert p_value(tokens, law, samples) > 0.01
    assert block.accepted / block.drafted > token.accepted / token.drafted


@pytest.mark.long
def test_engine_keeps_the_law_everywhere(engines):
  """RULES 1, 2, 3, 4, 7, 8, 8a, 17, 19: the whole matrix."""
  check(engines, dict.fromkeys(PROPOSERS, EVERY), seeds=(0, 1, 2))


# The test sees what it should: four faults, planted in the product's pieces.

FAULTY = {"temperature": 1.0, "top_p": 0.8}
FAULTY_SAMPLES = 10_000
REJECTED = 1e-6
BOTH = ("draft_model", pytest.param("ngram", marks=pytest.mark.long))


def p_values_of(engine, proposer):
  (sample,) = draw(engine, [FAULTY], 0, FAULTY_SAMPLES)
  p = p_values(proposer, FAULTY, sample)
  print("p-values of tokens and of blocks: {:.3g}, {:.3g}".format(*p))
  return p


@pytest.mark.parametrize("proposer", BOTH)
def test_sees_no_fault_where_none_is(engines, proposer):
  assert min(p_values_of(engines(proposer), proposer)) > 0.001


def test_sees_q_from_before_the_filters(monkeypatch):
  """RULES 2: the draft is drawn after the filters, its q is of before."""
  off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
  seen = []

  def unfiltered(settings):
    every = {k: jnp.full_like(getattr(settings, k), v) for k, v in off.items()}
    return dataclasses.replace(settings, **every)

  def probs(logits, settings):
    seen.append(
      dataclasses.replace(
        settings, temperature=jnp.ones_like(settings.temperature)
      )
    )
    return sampling.probs(logits, unfiltered(settings))

  def race(law, noise):
    kept = sampling.probs(jnp.log(law)[:, None], seen[-1])[:, 0]
    return sampling.race(kept, noise)

  pieces = {**vars(sampling), "probs": probs, "race": race}
  monkeypatch.setattr(drawing, "sampling", types.SimpleNamespace(**pieces))
  tokens, _ = p_values_of(make_engine("draft_model"), "draft_model")
  assert tokens < REJECTED


class BonusAtWidth(Rejection):
  """After a row's own drafts, the bonus of C drafts."""

  def law(self, p, proposal):
    law = super().law(p, proposal)
    own = (jnp.arange(p.shape[0]) == proposal.count)[:, None]
    return dataclasses.replace(
      law, left=jnp.where(own, law.residual[-1], law.residual)
    )


@pytest.mark.parametrize("proposer", BOTH)
def test_sees_the_bonus_of_another_count(proposer):
  engine = make_engine(proposer, verifier=BonusAtWidth())
  tokens, _ = p_values_of(engine, proposer)
  assert tokens < REJECTED


def test_sees_noise_that_every_step_draws_again(monkeypatch):
  """RULES 8a: the key without the base."""
  bits = sampling.Noise._bits

  def same(noise, *args):
    base = jnp.zeros_like(noise.base)
    return bits(dataclasses.replace(noise, base=base), *args)

  monkeypatch.setattr(sampling.Noise, "_bits", same)
  tokens, _ = p_values_of(make_engine("draft_model"), "draft_model")
  assert tokens < REJECTED


class Behind(draft_model.DraftModel):
  """Its cache misses one token from the beginning."""

  def ingest(self, params, state, block, ctx):
    new = super().ingest(params, state, block, ctx)
    missed = (state.cache.length == 0) & (block.count > 0)
    cache = new.cache.commit(-missed.astype(jnp.int32))
    return dataclasses.replace(new, cache=cache)


def test_sees_a_draft_cache_one_token_behind():
  """RULES 17: the blocks' law tells.

  The tokens' law stays, since q is still what each draft was drawn from.
  """
  engine = make_engine("draft_model", model=Behind)
  tokens, blocks = p_values_of(engine, "draft_model")
  assert blocks < REJECTED < tokens
