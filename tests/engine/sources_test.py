"""Encoder-decoders in the engine: RULES.md with a source beside the output."""

import dataclasses

import numpy as np
import pytest

from specjax.benchmark import compiles
from tests import engines, sourced
from tests.engines import request
from tests.sourced import CAPACITY, HEADS, KINDS, LOOKAHEAD, VOCAB

draws = np.random.default_rng(0)
SOURCES = {
  size: tuple(draws.integers(0, VOCAB, size).tolist())
  for size in (1, 2, 4, 5, 9, 16, 17, CAPACITY)
}
SOURCES[16] = (*range(VOCAB), *range(VOCAB))


def rows(kind="none"):
  """Sources of every length; greedy beside sampled, all lookaheads."""
  return [
    request(
      source,
      size,
      max_new_tokens=3 + size % 13,
      lookahead=None if kind == "none" else (None, 0, 1)[number % 3],
      temperature=number % 2,
      top_p=(1.0, 0.8)[number % 2],
      repetition_penalty=(1.0, 1.3)[number % 4 == 3],
    )
    for number, (size, source) in enumerate(SOURCES.items())
  ]


# What tests/api_sources_test.py runs as well.
DEAR = ("layer_skip", *HEADS)
EVERY = pytest.mark.parametrize(
  "kind",
  [
    pytest.param(kind, marks=pytest.mark.long if kind in DEAR else ())
    for kind in (*KINDS, "siblings", *HEADS)
  ],
)


@EVERY
def test_rule_25_greedy_is_what_the_model_alone_would_say(kind):
  asked = [
    request(source, size, max_new_tokens=12) for size, source in SOURCES.items()
  ]
  done = engines.complete(sourced.engine(kind), asked)
  for size, source in SOURCES.items():
    got = done[str(size)]
    assert got.token_ids == sourced.greedy(source, 12)
    assert got.prompt_tokens == size
  drafted = sum(row.drafted for row in done.values())
  accepted = sum(row.accepted for row in done.values())
  assert (drafted > 0) == (kind != "none")
  if kind == "itself":  # RULES 17
    assert accepted == drafted
  elif kind in (*KINDS[1:], "siblings"):
    assert 0 < accepted < drafted


@EVERY
def test_rules_7_11_27_a_row_is_the_same_alone_in_any_order_and_any_slot(kind):
  made, every = sourced.engine(kind), rows(kind)
  done = engines.complete(made, every)
  with compiles.counted() as found:
    again = engines.complete(made, every[::-1])
    for row in every[::3]:
      alone = engines.complete(made, [row])[row.id]
      assert alone.token_ids == done[row.id].token_ids
  assert not found
  for row in every:
    assert again[row.id].token_ids == done[row.id].token_ids
    assert len(done[row.id].token_ids) == row.max_new_tokens


def test_rule_11_encoding_all_slots_at_once_changes_no_row():
  every = rows("draft_model")
  one = engines.complete(sourced.engine("draft_model"), every)
  made = sourced.engine("draft_model", whole_batch_prefill=True)
  for name, row in engines.complete(made, every).items():
    assert row.token_ids == one[name].token_ids


def test_samples_of_one_source_read_it_once_and_are_as_if_each_had():
  made = sourced.engine("draft_model")
  row = request(SOURCES[9], "n", temperature=1.0, seed=4, n=3)
  done = [event for event in made.run([row]) if hasattr(event, "samples")]
  tokens = {event.sample: event.token_ids for event in done}
  assert len(set(tokens.values())) == 3
  alone = dataclasses.replace(row, n=1)
  assert engines.complete(made, [alone])["n"].token_ids == tokens[0]


def test_rule_11_a_seed_repeats_and_seeds_differ():
  made = sourced.engine("draft_model")
  say = lambda seed: (
    engines.complete(made, [request(SOURCES[4], temperature=2.0, seed=seed)])[
      "0"
    ].token_ids
  )
  assert say(5) == say(5) != say(6)
  assert say(5) != say(5 + 2**32)


@pytest.mark.parametrize("kind", ("none", "itself", "ngram"))
def test_rules_13_14_the_first_stop_id_ends_a_row_wherever_it_falls(kind):
  source = SOURCES[9]
  full = sourced.greedy(source, 12)
  for stop in set(full):
    made = sourced.engine(kind, stop_ids=(stop, 1000))
    got = engines.complete(made, [request(source, max_new_tokens=12)])["0"]
    assert got.token_ids == full[: full.index(stop) + 1]
    assert got.finish_reason == "stop"


def test_rule_15_an_output_is_never_longer_than_asked():
  made = sourced.engine("itself")
  for most in range(1, LOOKAHEAD + 2):
    got = engines.complete(made, [request(SOURCES[5], max_new_tokens=most)])
    assert got["0"].token_ids == sourced.greedy(SOURCES[5], most)


@pytest.mark.parametrize("kind", ("none", "draft_model", "ngram"))
def test_rule_16_a_source_as_long_as_the_capacity_leaves_room_for_an_output(
  kind,
):
  made = sourced.engine(kind)
  source = SOURCES[CAPACITY]
  got = engines.complete(made, [request(source, max_new_tokens=1000)])["0"]
  assert got.finish_reason == "length"
  assert got.token_ids == sourced.greedy(source, CAPACITY - 1)
  long = engines.complete(made, [request((*source, 1))])["0"]
  assert long.finish_reason == "error"
  assert f"prompt has {CAPACITY + 1} tokens, and capacity is" in long.error


def test_rule_5_sources_that_cannot_be_read_are_refused_by_name():
  made = sourced.engine("none")
  done = engines.complete(
    made, [request((), "empty"), request((1, VOCAB), "wild")]
  )
  assert "prompt is empty" in done["empty"].error
  assert f"prompt has token id {VOCAB}" in done["wild"].error


def test_a_penalty_counts_the_output_and_its_start_not_the_source():
  made = sourced.engine("draft_model")
  plain = sourced.engine("none")
  for penalty in (
    dict(repetition_penalty=5.0),
    dict(presence_penalty=2.0, frequency_penalty=1.0),
    dict(logit_bias={3: -100, 1: 2}),
  ):
    row = request(SOURCES[16], max_new_tokens=12, **penalty)
    (got,) = engines.complete(made, [row]).values()
    (own,) = engines.complete(plain, [row]).values()
    assert got.token_ids == own.token_ids
  # The source has every id: penalties on all of them would change nothing.
  row = request(SOURCES[16], max_new_tokens=12, repetition_penalty=100.0)
  (got,) = engines.complete(plain, [row]).values()
  assert got.token_ids != sourced.greedy(SOURCES[16], 12)


def test_ngram_copies_from_the_source():
  made = sourced.engine("ngram")
  (target, params), _ = sourced.pair()
  state = made.state
  history = np.full((3, state.history.shape[1]), -1, np.int32)
  half = history.shape[1] // 2
  history[:, :half] = 0
  history[0, :3], history[0, -6:] = (2, 4, 5), (3, 4, 5, 6, 7, 1)
  history[1, :3], history[1, -2:] = (2, 4, 5), (3, 7)
  history[2, :5], history[2, -2:] = (2, 4, 5, 6, 5), (3, 5)
  length = np.int32([2, 2, 4])
  tokens, found = made.proposer._lookup(history, length)
  assert found.tolist() == [True, False, True]
  assert tokens[0].tolist() == [6, 7, 1]  # behind 4 5 in the source
  assert tokens[2].tolist() == [6, 5, 6]  # the output's own is the later one
