"""Packing loses and mixes nothing; its order is a function of the step."""

import numpy as np
import pytest

from specjax.training import data, packing


def corpus(lengths, answers=None, seed=0):
  draws = np.random.default_rng(seed)
  lengths = np.asarray(lengths)
  return data.Corpus(
    # Different in all places, so that a token says where it comes from.
    tokens=draws.permutation(lengths.sum()).astype(np.int32),
    starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    answer=np.asarray(
      [0] * len(lengths) if answers is None else answers, np.int32
    ),
    name="made",
  )


def predicted(rows):
  """(token, next) of every position that is to be predicted."""
  return sorted(
    pair
    for n in range(len(rows))
    for row in [rows[n]]
    for pair in zip(
      row["tokens"][row["weight"] > 0].tolist(),
      row["next"][row["weight"] > 0].tolist(),
      strict=True,
    )
  )


def wanted(made, prompts=False):
  found = []
  for start, stop, answer in zip(
    made.starts[:-1], made.starts[1:], made.answer, strict=True
  ):
    text = made.tokens[start:stop].tolist()
    first = 1 if prompts else max(answer, 1)
    found += list(zip(text[first - 1 : -1], text[first:], strict=True))
  return sorted(found)


LENGTHS = (3, 17, 40, 2, 8, 9, 16, 1, 33, 5)


@pytest.mark.parametrize("width", [8, 16, 64])
def test_every_token_but_a_texts_first_is_predicted_once(width):
  made = corpus(LENGTHS)
  assert predicted(packing.Rows(made, width)) == wanted(made)


@pytest.mark.parametrize("prompts", [False, True])
def test_of_an_answer_only_its_tokens_are_predicted_unless_asked(prompts):
  answers = (1, 9, 30, 1, 0, 8, 15, 0, 2, 4)
  made = corpus(LENGTHS, answers)
  rows = packing.Rows(made, 16, prompts=prompts)
  assert predicted(rows) == wanted(made, prompts)
  assert rows.predicted == len(wanted(made, prompts))


def test_no_text_sees_another_in_its_row():
  made = corpus(LENGTHS)
  where = {t: n for n, t in enumerate(made.tokens.tolist())}
  text_of = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
  rows = packing.Rows(made, 16)
  for n in range(len(rows)):
    row = rows[n]
    for i, position in enumerate(row["positions"]):
      if position:  # What stands before it in the row stands so in the text.
        before, here = (where[row["tokens"][j]] for j in (i - 1, i))
        assert here == before + 1 and text_of[here] == text_of[before]
        assert row["positions"][i - 1] == position - 1


def test_packing_leaves_little_room():
  lengths = np.random.default_rng(0).integers(5, 100, 500)
  packed = packing.pack(lengths, 128)
  assert sorted(t for row in packed for t in row) == list(range(500))
  used = [sum(lengths[t] for t in row) for row in packed]
  assert max(used) <= 128
  assert sum(used) > 0.97 * 128 * len(packed)


def test_a_step_has_its_batch_whatever_came_before():
  rows = packing.Rows(corpus([30] * 40), 16)
  how = dict(batch=2, accumulate=2, seed=3)
  with (
    packing.Batches(rows, **how) as one,
    packing.Batches(rows, **how) as other,
  ):
    straight = [one[step] for step in range(30)]
    for step in (7, 8, 29, 3):
      for name, value in other[step].items():
        np.testing.assert_array_equal(value, straight[step][name])
  assert straight[0]["tokens"].shape == (2, 2, 16)
  with packing.Batches(rows, batch=2, accumulate=2, seed=4) as another:
    assert (another[0]["tokens"] != straight[0]["tokens"]).any()


def test_an_epoch_has_every_row_once():
  rows = packing.Rows(corpus([16] * 12), 16)
  with packing.Batches(rows, batch=4, accumulate=1, seed=0) as batches:
    seen = [batches[step]["tokens"][0] for step in range(6)]
  for epoch in (seen[:3], seen[3:]):
    firsts = sorted(int(row[0]) for batch in epoch for row in batch)
    assert firsts == sorted(int(rows[n]["tokens"][0]) for n in range(12))


def test_what_is_held_out_is_not_trained_on():
  made = corpus([20] * 50)
  kept, held = made.split(0.1, 16)
  assert (len(kept), len(held)) == (45, 5)
  assert not set(kept.tokens.tolist()) & set(held.tokens.tolist())


def test_of_one_long_text_a_piece_is_held_out():
  kept, held = corpus([200]).split(0.1, 21)
  assert (len(kept), len(held)) == (9, 1)
  with pytest.raises(ValueError, match="7 tokens are too few to hold some out"):
    corpus([7]).split(0.1, 16)


def test_held_out_rows_are_filled_up_to_a_batch_without_weight():
  rows = packing.Rows(corpus([16] * 5), 16)
  batches = list(packing.in_order(rows, 4, 10))
  assert [batch["tokens"].shape for batch in batches] == [(4, 16)] * 2
  assert sum(batch["weight"].sum() for batch in batches) == 5 * 15
  assert len(list(packing.in_order(rows, 2, 1))) == 1


def test_nothing_to_predict_is_named():
  with pytest.raises(ValueError, match="made: none of its 2 tokens is to be"):
    packing.Rows(corpus([1, 1]), 8)


def test_frequencies_are_of_what_is_predicted():
  made = corpus([3, 3], [1, 2])
  counts = made.counts(6, prompts=False)
  assert counts.tolist() == [
    int(t in (*made.tokens[1:3], made.tokens[5])) for t in range(6)
  ]
  assert made.counts(6, prompts=True).sum() == 4


def test_answers_to_one_prompt_are_held_out_together():
  """At two temperatures a model says much the same."""
  prompts = np.repeat(np.arange(40), 2)
  texts = [[n, n + 1, 7, 100 + i, 7] for i, n in enumerate(prompts)]
  made = data.Corpus(
    tokens=np.asarray(texts, np.int32).reshape(-1),
    starts=np.arange(81, dtype=np.int64) * 5,
    answer=np.full((80,), 3, np.int32),
    name="made",
  )
  kept, held = made.split(0.1, 8)
  asked = lambda corpus: set(corpus.tokens.reshape(-1, 5)[:, 0].tolist())
  assert len(held) >= 8 and len(kept) + len(held) == 80
  assert not asked(kept) & asked(held)


def test_answers_to_one_prompt_alone_cannot_be_split():
  made = data.Corpus(
    tokens=np.tile(np.asarray([1, 2, 3, 4, 5], np.int32), 60),
    starts=np.arange(61, dtype=np.int64) * 5,
    answer=np.full((60,), 3, np.int32),
    name="made",
  )
  with pytest.raises(ValueError, match="all its texts answer one prompt"):
    made.split(0.1, 8)
