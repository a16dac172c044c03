"""A draft model agrees with the committed prefix, always (RULES.md 17, 26)."""

import dataclasses
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.checkpoints import hf
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.proposers.draft_model import DraftModel
from tests import engines, table_model
from tests.engines import LOOKAHEAD, VOCAB, request

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
PARAMS = table_model.make_table(VOCAB, seed=13)
# 1.0 is sampled as well: q = p, so every ratio is 1, up to rounding.
SETTINGS = (
  dict(),
  dict(temperature=1.0),
  dict(temperature=2.0, top_p=0.8),
  dict(temperature=0.7, top_k=3, min_p=0.05),
)


def rows(vocab=VOCAB, sizes=range(1, 41)):
  """Prompts of many lengths, greedy beside sampled, lookaheads mixed."""
  draws = np.random.default_rng(0)
  return [
    request(
      draws.integers(0, vocab, size),
      f"row {size}",
      max_new_tokens=5 + size % 17,
      lookahead=(None, LOOKAHEAD, 3, 2, 1)[size % 5],
      **SETTINGS[size % len(SETTINGS)],
    )
    for size in sizes
  ]


def draft_accepted_whole(done, requests):
  """Whether nothing was rejected, so each step emitted all it could."""
  for row in requests:
    got = done[row.id]
    width = LOOKAHEAD if row.lookahead is None else row.lookahead
    steps = -(-row.max_new_tokens // (width + 1))
    if got.accepted < got.drafted or got.steps != steps:
      return False
  return True


@pytest.mark.parametrize("steps", (1, 3))
def test_rule_17_a_model_drafting_for_itself_accepts_everything(steps):
  engine = engines.make("itself", PARAMS, steps_per_sync=steps)
  for order in (rows(), rows()[::-1]):
    assert draft_accepted_whole(engines.complete(engine, order), order)


def test_rule_17_so_it_does_with_prompts_prefilled_together():
  engine = engines.make("itself", PARAMS, whole_batch_prefill=True)
  assert draft_accepted_whole(engines.complete(engine, rows()), rows())


def table_draft(**changes):
  fields = dict(
    model=table_model.TableModel(VOCAB), lookahead=LOOKAHEAD, vocab_size=VOCAB
  )
  return {**fields, **changes}


class Behind(DraftModel):
  """A planted fault: after full acceptance the last draft is not read."""

  def ingest(self, params, state, block, ctx):
    full = block.count == self.lookahead + 1
    count = block.count - full.astype(jnp.int32)
    block = dataclasses.replace(block, count=count)
    return super().ingest(params, state, block, ctx)


def test_rule_17_a_draft_cache_left_behind_is_seen():
  """The test above fails for the classic bug; the output stays right."""
  target = table_model.TableModel(VOCAB)
  engine = engines.build(target, PARAMS, Behind(**table_draft()), PARAMS)
  done = engines.complete(engine, rows())
  assert not draft_accepted_whole(done, rows())
  for row in rows():
    if not row.sampling.temperature:
      expected = table_model.greedy(PARAMS, row.prompt, row.max_new_tokens)
      assert done[row.id].token_ids == tuple(expected)


def test_rule_17_a_real_decoder_drafting_for_itself_accepts_everything():
  """Prompts over several chunks and two attention blocks; refill."""
  folder = GOLDENS / "llama_tied"
  config = config_lib.from_hugging_face(hf.read_config(folder))
  model = decoder.build(config)
  params = hf.load_params(folder, model)
  proposer = DraftModel(
    model=model, lookahead=LOOKAHEAD, vocab_size=model.vocab_size
  )
  engine = engines.build(
    model,
    params,
    proposer,
    params,
    slots=3,
    capacity=200,
    prefill_widths=(32,),
  )
  made = rows(model.vocab_size, (1, 2, 5, 31, 32, 33, 34, 70, 126, 131, 150))
  done = engines.complete(engine, made)
  drafted = sum(row.drafted for row in done.values())
  accepted = sum(row.accepted for row in done.values())
  # Wide and single passes differ in rounding: a tie may go either way.
  assert accepted >= drafted - 1 > 60
  plain = [dataclasses.replace(row, lookahead=0) for row in made]
  for name, row in engines.complete(engine, plain).items():
    if not plain[[r.id for r in plain].index(name)].sampling.temperature:
      assert row.token_ids == done[name].token_ids


def padded(size):
  """The table for a vocabulary of another size, junk in the padding."""
  (table,) = PARAMS
  if size <= VOCAB:
    # Row V of the table, for "nothing before", stays the last.
    rows = jnp.asarray([*range(size), VOCAB])
    return (table[:, rows][:, :, :size, :size],)
  more = size - VOCAB
  wide = jnp.full((2, size + 1, size, size), 50.0)  # the padding's logits
  wide = wide.at[:, :VOCAB, :VOCAB, :VOCAB].set(table[:, :VOCAB])
  wide = wide.at[:, size, :VOCAB, :VOCAB].set(table[:, VOCAB])
  assert more > 0
  return (wide,)


@pytest.mark.parametrize(
  "size", (VOCAB - 2, pytest.param(VOCAB + 3, marks=pytest.mark.long))
)
def test_rule_26_a_draft_of_another_padded_size_is_still_itself(size):
  """Of a larger one the padding is cut off, its logits whatever they are; a
  smaller one never proposes what it lacks.
  """
  (table,) = PARAMS
  real = min(size, VOCAB)
  # Ids from `real` on are padding of the target too.
  target = (table.at[..., real:].set(-jnp.inf),)
  draft = table_draft(model=table_model.TableModel(size))
  engine = engines.build(
    table_model.TableModel(VOCAB), target, DraftModel(**draft), padded(size)
  )
  made = rows(real, range(1, 21))
  done = engines.complete(engine, made)
  assert draft_accepted_whole(done, made)
  for row in made:
    got = done[row.id].token_ids
    assert max(got) < real
    if not row.sampling.temperature:
      expected = table_model.greedy(target, row.prompt, row.max_new_tokens)
      assert got == tuple(expected)


def test_rule_26_what_a_smaller_draft_lacks_the_target_still_says():
  """The target's whole vocabulary comes out, not the draft's."""
  size = VOCAB - 2
  draft = table_draft(model=table_model.TableModel(size))
  engine = engines.build(
    table_model.TableModel(VOCAB), PARAMS, DraftModel(**draft), padded(size)
  )
  made = [request((id % size,), id, temperature=id % 2) for id in range(12)]
  done = engines.complete(engine, made)
  assert {t for row in done.values() for t in row.token_ids} == set(
    range(VOCAB)
  )
  for row in made:
    if not row.sampling.temperature:
      expected = table_model.greedy(PARAMS, row.prompt, row.max_new_tokens)
      assert done[row.id].token_ids == tuple(expected)
