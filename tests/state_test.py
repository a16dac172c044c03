"""What a step commits, and what a proposer is told of it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.engine.request import Completion
from specjax.judging import Judged
from specjax.logprobs import Scores
from specjax.models.base import Output
from specjax.penalties import Penalties
from specjax.proposers.base import Proposal
from specjax.proposers.none import NoProposer
from specjax.sampling import RowSettings
from specjax.state import State
from specjax.types import Array, Block, struct
from specjax.verifiers.base import Verdict
from tests import engines, table_model
from tests.engines import LOOKAHEAD, VOCAB, request

ROWS, WIDTH, SIZE = 4, 4, 16
STOPS = (6, 7, -1)
NOTHING = jnp.zeros((ROWS, WIDTH, 0))
SCORES = Scores(own=jnp.zeros((ROWS, WIDTH)), top_ids=NOTHING, top=NOTHING)
PARAMS = table_model.make_table(VOCAB, seed=17)


def ints(*values):
  return jnp.asarray(values, jnp.int32)


def state(**changes) -> State:
  """Four rows with 0, 2, 4 and 9 tokens in the cache, all of them decoding."""
  model = table_model.TableModel(VOCAB)
  cache = model.init_cache(ROWS, SIZE).at(ints(0, 2, 4, 9))
  old = State(
    cache=cache,
    draft=(),
    last_token=ints(0, 1, 2, 3),
    history=100 + jnp.arange(ROWS * SIZE, dtype=jnp.int32).reshape(ROWS, SIZE),
    committed=Block(
      tokens=jnp.full((ROWS, WIDTH), -5, jnp.int32), count=ints(1, 1, 1, 1)
    ),
    sampling=RowSettings.greedy(ROWS),
    penalties=Penalties.none(ROWS, VOCAB),
    scored=jnp.zeros((ROWS,), bool),
    lookahead=ints(3, 3, 3, 3),
    budget=ints(50, 50, 50, 50),
    active=jnp.ones((ROWS,), bool),
    stop_ids=ints(*STOPS),
  )
  return dataclasses.replace(old, **changes)


@functools.cache
def _commit():
  return jax.jit(
    lambda old, judged, proposal, out: old.commit(
      judged, proposal, out, (), NoProposer(), SCORES
    )
  )


def commit(old, tokens, count, *, bad=(), features=None):
  """Commits what a step drew; `bad` are (row, place) of broken logits."""
  usable = np.ones((ROWS, WIDTH), bool)
  for row, place in bad:
    usable[row, place] = False
  verdict = Verdict(tokens=jnp.asarray(tokens, jnp.int32), count=ints(*count))
  return _commit()(
    old,
    Judged(verdict=verdict, at=None, usable=jnp.asarray(usable)),
    Proposal(
      tokens=jnp.zeros((ROWS, WIDTH - 1), jnp.int32), q=None,
      count=ints(*[WIDTH - 1] * ROWS),
    ),
    Output(logits=None, cache=old.cache, features=features),
  )  # fmt: skip


PLAIN = ((1, 2, 3, 4), (5, 1, 0, 0), (2, 0, 0, 0), (3, 4, 5, 0))
COUNTS = (4, 2, 1, 3)


def test_rule_19_each_row_commits_its_own_count():
  old = state()
  new, emitted = commit(old, PLAIN, COUNTS)
  assert new.cache.length.tolist() == [4, 4, 5, 12]
  assert new.last_token.tolist() == [4, 1, 2, 5]
  assert new.budget.tolist() == [46, 48, 49, 47]
  assert new.active.all() and emitted.active.all()
  for got in (emitted, new.committed):
    assert got.count.tolist() == list(COUNTS)
    for row, count in enumerate(COUNTS):
      assert got.tokens[row, :count].tolist() == list(PLAIN[row][:count])
  assert emitted.drafted.tolist() == [3, 3, 3, 3]
  assert emitted.accepted.tolist() == [3, 1, 0, 2]


def test_history_is_written_behind_the_last_token_and_not_beyond_the_count():
  old = state()
  new, _ = commit(old, PLAIN, COUNTS)
  expected = np.array(old.history)
  for row, (at, count) in enumerate(zip((1, 3, 5, 10), COUNTS, strict=True)):
    expected[row, at : at + count] = PLAIN[row][:count]
  np.testing.assert_array_equal(new.history, expected)


def test_a_row_at_rest_keeps_everything():
  """Idle, finished or prefilling: its history holds a prompt yet to be read,
  its count of 0 must not wrap, and no block of it is ingested.
  """
  features = jnp.arange(ROWS * WIDTH, dtype=jnp.float32)
  features = features.reshape(ROWS, WIDTH, 1)
  active = jnp.asarray([True, False, True, False])
  old = state(active=active)
  old = dataclasses.replace(
    old, committed=dataclasses.replace(old.committed, features=features)
  )
  new, emitted = commit(
    old, PLAIN, COUNTS, bad=[(1, 0), (3, 1)], features=-features
  )
  for row in (1, 3):
    assert emitted.count[row] == new.committed.count[row] == 0
    assert emitted.drafted[row] == emitted.accepted[row] == 0
    assert not emitted.failed[row] and not new.active[row]
    for name in ("last_token", "history", "budget"):
      was, got = getattr(old, name)[row], getattr(new, name)[row]
      np.testing.assert_array_equal(was, got)
    assert new.cache.length[row] == old.cache.length[row]
    np.testing.assert_array_equal(new.committed.features[row], features[row])
  for row, count in ((0, 4), (2, 1)):
    assert emitted.count[row] == count
    np.testing.assert_array_equal(new.committed.features[row], -features[row])


@pytest.mark.parametrize("place", range(WIDTH))
def test_rule_13_a_row_ends_at_its_first_stop_id(place):
  tokens = np.ones((ROWS, WIDTH), np.int32)
  tokens[0, place:] = 6  # and again behind it
  tokens[1, place] = 7  # any of them
  tokens[2, place] = 6  # but row 2 drew only as far as `place`
  new, emitted = commit(state(), tokens, (4, 4, max(place, 1), 4))
  assert new.active.tolist() == [False, False, place > 0, True]
  assert emitted.count.tolist() == [place + 1, place + 1, max(place, 1), 4]
  assert emitted.accepted.tolist()[:2] == [min(place + 1, 3)] * 2
  assert new.last_token.tolist()[:2] == [6, 7]


@pytest.mark.parametrize("budget", range(1, WIDTH + 2))
def test_rule_15_a_row_ends_at_its_budget(budget):
  old = state(budget=ints(budget, budget, budget, 50))
  tokens = [[1, 2, 3, 4], [1, 2, 3, 6], [1, 6, 1, 1], [1, 2, 3, 4]]
  new, emitted = commit(old, tokens, (4, 4, 4, 4))
  count = min(budget, 4)
  assert emitted.count.tolist() == [count, count, min(count, 2), 4]
  assert new.active.tolist() == [budget > 4, False, False, True]
  assert new.budget.tolist() == [
    budget - count,
    budget - count,
    budget - min(count, 2),
    46,
  ]
  assert emitted.accepted.tolist() == [
    min(3, count),
    min(3, count),
    min(count, 2),
    3,
  ]


def test_filler_of_the_stop_ids_stops_nothing():
  tokens = [[0, 1, 2, 3]] * ROWS
  new, _ = commit(state(stop_ids=ints(-1, -1, -1)), tokens, (4, 3, 2, 1))
  assert new.active.all()


def test_rule_5_a_broken_place_fails_its_row_where_it_counts():
  """Row 0 drew from it; row 1 rejected before it, row 2 ended before it."""
  tokens = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 6, 3, 4], [1, 2, 3, 4]]
  bad = [(0, 2), (1, 2), (2, 2)]
  new, emitted = commit(state(), tokens, (3, 2, 4, 4), bad=bad)
  assert emitted.failed.tolist() == [True, False, False, False]
  assert emitted.count.tolist() == [0, 2, 2, 4]
  assert new.active.tolist() == [False, True, False, True]
  assert new.cache.length.tolist()[0] == 0
  old = state(budget=ints(2, 50, 50, 50))
  _, emitted = commit(old, tokens, (3, 2, 4, 4), bad=bad)
  assert not emitted.failed.any()  # the budget ends before it


@struct
class Record:
  """All that a proposer was told: tokens [B, S], features, length [B]."""

  tokens: Array
  features: Array
  length: Array


@dataclasses.dataclass(frozen=True)
class Recorder:
  """An oracle that writes down the tokens and features it ingests."""

  lookahead: int = LOOKAHEAD
  features: tuple[int, ...] = (0, 1)

  def init(self, rows, capacity):
    return Record(
      tokens=jnp.zeros((rows, capacity), jnp.int32),
      features=jnp.zeros((rows, capacity, 2, 2), jnp.float32),
      length=jnp.zeros((rows,), jnp.int32),
    )

  def ingest(self, params, state, block, ctx):
    rows, width = block.tokens.shape
    index = jnp.arange(width, dtype=jnp.int32)
    at = state.length[:, None] + index
    # Out of range is dropped.
    at = jnp.where(index < block.count[:, None], at, state.tokens.shape[1])
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    return Record(
      tokens=state.tokens.at[row, at].set(block.tokens, mode="drop"),
      features=state.features.at[row, at].set(block.features, mode="drop"),
      length=state.length + block.count,
    )

  oracle = table_model.Scripted(lookahead=LOOKAHEAD, vocab_size=VOCAB)

  def draft(self, params, state, ctx):
    return self.oracle.draft(params, state, ctx)

  def promising(self, history, length):
    return jnp.ones(length.shape, bool)


class WithSiblings(Recorder):
  """One that is wrong at times, and right beside."""

  oracle = table_model.Turning(lookahead=LOOKAHEAD, vocab_size=VOCAB)
  siblings = 2


def check_record(record, row, tokens):
  """It is the beginning of `tokens`, each with what predicted it.

  Layer n's state at a token is (that token, n); nothing predicted the first.
  """
  size = int(record.length[row])
  assert record.tokens[row, :size].tolist() == tokens[:size]
  features = np.asarray(record.features[row, :size])
  before = np.asarray(tokens[: max(size - 1, 0)], np.float32)
  for place, layer in enumerate((0, 1)):
    np.testing.assert_array_equal(features[1:, place, 0], before)
    np.testing.assert_array_equal(features[1:, place, 1], layer)
  assert not features[:1].any()
  return size


@pytest.mark.parametrize(
  "whole, recorder",
  ((False, Recorder()), (True, Recorder()), (False, WithSiblings())),
)
def test_features_are_of_the_state_that_predicted_each_token(whole, recorder):
  """Through prefill chunks of every kind, steps and refill; all tokens of a
  row come, once and in order, and those of others never.
  """
  engine = engines.build(
    table_model.TableModel(VOCAB),
    PARAMS,
    recorder,
    PARAMS,
    whole_batch_prefill=whole,
  )
  engine.warmup()
  draws = np.random.default_rng(0)
  rows = [
    request(
      draws.integers(0, VOCAB, 1 + size * 5 % 23),
      size,
      max_new_tokens=9 + size % 8,
      temperature=size % 2,
    )
    for size in range(14)
  ]
  prompts = {row.id: list(row.prompt) for row in rows}
  seen = dict.fromkeys(prompts, 0)
  slots, said = {}, {name: [] for name in prompts}
  for event in engine.run(rows):
    record = jax.device_get(engine.state.draft)
    for slot, running in enumerate(engine._running):
      if running is None:
        continue
      name = running.request.id
      slots[name] = slot
      # What the device committed may be ahead of what was yielded.
      history = np.asarray(engine.state.history[slot])
      length = int(engine.state.cache.length[slot]) + 1
      tokens = history[: max(length, len(prompts[name]))].tolist()
      assert tokens[: len(prompts[name])] == prompts[name]
      seen[name] = max(seen[name], check_record(record, slot, tokens))
    if isinstance(event, Completion):
      whole_row = len(prompts[event.id]) + len(event.token_ids)
      # All but what the last step committed.
      assert seen[event.id] >= whole_row - (LOOKAHEAD + 1)
    else:
      said[event.id] += event.token_ids
  assert len(set(slots.values())) == engine.slots
  for row in rows:
    if not row.sampling.temperature:
      expected = table_model.greedy(PARAMS, row.prompt, row.max_new_tokens)
      assert said[row.id] == expected


def test_a_proposer_of_features_rests_while_the_plain_program_runs():
  engine = engines.build(
    table_model.TableModel(VOCAB), PARAMS, Recorder(), PARAMS
  )
  done = engines.complete(
    engine,
    [request((1, 2), "plain", lookahead=0), request((1, 2, 3, 4), "next")],
  )
  for name, prompt in (("plain", (1, 2)), ("next", (1, 2, 3, 4))):
    expected = table_model.greedy(PARAMS, prompt, 20)
    assert done[name].token_ids == tuple(expected)
