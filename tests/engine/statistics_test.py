"""The whole engine keeps the target's law: chi-squared on exact joint laws.

Each sample is one request through the engine: 2C + 3 tokens, one more than two
full blocks, so that every row takes at least three steps. Two laws are tested,
both enumerated (see exact.py): the joint law of the tokens, and the joint law
of tokens and the sizes of the blocks they came in. The second one sees what
exactness hides: a draft other than the one it should be.

Seeds are fixed, so nothing here is flaky. RULES are the project's list of what
a correct speculative decoder satisfies; a test that shows one names its number.
"""

import collections
import dataclasses
import functools
import itertools
import types

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specjax import sampling
from specjax.engine.loop import Engine
from specjax.engine.request import Completion, Request, SamplingParams
from specjax.proposers import draft_model
from specjax.proposers.ngram import Ngram
from specjax.verifiers.block import Block
from specjax.verifiers.rejection import Rejection
from tests import exact
from tests.table_model import TableModel, make_table

VOCAB, LOOKAHEAD = 3, 2
TOKENS = 2 * LOOKAHEAD + 3
SAMPLES = 100_000
# The end of the prompt was there before, so that lookup has something to copy.
PROMPT = (0, 1, 2, 0, 1)
TARGET, DRAFT = make_table(VOCAB, 1), make_table(VOCAB, 0)
TEMPERATURES = (0.5, 1.0, 3.0)
FILTERS = ({"top_k": 2}, {"top_p": 0.8}, {"min_p": 0.3})
EVERY = [
  {"temperature": temperature, **keep}
  for temperature, keep in itertools.product(TEMPERATURES, FILTERS)
]
PROPOSERS = ("draft_model", "ngram")
# Both proposers, every temperature and every filter once.
DIAGONAL = {"draft_model": [EVERY[0], EVERY[8]], "ngram": [EVERY[4]]}


def make_engine(proposer, model=draft_model.DraftModel, verifier=None):
  target = TableModel(VOCAB)
  params = ()
  if proposer == "draft_model":
    made = model(model=target, lookahead=LOOKAHEAD, vocab_size=VOCAB)
    params = DRAFT
  else:
    made = Ngram(lookahead=LOOKAHEAD)
  return Engine(
    target,
    TARGET,
    made,
    params,
    verifier=verifier or Rejection(),
    slots=2048,
    capacity=len(PROMPT) + TOKENS,
    prefill_widths=(4,),
    whole_batch_prefill=True,
  )


@functools.cache
def laws(proposer, **settings):
  """The exact laws of a row: {tokens: p}, {(tokens, sizes): p}."""
  target = exact.Chain(TARGET, settings)
  if proposer == "draft_model":
    propose = exact.drafts(exact.Chain(DRAFT, settings))
  else:
    propose = exact.lookups()
  return (
    exact.tokens_law(target, PROMPT, TOKENS),
    exact.blocks_law(target, propose, PROMPT, TOKENS, LOOKAHEAD),
  )


@dataclasses.dataclass
class Sample:
  """What the rows of one setting came to."""

  blocks: collections.Counter  # of (tokens, sizes)
  drafted: int = 0
  accepted: int = 0


def draw(engine, every, seed, samples):
  """A Sample for each of the settings, whose rows run side by side."""
  requests = (
    Request(
      id=str(i),
      prompt=PROMPT,
      max_new_tokens=TOKENS,
      sampling=SamplingParams(**settings, seed=(seed << 32) + i),
    )
    for i, settings in zip(
      range(samples * len(every)), itertools.cycle(every), strict=False
    )
  )
  drawn = [Sample(blocks=collections.Counter()) for _ in every]
  sizes = collections.defaultdict(tuple)
  for piece in engine.run(requests):
    if not isinstance(piece, Completion):
      sizes[piece.id] += (len(piece.token_ids),)
      continue
    sample = drawn[int(piece.id) % len(every)]
    sample.blocks[piece.token_ids, sizes.pop(piece.id)] += 1
    sample.drafted += piece.drafted
    sample.accepted += piece.accepted
  for sample in drawn:
    assert sample.blocks.total() == samples
    assert min(len(sizes) for _, sizes in sample.blocks) >= 3
  return drawn


def p_value(counts, law, samples):
  """Of Pearson's chi-squared; cells that expect less than 5 are one cell."""
  if counts.keys() - law.keys():
    return 0.0  # something impossible happened
  expected = np.array(list(law.values())) * samples
  seen = np.array([counts.get(key, 0) for key in law])
  small = expected < 5
  expected = np.append(expected[~small], expected[small].sum())
  seen = np.append(seen[~small], seen[small].sum())
  if expected[-1] < 5:
    least = np.argmin(expected[:-1])
    for cells in (expected, seen):
      cells[least] += cells[-1]
    expected, seen = expected[:-1], seen[:-1]
  statistic = np.sum((seen - expected) ** 2 / expected)
  return stats.chi2.sf(statistic, len(expected) - 1)


def p_values(proposer, settings, sample):
  """Of the joint law of the tokens, and of tokens and blocks."""
  tokens, blocks = laws(proposer, **settings)
  samples = sample.blocks.total()
  return (
    p_value(exact.marginal(sample.blocks, 0), tokens, samples),
    p_value(sample.blocks, blocks, samples),
  )


def check(engines, matrix, seeds):
  """Bonferroni over all tests of all proposers, settings and seeds."""
  tests = []
  for proposer, seed in itertools.product(matrix, seeds):
    every = matrix[proposer]
    drawn = draw(engines(proposer), every, seed, SAMPLES)
    for settings, sample in zip(every, drawn, strict=True):
      # The test means nothing where nothing is kept, or nothing refused.
      assert sample.drafted > SAMPLES
      assert 0.02 < sample.accepted / sample.drafted < 0.98
      both = p_values(proposer, settings, sample)
      for law, p in zip(("tokens", "blocks"), both, strict=True):
        tests.append((p, law, proposer, seed, settings))
  p, *where = min(tests, key=lambda test: test[0])
  print(f"smallest of {len(tests)} p-values: {p:.3g} at {where}")
  assert p * len(tests) > 0.01, where


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
  check(engines, DIAGONAL, seeds=(0,))


def test_block_verification_keeps_the_law():
  """RULES 6, 8a: and keeps more of the drafts than token by token."""
  every = DIAGONAL["draft_model"]
  drawn = {
    verifier: draw(
      make_engine("draft_model", verifier=verifier), every, 0, SAMPLES // 2
    )
    for verifier in (Block(), Rejection())
  }
  for settings, block, token in zip(every, *drawn.values(), strict=True):
    tokens = exact.marginal(block.blocks, 0)
    law, _ = laws("draft_model", **settings)
    assert p_value(tokens, law, SAMPLES // 2) > 0.01
    assert block.accepted / block.drafted > token.accepted / token.drafted


@pytest.mark.long
def test_engine_keeps_the_law_everywhere(engines):
  """RULES 1, 2, 3, 4, 7, 8, 8a, 17, 19: the whole matrix."""
  check(engines, dict.fromkeys(PROPOSERS, EVERY), seeds=(0, 1, 2))


# The test sees what it should: four faults, planted in the product's pieces.

FAULTY = {"temperature": 1.0, "top_p": 0.8}
FAULTY_SAMPLES = 10_000
REJECTED = 1e-6


def p_values_of(engine, proposer):
  (sample,) = draw(engine, [FAULTY], 0, FAULTY_SAMPLES)
  p = p_values(proposer, FAULTY, sample)
  print("p-values of tokens and of blocks: {:.3g}, {:.3g}".format(*p))
  return p


@pytest.mark.parametrize("proposer", PROPOSERS)
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
  monkeypatch.setattr(draft_model, "sampling", types.SimpleNamespace(**pieces))
  tokens, _ = p_values_of(make_engine("draft_model"), "draft_model")
  assert tokens < REJECTED


class BonusAtWidth(Rejection):
  """After a row's own drafts, the bonus of C drafts."""

  def law(self, p, proposal):
    law = super().law(p, proposal)
    own = (jnp.arange(p.shape[0]) == proposal.count)[:, None]
    return dataclasses.replace(
      law, residual=jnp.where(own, law.residual[-1], law.residual)
    )


@pytest.mark.parametrize("proposer", PROPOSERS)
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
