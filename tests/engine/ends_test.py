"""Where a row ends, and that all it reports ends there (RULES.md 13-16)."""

import itertools

import pytest

from tests import engines, table_model
from tests.engines import CAPACITY, DRAFTERS, LOOKAHEAD, VOCAB, request

EOS = VOCAB - 1
COUNTING = engines.counting_table()
RANDOM = table_model.make_table(VOCAB, seed=3)
ROUND = "".join(chr(ord("a") + token) for token in range(VOCAB))


class Pairs(engines.Letters):
  """Two characters an id, so that a stop string may end inside a token."""

  def decode(self, ids, skip_special=True):
    letters = super().decode(ids, skip_special)
    return "".join(letter + letter.upper() for letter in letters)


def until(tokens, *stop_ids):
  """Tokens up to and with the first stop id."""
  for index, token in enumerate(tokens):
    if token in stop_ids:
      return tuple(tokens[: index + 1])
  return tuple(tokens)


def stopped(text, stops, width=1):
  """(text before the first stop string to end, tokens until it ended)."""
  ends = [(text.find(s) + len(s), -len(s)) for s in stops if s in text]
  if not ends:
    return text, len(text) // width
  end, size = min(ends)
  return text[: end + size], -(-end // width)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_rule_13_the_first_end_token_ends_the_row_at_every_offset(kind):
  """Counting up to EOS from EOS - d ends it at offset d - 1 of the output.

  So an oracle's first block of C + 1 has it at each of its places, accepted
  draft and bonus alike, and the later ones in the second block.
  """
  engine = engines.make(kind, COUNTING, stop_ids=(EOS, 1000))
  starts = [(first,) for first in range(VOCAB)]  # EOS itself among them
  starts += [(2, EOS, first) for first in range(VOCAB)]
  for temperature in (0.0, 1.0):
    done = engines.complete(
      engine,
      [
        request(prompt, id, temperature=temperature, max_new_tokens=30)
        for id, prompt in enumerate(starts)
      ],
    )
    for id, prompt in enumerate(starts):
      row = done[str(id)]
      expected = tuple(range((prompt[-1] + 1) % VOCAB, VOCAB))
      assert row.token_ids == expected
      assert row.finish_reason == "stop"
      if kind in ("oracle", "itself"):
        assert row.steps == -(-len(expected) // (LOOKAHEAD + 1))


@pytest.mark.parametrize("kind", DRAFTERS)
def test_rule_13_any_end_token_of_several_ends_a_row(kind):
  engine = engines.make(kind, RANDOM, stop_ids=(2, 5))
  prompts = list(itertools.product(range(VOCAB), (0, 3, 5)))
  done = engines.complete(
    engine,
    [
      request(prompt, id, max_new_tokens=4) for id, prompt in enumerate(prompts)
    ],
  )
  reasons = set()
  for id, prompt in enumerate(prompts):
    full = table_model.greedy(RANDOM, prompt, 4)
    row = done[str(id)]
    assert row.token_ids == until(full, 2, 5)
    ended = row.token_ids[-1] in (2, 5)
    assert row.finish_reason == ("stop" if ended else "length")
    reasons.add(row.finish_reason)
  assert reasons == {"stop", "length"}


@pytest.mark.parametrize("kind", DRAFTERS)
def test_rule_13_a_sampled_row_emits_nothing_after_an_end_token(kind):
  engine = engines.make(kind, RANDOM, stop_ids=(2, 5))
  rows = [
    request((id % VOCAB, 1), id, temperature=1.5, max_new_tokens=40)
    for id in range(30)
  ]
  for row in engines.complete(engine, rows).values():
    assert row.token_ids == until(row.token_ids, 2, 5)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_rule_14_stop_strings_trim_text_ids_and_counts_together(kind):
  """Every stop string of 1 to 6 letters, so across every block border."""
  engine = engines.make(kind, COUNTING, tokenizer=engines.Letters())
  text = (ROUND * 4)[1 : 1 + 20]  # what follows "a"
  stops = [
    (text[at : at + size],) for at in range(VOCAB) for size in range(1, 7)
  ]
  # Several at once; one that never comes but is held back; none.
  stops += [("fgh", "g"), ("cdx", "gha"), ("habx",), ("x",), ()]
  done = engines.complete(
    engine, [request((0,), id, stop=stop) for id, stop in enumerate(stops)]
  )
  for id, stop in enumerate(stops):
    row = done[str(id)]
    shown, count = stopped(text, stop)
    assert row.text == shown, stop
    assert engines.Letters().decode(row.token_ids) == text[:count]
    cut = any(one in text for one in stop)
    assert row.finish_reason == ("stop" if cut else "length")


def test_rule_14_a_stop_string_may_begin_and_end_inside_a_token():
  engine = engines.make("oracle", COUNTING, tokenizer=Pairs())
  text = "".join(letter + letter.upper() for letter in (ROUND * 4)[1:21])
  stops = [(text[at : at + size],) for at in range(12) for size in range(1, 9)]
  done = engines.complete(
    engine, [request((0,), id, stop=stop) for id, stop in enumerate(stops)]
  )
  for id, stop in enumerate(stops):
    row = done[str(id)]
    shown, count = stopped(text, stop, width=2)
    assert (row.text, len(row.token_ids)) == (shown, count), stop
    assert row.finish_reason == "stop"


@pytest.mark.parametrize("kind", ("oracle", "wrong"))
def test_rule_14_an_end_token_is_an_id_of_the_output_but_no_text(kind):
  engine = engines.make(
    kind, COUNTING, stop_ids=(EOS, 1000), tokenizer=engines.Letters()
  )
  # The end token's letter is no text, so it is no stop string either; what
  # a stop string held back is shown after all.
  for stop in ((), ("h",), ("fgh",), ("gx",)):
    row = engines.complete(engine, [request((2,), stop=stop)])["0"]
    assert row.token_ids == (3, 4, 5, 6, EOS)
    assert row.text == "defg"
    assert row.finish_reason == "stop"
  row = engines.complete(engine, [request((2,), stop=("fg",))])["0"]
  assert (row.token_ids, row.text) == ((3, 4, 5, 6), "de")


def test_rule_14_the_budget_shows_what_a_stop_string_held_back():
  engine = engines.make("oracle", COUNTING, tokenizer=engines.Letters())
  row = engines.complete(
    engine, [request((0,), stop=("efgh",), max_new_tokens=6)]
  )["0"]
  assert (row.text, row.finish_reason) == ("bcdefg", "length")


@pytest.mark.parametrize("temperature", (0.0, 1.0))
@pytest.mark.parametrize("kind", DRAFTERS)
def test_rule_15_a_row_emits_max_new_tokens_and_never_more(kind, temperature):
  engine = engines.make(kind, RANDOM)
  budgets = range(1, 2 * LOOKAHEAD + 4)
  rows = [
    request((1, 4), n, max_new_tokens=n, temperature=temperature)
    for n in budgets
  ]
  done = engines.complete(engine, rows)
  for n in budgets:
    row = done[str(n)]
    assert (len(row.token_ids), row.finish_reason) == (n, "length")
    # The last token of a step is never a draft: none is drafted in vain.
    assert row.drafted <= LOOKAHEAD * row.steps
    if temperature == 0:
      assert row.token_ids == tuple(table_model.greedy(RANDOM, (1, 4), n))
    if kind == "itself" or (kind == "oracle" and not temperature):
      assert row.steps == -(-n // (LOOKAHEAD + 1))
      assert row.drafted == row.accepted == n - row.steps


def long_prompt(size: int) -> tuple[int, ...]:
  return tuple((index * index + index // 3) % VOCAB for index in range(size))


@pytest.mark.parametrize("kind", DRAFTERS)
def test_rule_16_a_row_is_right_up_to_the_last_place_of_the_context(kind):
  """Drafts never run past the context; neighbours are there to be clobbered."""
  engine = engines.make(kind, RANDOM)
  sizes = range(CAPACITY - LOOKAHEAD - 3, CAPACITY)
  rows = [request(long_prompt(n), n, max_new_tokens=50) for n in sizes]
  rows += [request((3,), "short", max_new_tokens=CAPACITY + 50)]
  done = engines.complete(engine, rows)
  for n in sizes:
    row, room = done[str(n)], CAPACITY - n
    expected = table_model.greedy(RANDOM, long_prompt(n), room)
    assert row.token_ids == tuple(expected), n
    assert row.finish_reason == "length"
  expected = table_model.greedy(RANDOM, (3,), CAPACITY - 1)
  assert done["short"].token_ids == tuple(expected)


@pytest.mark.parametrize("kind", ("sampled", "none"))
def test_rule_16_a_sampled_row_fills_the_context_and_no_more(kind):
  engine = engines.make(kind, RANDOM)
  sizes = range(CAPACITY - LOOKAHEAD - 3, CAPACITY)
  rows = [
    request(long_prompt(n), n, max_new_tokens=50, temperature=1.0)
    for n in sizes
  ]
  for n, row in engines.complete(engine, rows).items():
    assert len(row.token_ids) == CAPACITY - int(n)


def refused(engine, prompt, **settings) -> str:
  """The error of a request that cannot run; its neighbours run on."""
  done = engines.complete(
    engine,
    [
      request((1, 4), "before"),
      request(prompt, "bad", **settings),
      request((1, 4), "after"),
    ],
  )
  expected = tuple(table_model.greedy(RANDOM, (1, 4), 20))
  assert done["before"].token_ids == done["after"].token_ids == expected
  bad = done["bad"]
  assert (bad.finish_reason, bad.token_ids, bad.text) == ("error", (), "")
  assert bad.prompt_tokens == len(prompt)
  return bad.error


@pytest.mark.parametrize("size", (CAPACITY, CAPACITY + 1, 5 * CAPACITY))
def test_rule_16_too_long_a_prompt_is_refused_by_name(size):
  error = refused(engines.make("oracle", RANDOM), long_prompt(size))
  assert f"prompt has {size} tokens" in error
  assert str(CAPACITY) in error and str(CAPACITY - 1) in error


def test_rule_16_an_empty_prompt_is_refused():
  error = refused(engines.make("oracle", RANDOM), ())
  assert "prompt is empty" in error


@pytest.mark.parametrize("token", (-1, VOCAB, 2**40))
def test_rule_5_an_id_out_of_range_is_refused_by_name(token):
  error = refused(engines.make("oracle", RANDOM), (1, token, 2))
  assert f"token id {token}" in error and f"[0, {VOCAB})" in error


def test_rule_28_a_lookahead_beyond_the_engines_is_refused():
  engine = engines.make("oracle", RANDOM)
  error = refused(engine, (1,), lookahead=LOOKAHEAD + 1)
  assert f"lookahead is {LOOKAHEAD + 1}" in error
  assert f"at most {LOOKAHEAD}" in error


def test_rule_28_stop_strings_without_a_tokenizer_are_refused():
  error = refused(engines.make("oracle", RANDOM), (1,), stop=("a",))
  assert "tokenizer" in error
