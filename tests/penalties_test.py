"""Penalties and biases against a loop over the vocabulary (RULES.md 9, 10)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax import sampling
from specjax.penalties import Penalties, PenaltyRequest
from tests import exact

VOCAB, ROWS, SIZE, WIDTH, ROOM = 6, 3, 7, 4, 4
OFF = {
  "repetition_penalty": 1.0,
  "presence_penalty": 0.0,
  "frequency_penalty": 0.0,
  "logit_bias": {},
}
ids = st.integers(0, VOCAB - 1)
each = st.fixed_dictionaries(
  {
    "prompt": st.lists(ids, min_size=1, max_size=SIZE),
    "output": st.lists(ids, max_size=9),
    "drafted": st.lists(ids, min_size=WIDTH - 1, max_size=WIDTH - 1),
    "logits": st.lists(
      st.floats(-20, 20, width=32),
      min_size=WIDTH * VOCAB,
      max_size=WIDTH * VOCAB,
    ),
    "settings": st.fixed_dictionaries(
      {
        "repetition_penalty": st.sampled_from([1.0, 0.01, 0.5, 1.5, 2, 100.0]),
        "presence_penalty": st.sampled_from([0.0, 2, -2, 0.25, -100]),
        "frequency_penalty": st.sampled_from([0.0, 2, -2, 0.7, 100.0]),
        "logit_bias": st.dictionaries(
          ids, st.sampled_from([-100, 100.0, 0.5, -3, 0]), max_size=ROOM
        ),
      }
    ),
  }
)


def asks(own):
  return {**own, "logit_bias": dict(own["logit_bias"])} != OFF


def asked(rows):
  """(PenaltyRequest, prompts [B, S], sizes [B]) of dicts like `each`."""
  column = lambda name: jnp.asarray(
    [row["settings"][name] for row in rows], jnp.float32
  )
  bias_ids = np.zeros((len(rows), ROOM), np.int32)
  values = np.zeros((len(rows), ROOM), np.float32)
  # What lies behind a prompt may be anything.
  history = np.full((len(rows), SIZE), 2, np.int32)
  for index, row in enumerate(rows):
    history[index, : len(row["prompt"])] = row["prompt"]
    for place, pair in enumerate(row["settings"]["logit_bias"].items()):
      bias_ids[index, place], values[index, place] = pair
  count = [len(row["settings"]["logit_bias"]) for row in rows]
  new = PenaltyRequest(
    asked=jnp.asarray([asks(row["settings"]) for row in rows]),
    repetition=column("repetition_penalty"),
    presence=column("presence_penalty"),
    frequency=column("frequency_penalty"),
    bias_ids=jnp.asarray(bias_ids),
    bias_values=jnp.asarray(values),
    bias_count=jnp.asarray(count, jnp.int32),
  )
  sizes = jnp.asarray([len(row["prompt"]) for row in rows], jnp.int32)
  return new, jnp.asarray(history), sizes


admit = jax.jit(Penalties.admit)
commit = jax.jit(Penalties.commit)
apply = jax.jit(Penalties.apply)
EVERY = jnp.ones((ROWS,), bool)


def admitted(rows, old=None, which=EVERY):
  old = old or Penalties.none(ROWS, VOCAB)
  return admit(old, which, jnp.zeros_like(which), *asked(rows))


def said(penalties, outputs):
  """Commits outputs in blocks of two, of every row its own number."""
  longest = max(map(len, outputs))
  for start in range(0, longest, 2):
    blocks = [output[start : start + 2] for output in outputs]
    count = [len(block) for block in blocks]
    # Behind the count lies a draft that was not kept.
    tokens = [[*block, 1, 1][:2] for block in blocks]
    penalties = commit(
      penalties, jnp.asarray(tokens, jnp.int32), jnp.asarray(count, jnp.int32)
    )
  return penalties


def logits_of(rows):
  logits = jnp.asarray([row["logits"] for row in rows], jnp.float32)
  return logits.reshape(len(rows), WIDTH, VOCAB)


def drafts_of(rows):
  return jnp.asarray([row["drafted"] for row in rows], jnp.int32)


@settings(deadline=None, max_examples=200)
@given(st.lists(each, min_size=ROWS, max_size=ROWS))
def test_rule_9_each_position_equals_a_loop_over_the_vocabulary(rows):
  """And position by position, as a drafter goes, the same."""
  penalties = said(admitted(rows), [row["output"] for row in rows])
  logits, drafted = logits_of(rows), drafts_of(rows)
  got = np.asarray(apply(penalties, logits, drafted))
  for at in range(WIDTH):
    alone = apply(penalties, logits[:, at : at + 1], drafted, jnp.int32(at))
    np.testing.assert_allclose(alone[:, 0], got[:, at], rtol=1e-6, atol=1e-4)
    for index, row in enumerate(rows):
      own = row["settings"]
      output = row["output"] + row["drafted"][:at]
      raw = np.asarray(logits[index, at])
      want = exact.penalized(raw, row["prompt"], output, **own)
      np.testing.assert_allclose(got[index, at], want, rtol=1e-5, atol=1e-4)
      if not asks(own):  # RULES 7: every bit.
        np.testing.assert_array_equal(got[index, at], raw)


def row(prompt=(0,), output=(), drafted=(0, 0, 0), logits=None, **own):
  if logits is None:
    logits = np.tile([1.0, -1, 2, 0, 0.5, -2], WIDTH)
  return {
    "prompt": list(prompt),
    "output": list(output),
    "drafted": list(drafted),
    "logits": list(np.ravel(logits)),
    "settings": {**OFF, **own},
  }


def one(**changes):
  """The adjusted logits [T, V] of one row beside two that ask for nothing."""
  rows = [row(), row(**changes), row()]
  penalties = said(admitted(rows), [r["output"] for r in rows])
  return np.asarray(apply(penalties, logits_of(rows), drafts_of(rows))[1])


def test_the_order_is_bias_then_repetition_then_presence_and_frequency():
  got = one(
    prompt=(1,),
    output=(1, 1),
    repetition_penalty=2.0,
    presence_penalty=0.25,
    frequency_penalty=1.0,
    logit_bias={1: 5.0},
  )
  assert got[0, 1] == (-1 + 5) / 2 - 0.25 - 2  # the sign after the bias rules


def test_repetition_counts_the_prompt_and_the_others_do_not():
  got = one(prompt=(1, 2), repetition_penalty=2.0)
  np.testing.assert_array_equal(got[0], [1, -2, 1, 0, 0.5, -2])
  got = one(prompt=(1, 2), presence_penalty=1.0, frequency_penalty=1.0)
  np.testing.assert_array_equal(got[0], [1, -1, 2, 0, 0.5, -2])
  got = one(output=(1, 2, 2), presence_penalty=1.0, frequency_penalty=0.5)
  np.testing.assert_array_equal(got[0], [1, -2.5, 0, 0, 0.5, -2])


def test_rule_9_a_draft_counts_from_the_next_position_on():
  got = one(drafted=(2, 2, 4), presence_penalty=1.0, frequency_penalty=1.0)
  np.testing.assert_array_equal(got[:, 2], [2, 0, -1, -1])
  np.testing.assert_array_equal(got[:, 4], [0.5, 0.5, 0.5, -1.5])
  np.testing.assert_array_equal(got[:, 0], 1)


def test_rule_10_a_bias_acts_on_every_position():
  got = one(logit_bias={2: -100, 5: 100})
  np.testing.assert_array_equal(got[:, 2], -98)
  np.testing.assert_array_equal(got[:, 5], 98)


@pytest.mark.parametrize("own", [
  dict(repetition_penalty=0.01), dict(repetition_penalty=100.0),
  dict(frequency_penalty=100.0), dict(logit_bias={0: -1e4, 1: 1e4}),
])  # fmt: skip
def test_rule_5_finite_logits_stay_finite_and_the_others_what_they_are(own):
  """So that whether a row is usable can be read off the raw logits."""
  top = np.finfo(np.float32).max
  logits = np.zeros((WIDTH, VOCAB), np.float32)
  logits[0] = [top, -top, top / 2, -np.inf, 0, 1]
  logits[1] = [np.nan, np.inf, -np.inf, 0, 1, 2]
  logits[2] = -np.inf
  got = one(prompt=range(VOCAB), output=range(VOCAB), logits=logits, **own)
  np.testing.assert_array_equal(np.isfinite(got), np.isfinite(logits))
  np.testing.assert_array_equal(np.isnan(got), np.isnan(logits))
  usable = sampling.usable(jnp.asarray(got)[None])[0]
  assert usable.tolist() == [True, False, False, True]


def test_a_refilled_slot_starts_anew_and_its_neighbours_go_on():
  own = dict(frequency_penalty=1.0, repetition_penalty=2.0, logit_bias={3: 7.0})
  rows = [row(prompt=(1, 2), **own)] * ROWS
  old = said(admitted(rows), [[4, 4], [5], [0, 1, 2]])
  second = jnp.asarray([False, True, False])
  fresh = [row(prompt=(5,), presence_penalty=1.0)] * ROWS
  new = admitted(fresh, old, second)
  for name, want in vars(admitted(fresh)).items():
    np.testing.assert_array_equal(getattr(new, name)[1], want[1], name)
    for other in (0, 2):
      kept = getattr(old, name)[other]
      np.testing.assert_array_equal(getattr(new, name)[other], kept, name)


def test_a_released_row_asks_for_nothing():
  old = admitted([row(presence_penalty=1.0)] * ROWS)
  none = jnp.zeros((ROWS,), bool)
  last = jnp.asarray([False, False, True])
  new = admit(old, none, last, *asked([row()] * ROWS))
  assert new.asked.tolist() == [True, True, False]


def test_rule_7_a_row_keeps_every_bit_beside_rows_that_ask():
  draws = np.random.default_rng(0)
  logits = jnp.asarray(draws.normal(0, 9, (ROWS, WIDTH, VOCAB)), jnp.float32)
  logits = logits.at[0, 0, 0].set(-0.0)
  drafted = drafts_of([row(drafted=(1, 2, 3))] * ROWS)
  asking = row(
    frequency_penalty=0.3, repetition_penalty=1.1, logit_bias={1: 0.1}
  )
  beside = admitted([row(), asking, asking])
  got = apply(beside, logits, drafted)
  assert np.asarray(got[0]).tobytes() == np.asarray(logits[0]).tobytes()
  alone = dataclasses.replace(beside, asked=jnp.asarray([False, True, False]))
  other = apply(alone, logits, drafted)
  np.testing.assert_array_equal(other[1], got[1])
  assert np.any(got[1] != logits[1])
