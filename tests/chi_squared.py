"""Chi-squared of the whole engine on exact joint laws of a table model.

Each sample is one request through the engine: 2C + 3 tokens, one more than two
full blocks, so that every row takes at least three steps. Two laws are tested,
both enumerated (see exact.py): the joint law of the tokens, and the joint law
of tokens and the sizes of the blocks they came in. The second one sees what
exactness hides: a draft other than the one it should be.
"""

import collections
import dataclasses
import functools
import itertools

import numpy as np
from scipy import stats

from specjax.engine.loop import Engine
from specjax.engine.request import Completion, Request, SamplingParams
from specjax.proposers import draft_model
from specjax.proposers.ngram import Ngram
from specjax.verifiers.rejection import Rejection
from tests import exact
from tests.table_model import TableModel, make_table

VOCAB, LOOKAHEAD = 3, 2
TOKENS = 2 * LOOKAHEAD + 3
SAMPLES = 100_000
# The end of the prompt was there before, so that lookup has something to copy.
PROMPT = (0, 1, 2, 0, 1)
TARGET, DRAFT = make_table(VOCAB, 1), make_table(VOCAB, 0)
PROPOSERS = ("draft_model", "ngram")


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
def laws(proposer, prompt=PROMPT, **settings):
  """The exact laws of a row: {tokens: p}, {(tokens, sizes): p}."""
  target = exact.Chain(TARGET, settings, len(prompt))
  if proposer == "draft_model":
    propose = exact.drafts(exact.Chain(DRAFT, settings, len(prompt)))
  else:
    propose = exact.lookups()
  return (
    exact.tokens_law(target, prompt, TOKENS),
    exact.blocks_law(target, propose, prompt, TOKENS, LOOKAHEAD),
  )


@dataclasses.dataclass
class Sample:
  """What the rows of one setting came to."""

  blocks: collections.Counter  # of (tokens, sizes)
  drafted: int = 0
  accepted: int = 0


def draw(engine, every, seed, samples, prompt=PROMPT):
  """A Sample for each of the settings, whose rows run side by side."""
  requests = (
    Request(
      id=str(i),
      prompt=prompt,
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


def p_values(proposer, settings, sample, prompt=PROMPT):
  """Of the joint law of the tokens, and of tokens and blocks."""
  tokens, blocks = laws(proposer, prompt, **settings)
  samples = sample.blocks.total()
  return (
    p_value(exact.marginal(sample.blocks, 0), tokens, samples),
    p_value(sample.blocks, blocks, samples),
  )


def check(engines, matrix, seeds, samples=SAMPLES, prompt=PROMPT):
  """Bonferroni over all tests of all proposers, settings and seeds."""
  tests = []
  for proposer, seed in itertools.product(matrix, seeds):
    every = matrix[proposer]
    drawn = draw(engines(proposer), every, seed, samples, prompt)
    for settings, sample in zip(every, drawn, strict=True):
      # The test means nothing where nothing is kept, or nothing refused.
      assert sample.drafted > samples
      assert 0.02 < sample.accepted / sample.drafted < 0.98
      both = p_values(proposer, settings, sample, prompt)
      for law, p in zip(("tokens", "blocks"), both, strict=True):
        tests.append((p, law, proposer, seed, settings))
  p, *where = min(tests, key=lambda test: test[0])
  print(f"smallest of {len(tests)} p-values: {p:.3g} at {where}")
  assert p * len(tests) > 0.01, where
