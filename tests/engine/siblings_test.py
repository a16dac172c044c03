"""Siblings through the whole engine: no answer changes, steps say more.

RULES are the project's list of what a correct speculative decoder satisfies.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.benchmark import compiles
from specjax.proposers.draft_model import DraftModel
from tests import engines, exact, table_model
from tests.engine import ends_test, logprobs_test
from tests.engines import CAPACITY, LOOKAHEAD, VOCAB, request

# With the headroom for 1 + C + M this fills the cache's 128 positions, too.
SIBLINGS = 3
PARAMS = table_model.make_table(VOCAB, seed=31)
COUNTING = engines.counting_table()
EOS = VOCAB - 1
KINDS = ("turning", "second", "near")
EVERY = pytest.mark.parametrize("kind", KINDS)


def second(params):
  """A draft that always says the target's second best, and means the best.

  Behind it the next best is the target's choice, within a rounding.
  """
  (table,) = params
  best = jnp.argmax(table, axis=-1, keepdims=True)
  others = jnp.where(jnp.arange(VOCAB) == best, -jnp.inf, table)
  below = jnp.max(others, axis=-1, keepdims=True) - 1e-3
  return (jnp.where(jnp.arange(VOCAB) == best, below, table),)


def near(params):
  """A draft that is right about half of the time."""
  (noise,) = table_model.make_table(VOCAB, seed=7, spread=1.2)
  return (params[0] + noise,)


def make(kind, params=PARAMS, siblings=SIBLINGS, **options):
  """An engine whose target is a table, with a drafter of KINDS."""
  target = table_model.TableModel(VOCAB)
  if kind == "turning":
    made = table_model.Turning(lookahead=LOOKAHEAD, vocab_size=VOCAB)
    return engines.build(target, params, made, params, **options)
  made = DraftModel(
    model=target, lookahead=LOOKAHEAD, vocab_size=VOCAB, siblings=siblings
  )
  draft = {"second": second, "near": near, "itself": lambda p: p}[kind](params)
  return engines.build(target, params, made, draft, **options)


def check_greedy(done, asked, params=PARAMS):
  for row in asked:
    expected = table_model.greedy(params, row.prompt, row.max_new_tokens)
    assert done[row.id].token_ids == tuple(expected), row


def prompts():
  return [ends_test.long_prompt(size) for size in (1, 2, 3, 4, 5, 9, 17)]


@pytest.mark.parametrize("steps", (1, 3))
@EVERY
def test_rules_15_25_greedy_rows_say_what_the_target_says(kind, steps):
  """Of every budget and lookahead, for many steps after a kept sibling."""
  asked = [
    request(prompt, f"{len(prompt)} {n} {ahead}", max_new_tokens=n, **own)
    for prompt in prompts()
    for ahead in (None, *range(LOOKAHEAD + 1))
    for own in (dict(lookahead=ahead),)
    for n in (*range(1, LOOKAHEAD + 3), 40)
  ]
  done = engines.complete(make(kind, steps_per_sync=steps), asked)
  check_greedy(done, asked)
  for row in asked:
    got = done[row.id]
    assert got.drafted <= LOOKAHEAD * got.steps
    if row.lookahead == 0:
      assert not got.drafted and got.steps == row.max_new_tokens


def test_a_wrong_draft_whose_second_guess_is_right_gives_two_tokens_a_step():
  for siblings, tokens in ((0, 1), (1, 2), (SIBLINGS, 2)):
    made = make("second", siblings=siblings)
    asked = [request(p, len(p), max_new_tokens=20) for p in prompts()]
    done = engines.complete(made, asked)
    check_greedy(done, asked)
    for row in done.values():
      assert row.steps == 20 // tokens
      assert row.accepted == 20 - row.steps
      assert row.accepted_per_position[0] == row.accepted


def test_a_sibling_is_kept_behind_any_number_of_drafts():
  """At positions 2, 5, 8 and so on the draft is wrong and a sibling right."""
  row = request((1,), max_new_tokens=40)
  got = engines.complete(make("turning"), [row])["0"]
  check_greedy({"0": got}, [row])
  # The first step says up to position 3, the sibling's being 3 - 0: at length
  # 0 two drafts, a sibling and one more. Then 0 drafts or more, in turns.
  assert got.steps < 40 / 3
  assert got.accepted == 40 - got.steps


def test_rule_17_a_draft_that_is_never_wrong_is_as_it_was():
  asked = [request(p, len(p), max_new_tokens=21) for p in prompts()]
  made = make("itself")
  done = engines.complete(made, asked)
  for row in done.values():
    assert row.accepted == row.drafted and row.drafted > 21 / 2
  sampled = [request(p, len(p), temperature=1.0) for p in prompts()]
  done = engines.complete(made, sampled)
  assert all(row.accepted == row.drafted for row in done.values())


@EVERY
def test_rule_13_the_first_end_token_ends_the_row_at_every_offset(kind):
  """Among them the sibling itself, and what was drawn after it."""
  made = make(kind, COUNTING, stop_ids=(EOS, 1000))
  starts = [(first,) for first in range(VOCAB)]
  starts += [(2, EOS, first) for first in range(VOCAB)]
  starts += [(1, 2, EOS, first) for first in range(VOCAB)]
  for temperature in (0.0, 1.0):
    asked = [
      request(prompt, id, temperature=temperature, max_new_tokens=30)
      for id, prompt in enumerate(starts)
    ]
    done = engines.complete(made, asked)
    for id, prompt in enumerate(starts):
      row = done[str(id)]
      assert row.token_ids == tuple(range((prompt[-1] + 1) % VOCAB, VOCAB))
      assert row.finish_reason == "stop"


@pytest.mark.parametrize("kind", ("turning", "near"))
def test_rule_16_a_row_is_right_up_to_the_last_place_of_the_context(kind):
  """Siblings' keys lie behind the drafts', and clobber nothing there."""
  sizes = range(CAPACITY - LOOKAHEAD - 4, CAPACITY)
  asked = [
    request(ends_test.long_prompt(n), n, max_new_tokens=CAPACITY - n)
    for n in sizes
  ]
  asked += [request((3,), "short", max_new_tokens=CAPACITY - 1)]
  made = make(kind)
  assert made.state.cache.capacity == 128
  check_greedy(engines.complete(made, asked), asked)


PENALTIES = (
  dict(repetition_penalty=1.7),
  dict(presence_penalty=2.0, frequency_penalty=-0.5),
  dict(frequency_penalty=2.0),
  dict(repetition_penalty=0.6, logit_bias={1: -100, 4: 1.5}),
)


@EVERY
def test_rules_9_10_what_follows_a_sibling_sees_it_and_all_before_it(kind):
  asked = [
    request(p, f"{len(p)} {n}", max_new_tokens=15, **settings)
    for p in prompts()
    for n, settings in enumerate(PENALTIES)
  ]
  done = engines.complete(make(kind), asked)
  for row in asked:
    settings = PENALTIES[int(row.id.split()[1])]
    bias = tuple(settings.get("logit_bias", {}).items())
    settings = settings | {"logit_bias": bias}
    expected = exact.greedy(PARAMS, row.prompt, 15, **settings)
    assert done[row.id].token_ids == expected, row
  assert sum(row.accepted for row in done.values()) > len(asked)


@pytest.mark.parametrize("kind", ("turning", "near"))
def test_rule_12_log_probabilities_equal_a_teacher_forced_rescore(kind):
  made = make(kind, top_logprobs=logprobs_test.TOP)
  asked = logprobs_test.rows()
  done = engines.complete(made, asked)
  for row in asked:
    got = done[row.id]
    assert (got.logprobs is None) == (row.logprobs is None)
    if row.logprobs is not None:
      rescored = logprobs_test.table_rescore(PARAMS, row, got)
      logprobs_test.check(row, got, rescored)


def mixed():
  """Rows of every kind side by side."""
  draws = np.random.default_rng(0)
  return [
    request(
      draws.integers(0, VOCAB, 1 + number % 9),
      number,
      max_new_tokens=6 + number % 13,
      lookahead=(None, 0, 1, 2, LOOKAHEAD)[number % 5],
      temperature=(0.0, 1.0, 2.0)[number % 3],
      top_p=(1.0, 0.8)[number % 2],
      top_k=(0, 4)[number % 4 == 3],
      frequency_penalty=(0.0, 0.5)[number % 5 == 1],
      seed=number,
    )
    for number in range(24)
  ]


@pytest.mark.parametrize("kind", ("turning", "near"))
def test_rules_7_11_27_a_row_is_the_same_alone_and_nothing_compiles(kind):
  made, asked = make(kind), mixed()
  made.warmup()
  with compiles.counted() as found:
    done = engines.complete(made, asked)
    again = engines.complete(made, asked[::-1])
    for row in asked:
      alone = engines.complete(made, [row])[row.id]
      for other in (done, again):
        assert alone.token_ids == other[row.id].token_ids
        assert alone.accepted == other[row.id].accepted
  assert not found


def test_rule_5_a_row_fails_where_no_law_follows_a_sibling():
  """And no other row does."""
  params = (COUNTING[0].at[:, :, 4].set(jnp.nan),)
  made = make("turning", params)
  made.params = type(made.params)(target=params, proposer=COUNTING)
  asked = [
    request((first,), first, max_new_tokens=n)
    for first, n in ((0, 20), (1, 20), (2, 20), (5, 6))
  ]
  done = engines.complete(made, asked)
  for first in range(3):
    row = done[str(first)]
    assert "not finite" in row.error
    expected = tuple(range(first + 1, 5))
    assert row.token_ids == expected[: len(row.token_ids)]
  assert done["5"].error is None
  assert done["5"].token_ids == (6, 7, 0, 1, 2, 3)
