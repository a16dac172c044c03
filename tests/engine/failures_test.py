"""Logits that are not numbers fail their own row only (RULES.md 5)."""

import dataclasses

import jax.numpy as jnp
import pytest

from specjax.proposers.draft_model import DraftModel
from tests import engines, table_model
from tests.engines import LOOKAHEAD, VOCAB, request

BAD = 5  # the token after which a model below is broken
STOP = BAD - 1
COUNTING = engines.counting_table()
RANDOM = table_model.make_table(VOCAB, seed=11)
VALUES = (float("nan"), float("inf"), float("-inf"))
LONG = (0, 1, 2, 3) * 6


@dataclasses.dataclass(frozen=True)
class Fragile(table_model.TableModel):
  """A table that, as attention does, adds up what a position may see.

  Its cache keeps a value of 0 for a token, or NaN where the table is broken
  for it in every context; all values have a part in the sum, the masked ones
  of weight 0.
  """

  def __call__(self, params, tokens, cache, features=(), *, last=None):
    out = super().__call__(params, tokens, cache, features, last=last)
    keys = (tokens + 1).astype(jnp.float32)[:, :, None, None]
    values = (params[0][0, 0, tokens, 0] * 0)[:, :, None, None]
    cache = cache.write(0, keys, values)
    slots = jnp.arange(cache.capacity, dtype=jnp.int32)
    width = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    seen = slots <= (cache.length[:, None] + width)[..., None]  # B T S
    scores = jnp.where(seen, cache.k[0, :, :, :, 0], 0)
    leak = jnp.sum(scores * 0 + cache.v[0, :, :, :, 0] * 0, axis=-1)
    leak = leak[..., None]
    if last is not None:
      leak = jnp.take_along_axis(leak, last[:, None, None], axis=1)
    logits = out.logits + leak
    return dataclasses.replace(out, logits=logits, cache=cache)


def broken(params, value, *, token=BAD, cache=True):
  """The table with `value` for all logits after a token.

  Where `cache` is false, the token leaves no NaN in the cache.
  """
  (table,) = params
  first = 0 if cache else 1
  return (table.at[:, first:, token].set(value),)


def make(params, draft_params, **options):
  model = Fragile(VOCAB)
  proposer = DraftModel(model=model, lookahead=LOOKAHEAD, vocab_size=VOCAB)
  return engines.build(model, params, proposer, draft_params, **options)


# Counts as the target does, but never drafts the broken token: the target
# would read it, and its pass be broken.
SKIPPING = (COUNTING[0].at[:, :, STOP, BAD + 1].add(40.0),)
GOOD = {
  "short": (6,),
  "one to go": (STOP - 1,),
  "long": LONG,
  "sampled": (1, 7),
}
FAILING = {
  "alone": (BAD,),
  "first": (BAD, 1, 2),
  "last": (1, 2, BAD),
  "inside": (0, 1, 2, BAD, *LONG),
  "deep": (*LONG, BAD, 0, 1),
}


def counted(first, count=20):
  return tuple((first + 1 + index) % VOCAB for index in range(count))


def check(engine, bad=FAILING):
  """Failing rows between good ones, more of them than slots."""
  rows = []
  for index in range(3):
    for name, prompt in GOOD.items():
      temperature = 1.0 if name == "sampled" else 0.0
      rows.append(request(prompt, f"{name} {index}", temperature=temperature))
    for name, prompt in bad.items():
      rows.append(request(prompt, f"bad {name} {index}", temperature=index))
  done = engines.complete(engine, rows)
  assert len(done) == len(rows)
  for row in rows:
    got = done[row.id]
    if row.id.startswith("bad"):
      assert (got.finish_reason, got.token_ids) == ("error", ())
      assert "not finite" in got.error
      assert f"after {len(row.prompt)} prompt tokens" in got.error
    else:
      expected = counted(row.prompt[-1])
      expected = expected[: expected.index(STOP) + 1]
      assert got.error is None and got.token_ids == expected, row.id


@pytest.mark.parametrize("value", VALUES)
def test_rule_5_a_row_with_broken_logits_fails_by_name_and_alone(value):
  """Its neighbours, and its slot's next request, are right."""
  engine = make(broken(COUNTING, value), SKIPPING, stop_ids=(STOP, 1000))
  check(engine)
  check(engine)  # the caches that the first run left


def test_rule_5_the_next_request_of_a_failed_slot_is_right():
  nan = broken(COUNTING, float("nan"))
  engine = make(nan, SKIPPING, stop_ids=(STOP, 1000))
  for prompt, right in (((*LONG, BAD, 0, 1), False), ((6,), True)):
    done = engines.complete(
      engine, [request(prompt, slot) for slot in range(engine.slots)]
    )
    for row in done.values():
      assert row.token_ids == ((7, 0, 1, 2, 3, STOP) if right else ())
      assert (row.error is None) == right


@pytest.mark.parametrize("cache", (True, False))
@pytest.mark.parametrize("value", VALUES)
def test_rule_5_a_row_that_breaks_midway_keeps_what_was_right(value, cache):
  engine = make(broken(COUNTING, value, cache=cache), COUNTING)
  for lookahead in (0, 1, LOOKAHEAD):
    row = request((0,), max_new_tokens=20, lookahead=lookahead)
    got = engines.complete(engine, [row])["0"]
    assert got.finish_reason == "error" and "not finite" in got.error
    assert got.token_ids == tuple(range(1, len(got.token_ids) + 1))
    assert len(got.token_ids) <= BAD
    assert f"{len(got.token_ids)} of output" in got.error
    if not lookahead:
      assert got.token_ids == tuple(range(1, BAD + 1))


@pytest.mark.parametrize("value", VALUES)
def test_rule_5_what_lies_behind_the_end_of_a_row_cannot_fail_it(value):
  """A block goes on after the end token; plain decoding never looks there."""
  params = broken(COUNTING, value, cache=False)
  engine = make(params, COUNTING, stop_ids=(BAD, 1000))
  for first in range(BAD):
    for lookahead in (0, LOOKAHEAD):
      row = request((first,), lookahead=lookahead)
      got = engines.complete(engine, [row])["0"]
      assert got.token_ids == tuple(range(first + 1, BAD + 1))
      assert got.finish_reason == "stop"


@pytest.mark.parametrize("value", VALUES)
def test_rule_5_what_lies_behind_a_rejected_draft_cannot_fail_a_row(value):
  params = broken(COUNTING, value, cache=False)
  skip = (jnp.roll(COUNTING[0], 1, axis=-1),)  # drafts BAD after STOP - 1
  engine = make(params, skip, stop_ids=(STOP, 1000))
  for first in range(STOP):
    got = engines.complete(engine, [request((first,))])["0"]
    assert got.token_ids == tuple(range(first + 1, STOP + 1))


SETTINGS = {
  "greedy": dict(),
  "sampled": dict(temperature=1.0, seed=3),
  "filtered": dict(temperature=2.0, top_p=0.8, top_k=5),
}


def both(engine, prompts):
  """Completions of the drafting and of the lookahead-0 path."""
  found = []
  for lookahead in (LOOKAHEAD, 0):
    rows = [
      request(prompt, f"{index} {name}", lookahead=lookahead, **settings)
      for index, prompt in enumerate(prompts)
      for name, settings in SETTINGS.items()
    ]
    found.append(engines.complete(engine, rows))
  return found


@pytest.mark.parametrize("value", VALUES)
def test_rule_5_a_draft_that_is_never_a_number_changes_nothing(value):
  """Nothing is drafted, so sampled rows too are the plain path's."""
  draft = (jnp.full_like(RANDOM[0], value),)
  drafting, plain = both(make(RANDOM, draft), [(1,), (2, 3), LONG])
  for name, row in drafting.items():
    assert row.token_ids == plain[name].token_ids
    assert (row.drafted, row.error) == (0, None)
    if name.endswith("greedy"):
      prompt = [(1,), (2, 3), LONG][int(name[0])]
      expected = table_model.greedy(RANDOM, prompt, 20)
      assert row.token_ids == tuple(expected)


@pytest.mark.parametrize("cache", (True, False))
@pytest.mark.parametrize("value", VALUES)
def test_rule_5_a_draft_that_breaks_midway_never_leaks_a_token(value, cache):
  """It proposes what came before, and the target goes on alone."""
  draft = broken(COUNTING, value, cache=cache)
  for first in range(VOCAB):
    engine = make(COUNTING, draft)
    row = engines.complete(engine, [request((first,), temperature=0.5)])["0"]
    assert (row.token_ids, row.error) == (counted(first), None)
    assert row.drafted == row.accepted == 20 - row.steps
    assert row.steps > -(-20 // (LOOKAHEAD + 1))
    # Only a prompt that begins with the broken token breaks it for good.
    assert row.drafted or (cache and first == BAD)


def test_rule_11_a_slot_whose_draft_broke_drafts_for_its_next_request():
  engine = make(COUNTING, broken(COUNTING, float("nan")))
  prompt = (*LONG, BAD, 0, 1)
  engines.complete(engine, [request(prompt, slot) for slot in range(3)])
  row = engines.complete(engine, [request((6,), max_new_tokens=5)])["0"]
  assert row.drafted == 4


def test_rule_14_text_held_back_when_a_row_breaks_is_streamed_too():
  """`complete` holds the streamed pieces to the completion's text."""
  letters = engines.Letters()
  engine = make(broken(COUNTING, float("nan")), SKIPPING, tokenizer=letters)
  # The last letter before the break may begin the stop string.
  stop = letters.decode([BAD, BAD])
  got = engines.complete(engine, [request((0,), stop=(stop,), lookahead=0)])
  (row,) = got.values()
  assert row.finish_reason == "error" and row.token_ids[-1] == BAD
  assert row.text == letters.decode(row.token_ids)
