"""Siblings of every proposer that asks a model, on a real decoder.

Greedy rows say what they say plainly, sampled ones keep the laws of tokens and
of blocks: which blocks there are depends on the states that a proposer is
handed, and those of a kept sibling are its own. RULES are the project's list of
what a correct speculative decoder satisfies.
"""

import dataclasses
import functools

import pytest

from specjax.proposers.draft_model import DraftModel
from tests import decoder_laws, exact
from tests.proposers import (
  eagle_test,
  layer_skip_test,
  medusa_test,
  mtp_test,
)

SIBLINGS = 2
KINDS = {
  "eagle": lambda: eagle_test.of_laws(False, True),
  "eagle3": lambda: eagle_test.of_laws(True, False),
  "medusa": lambda: (
    medusa_test.engine("shared, reduced"),
    medusa_test.chains("shared, reduced"),
  ),
  "mtp": lambda: (mtp_test.engine("two"), mtp_test.chains("two")),
  "prefix": lambda: (
    layer_skip_test.engine((0,)),
    decoder_laws.drafts_of((0,)),
  ),
  "subset": lambda: (
    layer_skip_test.engine((1,)),
    decoder_laws.drafts_of((1,)),
  ),
}
LONG = lambda *kinds: [
  pytest.param(kind, marks=pytest.mark.long if kind in kinds else ())
  for kind in (*KINDS, "itself")
]


@functools.cache
def engine(kind):
  """(an engine with siblings, its proposals or None)."""
  if kind == "itself":
    target = decoder_laws.TARGET
    own = DraftModel(
      model=target,
      lookahead=decoder_laws.LOOKAHEAD,
      vocab_size=decoder_laws.VOCAB,
      siblings=SIBLINGS,
    )
    return decoder_laws.engine(own, decoder_laws.PARAMS), None
  made, propose = KINDS[kind]()
  own = dataclasses.replace(made.proposer, siblings=SIBLINGS)
  return decoder_laws.engine(own, made.params.proposer), propose


@pytest.mark.parametrize("kind", LONG("eagle3", "medusa", "mtp", "subset"))
def test_rules_11_16_25_27_rows_are_as_they_are_alone_and_plainly(kind):
  made, _ = engine(kind)
  # Rows that say more in a step have fewer of them to draft in.
  decoder_laws.check_rows(made, least=14)


@pytest.mark.parametrize("kind", LONG("eagle3", "subset")[:-1])
def test_rules_1_2_17_the_laws_of_tokens_and_of_blocks_are_kept(kind):
  made, propose = engine(kind)
  p = decoder_laws.p_values(
    made,
    propose,
    {"temperature": 1.0},
    2500,
    beside=exact.likeliest(SIBLINGS, decoder_laws.LOOKAHEAD),
  )
  assert min(p) > 0.01


@pytest.mark.long
@pytest.mark.parametrize("kind", LONG()[:-1])
def test_the_laws_are_kept_with_many_samples(kind):
  made, propose = engine(kind)
  beside = exact.likeliest(SIBLINGS, decoder_laws.LOOKAHEAD)
  p = decoder_laws.p_values(
    made, propose, {"temperature": 1.0}, 40_000, 1, beside
  )
  assert min(p) > 0.005
