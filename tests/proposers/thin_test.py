"""Draft models that take their ends from the target, or propose some ids.

RULES are the project's list of what a correct speculative decoder satisfies.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from specjax.models import decoder
from specjax.models.heads import thin
from specjax.proposers.draft_model import DraftModel
from tests import engines
from tests.engines import LOOKAHEAD, request
from tests.models.heads import tiny

SMALL = dict(num_hidden_layers=1)  # compiles sooner
ENDS = ("embed.weight", "head.weight")


@functools.cache
def draft(is_thin, reduced):
  """(model, params): the target's own layers, without or with its ends."""
  target, target_params = tiny.target(**SMALL)
  config = thin.ThinConfig(
    decoder=target.config,
    is_thin=is_thin,
    draft_vocab=tiny.KEPT if reduced else None,
  )
  model = thin.build(config, target)
  given = dict(zip(target.paths, target_params, strict=True))
  own = tuple(given[path] for path in model.head.paths)
  kept = tiny.kept_ids() if reduced else None
  return model, model.complete(own, target_params, kept)


def engine(is_thin, reduced):
  target, target_params = tiny.target(**SMALL)
  model, params = draft(is_thin, reduced)
  proposer = DraftModel(
    model=model, lookahead=LOOKAHEAD, vocab_size=target.vocab_size
  )
  return engines.build(
    *(target, target_params, proposer, params),
    slots=2,
    capacity=40,
    prefill_widths=(8,),
  )


def rows():
  draws = np.random.default_rng(0)
  return [
    request(
      draws.integers(0, tiny.VOCAB, size),
      size,
      max_new_tokens=11,
      temperature=size % 2,
      presence_penalty=(0.0, 0.5)[size % 3 == 0],
    )
    for size in (1, 2, 7, 8, 9, 20)
  ]


def test_rule_17_a_thin_draft_of_the_targets_layers_accepts_everything():
  model, params = draft(True, False)
  assert not set(ENDS) & set(model.head.paths)
  assert [p.shape for p in params] == [spec.shape for spec in model.shapes]
  done = engines.complete(engine(True, False), rows())
  for row in done.values():
    assert row.accepted == row.drafted > 0
    assert row.steps == -(-11 // (LOOKAHEAD + 1))


def test_rules_2_25_a_reduced_vocabulary_proposes_its_ids_and_no_others():
  """The target's other ids still come out, and what is drafted is accepted
  just where the target says one of the kept ids."""
  made, kept = engine(True, True), tiny.kept_ids()
  done = engines.complete(made, rows())
  plain = [dataclasses.replace(row, lookahead=0) for row in rows()]
  plainly = engines.complete(made, plain)
  said = set()
  for row in rows():
    got = done[row.id]
    said |= set(got.token_ids)
    if not row.sampling.temperature:
      assert got.token_ids == plainly[row.id].token_ids
    outside = sum(token not in kept for token in got.token_ids)
    assert got.steps >= outside
    if not row.sampling.temperature:
      assert got.accepted >= len(got.token_ids) - got.steps
  assert said - set(kept.tolist())
  assert sum(row.accepted for row in done.values()) > 10


def test_a_reduced_draft_with_ends_of_its_own_computes_the_same():
  target, target_params = tiny.target(**SMALL)
  tokens = jnp.asarray([[1, 2, 3, 4]], jnp.int32)
  whole = target(target_params, tokens, None).logits
  for is_thin in (True, False):
    model, params = draft(is_thin, True)
    out = model(params, target_params, tokens, None).logits
    theirs = whole[..., tiny.kept_ids()]
    np.testing.assert_allclose(np.asarray(out), np.asarray(theirs), atol=1e-5)
  model, params = draft(False, True)
  assert set(ENDS) <= set(model.head.paths)


def test_a_thin_draft_with_a_head_of_its_own_reads_no_row_of_the_targets():
  target, target_params = tiny.target(**SMALL)
  kept = tiny.kept_ids()
  config = thin.ThinConfig(
    decoder=target.config,
    is_thin=True,
    draft_vocab=tiny.KEPT,
    own_head=True,
  )
  model = thin.build(config, target)
  assert set(ENDS) & set(model.head.paths) == {"head.weight"}
  given = dict(zip(target.paths, target_params, strict=True))
  given["head.weight"] = given["head.weight"][kept] * 2
  own = tuple(given[path] for path in model.head.paths)
  params = model.complete(own, target_params, kept)
  assert [p.shape for p in params] == [spec.shape for spec in model.shapes]
  tokens = jnp.asarray([[1, 2, 3, 4]], jnp.int32)
  whole = target(target_params, tokens, None).logits
  found = model(params, target_params, tokens, None).logits
  np.testing.assert_allclose(found, 2 * whole[..., kept], atol=1e-5)
  # And an engine decodes with it what it decodes alone.
  proposer = DraftModel(
    model=model, lookahead=LOOKAHEAD, vocab_size=target.vocab_size
  )
  made = engines.build(
    *(target, target_params, proposer, params),
    slots=2,
    capacity=40,
    prefill_widths=(8,),
  )
  greedy = [row for row in rows() if not row.sampling.temperature]
  done = engines.complete(made, greedy)
  plainly = engines.complete(
    made, [dataclasses.replace(row, lookahead=0) for row in greedy]
  )
  for row in greedy:
    assert done[row.id].token_ids == plainly[row.id].token_ids
  assert sum(row.accepted for row in done.values()) > 5


def test_sizes_that_do_not_fit_are_named():
  target, _ = tiny.target(**SMALL)
  other = decoder.build(dataclasses.replace(target.config, vocab_size=9))
  config = thin.ThinConfig(decoder=target.config, is_thin=True)
  for made, said in (
    (lambda: thin.build(config, other), "vocab_size 24, and this one's is 9"),
    (
      lambda: thin.build(
        dataclasses.replace(config, is_thin=False, draft_vocab=12), other
      ),
      "proposes 12 ids",
    ),
  ):
    try:
      made()
    except ValueError as error:
      assert said in str(error)
    else:
      raise AssertionError(said)
