"""Penalties and biases through the whole engine (RULES.md 8, 9, 10, 17)."""

import itertools

import numpy as np
import pytest

from specjax.engine.request import Chunk
from tests import engines, exact, table_model
from tests.engines import DRAFTERS, LOOKAHEAD, VOCAB, request

PARAMS = table_model.make_table(VOCAB, seed=23)
COUNTING = engines.counting_table()
PENALTIES = (
  dict(repetition_penalty=2.0),
  dict(repetition_penalty=0.5),
  dict(presence_penalty=2.0),
  dict(presence_penalty=-2.0),
  dict(frequency_penalty=2.0),
  dict(frequency_penalty=-2.0),
  dict(frequency_penalty=0.3, logit_bias={1: 2.0, 6: -2.0}),
  dict(repetition_penalty=1.3, presence_penalty=1.0, frequency_penalty=-0.2),
  dict(repetition_penalty=1.2, presence_penalty=-1, logit_bias={0: -100}),
)
# Of one token, of repeated ones, and over several chunks.
PROMPTS = ((1,), (2, 2, 2, 5), tuple(range(8)) * 3)


def rows(**more):
  return [
    request(prompt, f"{prompt} {penalties}", **penalties, **more)
    for prompt, penalties in itertools.product(PROMPTS, PENALTIES)
  ]


def penalties_of(row):
  return {name: getattr(row.sampling, name) for name in exact.PENALTIES}


def expected(params, row):
  penalties = penalties_of(row)
  return exact.greedy(params, row.prompt, row.max_new_tokens, **penalties)


@pytest.mark.parametrize("steps", (1, 3))
@pytest.mark.parametrize("kind", DRAFTERS)
def test_rule_9_greedy_rows_are_the_references_whoever_drafts(kind, steps):
  """The plain path among them, which is the drafter "none"."""
  engine = engines.make(kind, PARAMS, steps_per_sync=steps)
  made = rows(max_new_tokens=24)
  done = engines.complete(engine, made)
  changed = 0
  for row in made:
    assert done[row.id].token_ids == expected(PARAMS, row), row.id
    bare = exact.greedy(PARAMS, row.prompt, row.max_new_tokens)
    changed += done[row.id].token_ids != bare
  assert changed > len(made) * 0.8
  if kind not in ("none", "wrong"):
    assert sum(row.accepted for row in done.values()) > 20


def test_rule_9_penalties_act_inside_a_block():
  """The premise: some drafts repeat a token of the same block."""
  repeats = [
    len(set(tokens[at : at + LOOKAHEAD])) < LOOKAHEAD
    for row in rows(max_new_tokens=24)
    for tokens in [expected(PARAMS, row)]
    for at in range(0, 24, LOOKAHEAD)
  ]
  assert 0.2 < np.mean(repeats) < 1


@pytest.mark.parametrize("temperature", (0.0, 1.0))
def test_rule_17_a_model_drafting_for_itself_accepts_everything(temperature):
  """Its q, too, sees the drafts before each place."""
  engine = engines.make("itself", PARAMS)
  made = rows(temperature=temperature, max_new_tokens=24)
  for row in engines.complete(engine, made).values():
    assert row.accepted == row.drafted
    assert row.steps == -(-24 // (LOOKAHEAD + 1))


@pytest.mark.parametrize("temperature", (0.0, 1.0))
@pytest.mark.parametrize("kind", DRAFTERS)
def test_rule_10_a_bias_of_minus_100_silences_a_token_that_is_drafted(
  kind, temperature
):
  """Counting up to it from d before: an oracle drafts it at each place."""
  banned = 5
  engine = engines.make(kind, COUNTING)
  made = [
    request(
      prompt, id, max_new_tokens=30, temperature=temperature,
      logit_bias={banned: -100},
    )
    for id, prompt in enumerate([(n,) for n in range(VOCAB)] + [(3, banned)])
  ]  # fmt: skip
  done = engines.complete(engine, made)
  for row in made:
    got = done[row.id].token_ids
    assert banned not in got
    assert len(got) == 30
    if not temperature:
      assert got == expected(COUNTING, row)


@pytest.mark.parametrize("temperature", (0.0, 1.0))
@pytest.mark.parametrize("kind", DRAFTERS)
def test_rule_10_a_bias_of_100_says_one_token_at_every_place(kind, temperature):
  engine = engines.make(kind, COUNTING)
  made = [
    request((n,), n, temperature=temperature, logit_bias={2: 100})
    for n in range(VOCAB)
  ]
  for row in engines.complete(engine, made).values():
    assert row.token_ids == (2,) * 20


def observed(kind, lookahead, settings, count):
  """All outputs of many sampled rows."""
  engine = engines.make(kind, PARAMS)
  made = [
    request(
      (1, 2), id, max_new_tokens=3, seed=id, lookahead=lookahead, **settings
    )
    for id in range(count)
  ]
  return {row.token_ids for row in engines.complete(engine, made).values()}


def test_rule_8_plain_and_speculative_paths_have_one_support():
  settings = dict(
    temperature=3.0, top_p=0.7, repetition_penalty=1.5,
    presence_penalty=2.0, frequency_penalty=-0.5, logit_bias={3: 1.5},
  )  # fmt: skip
  chain = exact.Chain(PARAMS, settings, size=2)
  law = exact.tokens_law(chain, (1, 2), 3)
  likely = {tokens for tokens, mass in law.items() if mass > 0.005}
  bare = exact.Chain(PARAMS, dict(temperature=3.0, top_p=0.7))
  assert likely - exact.tokens_law(bare, (1, 2), 3).keys()
  for kind, lookahead in (("none", None), ("sampled", None), ("sampled", 0)):
    seen = observed(kind, lookahead, settings, 2000)
    assert likely <= seen <= law.keys()


@pytest.mark.parametrize("kind", ("sampled", "oracle", "none"))
@pytest.mark.parametrize(
  "options",
  (dict(), dict(steps_per_sync=3), dict(whole_batch_prefill=True)),
  ids=str,
)
def test_counts_are_those_of_the_history_at_all_times(kind, options):
  """Through chunks, refill, end tokens and budgets inside a block."""
  engine = engines.make(kind, PARAMS, stop_ids=(2, 5), **options)
  draws = np.random.default_rng(0)
  made = [
    request(
      draws.integers(0, VOCAB, 1 + size * 7 % 29),
      size,
      max_new_tokens=1 + size % 13,
      temperature=size % 2,
      frequency_penalty=0.1 * (size % 3),
      logit_bias={size % VOCAB: 0.25} if size % 5 == 0 else {},
    )
    for size in range(1, 25)
  ]
  checked = 0
  for event in engine.run(made):
    state = engine.state
    for slot, running in enumerate(engine._running):
      if running is None or not isinstance(event, Chunk):
        continue
      prompt = running.request.prompt
      end = int(state.cache.length[slot]) + 1
      output = np.asarray(state.history[slot, len(prompt) : end])
      counts = np.bincount(output, minlength=VOCAB)
      np.testing.assert_array_equal(state.penalties.output[slot], counts)
      if running.request.sampling.penalizes:
        seen = np.bincount(prompt, minlength=VOCAB) > 0
        np.testing.assert_array_equal(state.penalties.prompt[slot], seen)
      checked += 1
  assert checked > 50
  assert not engine.state.penalties.asked.any()


def test_a_bias_outside_the_vocabulary_is_refused_by_name():
  engine = engines.make("oracle", PARAMS)
  done = engines.complete(
    engine, [request((1,), "bad", logit_bias={VOCAB: 1}), request((1,), "good")]
  )
  assert f"logit_bias has token id {VOCAB}" in done["bad"].error
  assert done["good"].error is None
