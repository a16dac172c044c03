"""The engine's loop: refill, laziness, streaming, counts, breaking off."""

import numpy as np
import pytest

from specjax.engine.request import Chunk, Completion
from tests import engines, table_model
from tests.engines import VOCAB, request

PARAMS = table_model.make_table(VOCAB, seed=5)
COUNTING = engines.counting_table()


def expected(prompt, count=20):
  return tuple(table_model.greedy(PARAMS, prompt, count))


def many(count, **settings):
  """Rows of unequal lengths, so that slots fall free one by one."""
  return [
    request(
      tuple((index * step + step) % VOCAB for step in range(1 + index % 13)),
      index,
      max_new_tokens=1 + index * 7 % 23,
      **settings,
    )
    for index in range(count)
  ]


@pytest.mark.parametrize("kind", ("oracle", "sampled", "none"))
def test_more_requests_than_slots_are_all_answered_right(kind):
  engine = engines.make(kind, PARAMS)
  rows = many(40)
  done = engines.complete(engine, rows)
  assert len(done) == 40
  for row in rows:
    tokens = expected(row.prompt, row.max_new_tokens)
    assert done[row.id].token_ids == tokens
    assert done[row.id].prompt_tokens == len(row.prompt)


def test_no_requests_are_no_events():
  assert list(engines.make("oracle", PARAMS).run([])) == []


def test_requests_are_pulled_only_as_slots_fall_free():
  engine = engines.make("oracle", PARAMS)
  pulled, finished = [], 0

  def requests():
    for row in many(12):
      # One slot is free for it, and nothing was pulled ahead.
      assert len(pulled) - finished < engine.slots
      pulled.append(row.id)
      yield row

  events = engine.run(requests())
  assert pulled == []  # nothing happens before it is asked for
  for event in events:
    finished += isinstance(event, Completion)
  assert len(pulled) == finished == 12


def test_a_refused_request_does_not_wait_for_a_slot():
  """Nor does it take one: the requests behind it are pulled at once."""
  engine = engines.make("oracle", PARAMS)
  rows = [request((), "bad"), request((1,), "one"), request((99,), "range")]
  rows += [request((2,), "two"), request((3,), "three")]
  done = engines.complete(engine, rows)
  assert set(done) == {row.id for row in rows}
  first = next(engine.run(iter([request((), "bad")])))
  assert (first.id, first.finish_reason) == ("bad", "error")


def test_a_run_of_bad_requests_ends():
  engine = engines.make("oracle", PARAMS)
  done = engines.complete(engine, [request((), n) for n in range(10)])
  assert {row.finish_reason for row in done.values()} == {"error"}
  assert len(done) == 10


@pytest.mark.parametrize("kind", ("oracle", "sampled", "none"))
@pytest.mark.parametrize("events", (0, 1, 4, 11))
def test_closing_a_run_midway_frees_the_engine(kind, events):
  """And leaves nothing of its rows to the next run."""
  engine = engines.make(kind, PARAMS)
  first = engine.run(many(30, temperature=1.0))
  for _ in range(events):
    next(first)
  first.close()
  rows = many(9)
  done = engines.complete(engine, rows)
  assert set(done) == {row.id for row in rows}
  for row in rows:
    assert done[row.id].token_ids == expected(row.prompt, row.max_new_tokens)


def test_requests_that_raise_end_the_run_and_free_the_engine():
  engine = engines.make("oracle", PARAMS)

  def requests():
    yield from many(4)
    raise OSError("the file went away")

  with pytest.raises(OSError, match="went away"):
    list(engine.run(requests()))
  done = engines.complete(engine, [request((1, 2))])
  assert done["0"].token_ids == expected((1, 2))


def test_two_runs_at_once_are_refused():
  engine = engines.make("oracle", PARAMS)
  first = engine.run(many(5))
  next(first)
  with pytest.raises(RuntimeError, match="running already"):
    next(engine.run(many(1)))
  # The first is not disturbed by it.
  rest = [event for event in first if isinstance(event, Completion)]
  assert len(rest) == 5
  assert engines.complete(engine, many(1))


@pytest.mark.parametrize("steps", (1, 3))
def test_chunks_come_as_they_are_decoded_and_add_up(steps):
  """engines.complete checks that they add up; here: that they stream."""
  engine = engines.make(
    "oracle", PARAMS, tokenizer=engines.Letters(), steps_per_sync=steps
  )
  row = request((1, 2), max_new_tokens=17)
  *chunks, last = engine.run([row])
  assert all(isinstance(chunk, Chunk) for chunk in chunks)
  sizes = [len(chunk.token_ids) for chunk in chunks]
  assert sizes == [5, 5, 5, 2]  # C + 1 of an oracle, and what is left
  assert isinstance(last, Completion)
  assert last.text == engines.Letters().decode(expected((1, 2), 17))
  assert last.token_ids == expected((1, 2), 17)
  assert last.steps == 4
  engines.complete(engine, many(20))


def test_times_are_of_each_token():
  done = engines.complete(engines.make("oracle", PARAMS), many(8))
  for row in done.values():
    assert row.ttft_s == row.token_times_s[0] > 0
    assert len(set(row.token_times_s)) == row.steps  # one arrival a step


@pytest.mark.parametrize("kind", engines.DRAFTERS)
def test_rule_30_drafted_and_accepted_add_up_per_position(kind):
  """engines.check_counts does the sums; here: against what is known."""
  engine = engines.make(kind, PARAMS)
  rows = many(20, temperature=0.0) + [
    request((1, 2), f"sampled {n}", temperature=1.0) for n in range(10)
  ]
  done = engines.complete(engine, rows)
  for row in rows:
    got = done[row.id]
    # Each step emits what it accepts and one token more.
    assert len(got.token_ids) == got.accepted + got.steps
    if kind == "none":
      assert (got.drafted, got.drafted_per_position) == (0, ())
    if kind == "itself" or (kind == "oracle" and not row.sampling.temperature):
      assert got.accepted_per_position == got.drafted_per_position
    if kind == "wrong" and not row.sampling.temperature:
      assert got.accepted == 0
      assert got.steps == len(got.token_ids)
    if kind in ("oracle", "wrong", "sampled", "itself"):
      # A step drafts C, or all but the last that the budget allows.
      assert got.drafted_per_position[0] >= got.steps - 1


def test_rule_30_counts_stop_at_the_end_token():
  """A block accepts 3 drafts; the second is the end."""
  engine = engines.make("oracle", COUNTING, stop_ids=(3, 1000))
  row = engines.complete(engine, [request((1,))])["0"]
  assert row.token_ids == (2, 3)
  assert row.accepted_per_position == (1, 1, 0, 0)
  assert row.drafted_per_position == (1, 1, 1, 1)


def calls(engine):
  """Counts the engine's steps: [plain, speculative]."""
  seen, step = [0, 0], engine._step

  def counted(speculate):
    seen[speculate] += 1
    return step(speculate)

  engine._step = counted
  return seen


@pytest.mark.parametrize("kind", ("oracle", "itself", "ngram"))
def test_rows_of_lookahead_0_run_the_plain_program(kind):
  engine = engines.make(kind, PARAMS)
  seen = calls(engine)
  done = engines.complete(engine, many(8, lookahead=0))
  assert seen[True] == 0 < seen[False]
  assert all(row.drafted == 0 for row in done.values())
  for row in many(8):
    tokens = expected(row.prompt, row.max_new_tokens)
    assert done[row.id].token_ids == tokens


def test_a_row_of_lookahead_0_rides_along_with_one_that_drafts():
  engine = engines.make("itself", PARAMS)
  seen = calls(engine)
  rows = [
    request((1, 2), "plain", lookahead=0, max_new_tokens=40),
    request((3, 4), "two", lookahead=2, max_new_tokens=12),
    request((5,), "all", max_new_tokens=10),
  ]
  done = engines.complete(engine, rows)
  for row in rows:
    assert done[row.id].token_ids == expected(row.prompt, row.max_new_tokens)
  assert done["plain"].drafted == 0
  assert done["two"].drafted_per_position == (4, 4, 0, 0)
  assert done["all"].drafted_per_position == (2, 2, 2, 2)
  # While any row drafts; then the plain row is alone.
  assert seen == [36, 4]


def test_a_draft_model_is_up_to_date_after_plain_steps_of_others():
  """Plain steps leave the proposer's state alone; new rows fill theirs."""
  engine = engines.make("itself", PARAMS, slots=3)
  for _ in range(2):
    rows = [request((1, 2), "plain", lookahead=0, max_new_tokens=60)]
    rows += many(12)
    done = engines.complete(engine, rows)
    for row in rows[1:]:
      got = done[row.id]
      assert got.drafted == got.accepted == row.max_new_tokens - got.steps


@pytest.mark.parametrize(
  "option", ({"slots": 0}, {"capacity": 0}, {"steps_per_sync": -1})
)
def test_rule_28_sizes_that_mean_nothing_are_refused(option):
  ((name, value),) = option.items()
  with pytest.raises(ValueError, match=f"{name} is {value}"):
    engines.make("none", PARAMS, **option)


def test_rows_long_and_short_share_chunks_and_slots():
  """Prompts of every length around the chunk widths."""
  for whole in (False, True):
    engine = engines.make("sampled", PARAMS, whole_batch_prefill=whole)
    draws = np.random.default_rng(1)
    prompts = [tuple(draws.integers(0, VOCAB, n)) for n in range(1, 36)]
    rows = [
      request(prompt, n, max_new_tokens=7) for n, prompt in enumerate(prompts)
    ]
    done = engines.complete(engine, rows)
    for row in rows:
      assert done[row.id].token_ids == expected(row.prompt, 7)


def test_an_engine_interrupted_inside_a_step_goes_on_with_the_next_run():
  """Ctrl-C in a notebook may land after the state was given away."""
  engine = engines.make("sampled", PARAMS)
  rows = [request((1, 2, 3), str(index)) for index in range(3)]
  expected = engines.complete(engine, rows)
  step = engine._step

  def interrupted(speculate):
    step(speculate)  # ... whose result is lost
    engine.state = before
    raise KeyboardInterrupt

  events = engine.run(rows)
  next(events)
  before = engine.state
  engine._step = interrupted
  with pytest.raises(KeyboardInterrupt):
    list(events)
  engine._step = step
  assert engines.complete(engine, rows) is not None
  again = engines.complete(engine, rows)
  for name, row in expected.items():
    assert again[name].token_ids == row.token_ids


def test_warming_up_in_the_middle_of_a_run_is_refused():
  engine = engines.make("sampled", PARAMS)
  events = engine.run(many(2))
  next(events)
  with pytest.raises(RuntimeError, match="running already"):
    engine.warmup()
  assert sum(isinstance(event, Completion) for event in events) == 2
