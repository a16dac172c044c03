"""n samples of a prompt (RULES.md 7, 11, 28)."""

import collections

import pytest

from specjax.engine.request import Chunk, SamplingParams
from tests import engines, table_model
from tests.engines import VOCAB, request

PARAMS = table_model.make_table(VOCAB, seed=31)
HOT = dict(temperature=1.5)


def samples(engine, requests):
  """{(id, sample): Completion}; chunks add up, each under its sample."""
  done, said = {}, collections.defaultdict(tuple)
  for event in engine.run(requests):
    key = (event.id, event.sample)
    if isinstance(event, Chunk):
      said[key] += event.token_ids
    else:
      assert key not in done
      assert said[key] == event.token_ids
      done[key] = event
  return done


def ids(done):
  return {key: row.token_ids for key, row in done.items()}


@pytest.mark.parametrize("kind", ("sampled", "none"))
@pytest.mark.parametrize("seed", (None, 5))
def test_rule_11_samples_repeat_and_the_first_is_that_of_one(kind, seed):
  """Whatever runs beside them and in whatever order: five at three slots."""
  engine = engines.make(kind, PARAMS)
  row = request((1, 2), "a", n=5, seed=seed, **HOT)
  base = ids(samples(engine, [row]))
  assert list(sorted(base)) == [("a", n) for n in range(5)]
  assert len(set(base.values())) == 5
  others = [request((3,), n, n=1 + n % 3, **HOT) for n in range(5)]
  again = ids(samples(engine, [*others, row]))
  assert {key: again[key] for key in base} == base
  one = ids(samples(engine, [request((1, 2), "a", seed=seed, **HOT)]))
  assert one == {("a", 0): base["a", 0]}
  more = ids(samples(engine, [request((1, 2), "a", n=7, seed=seed, **HOT)]))
  assert {key: more[key] for key in base} == base


@pytest.mark.parametrize("options", (dict(), dict(whole_batch_prefill=True)))
def test_rule_7_a_copied_prompt_is_as_one_that_is_read(options):
  """At one slot nobody can be copied; prompts of one and of four chunks."""
  made = [
    request(prompt, name, n=4, frequency_penalty=0.5, **HOT, **own)
    for name, prompt, own in (
      ("ready", (1,), dict()),
      ("short", (1, 2), dict(lookahead=2, seed=3)),
      ("plain", (5, 2, 2), dict(lookahead=0)),
      ("long", (1, 2, 3) * 9, dict(logprobs=0, max_new_tokens=5)),
    )
  ]
  alone = samples(engines.make("sampled", PARAMS, slots=1), made)
  together = samples(engines.make("sampled", PARAMS, **options), made)
  assert ids(together) == ids(alone)
  for key, row in together.items():
    assert row.drafted == alone[key].drafted
    assert row.accepted == alone[key].accepted


def test_samples_that_start_together_read_their_prompt_once():
  engine = engines.make("itself", PARAMS)
  chunks = []
  fill = engine._fill
  engine._fill = lambda width, *rest: chunks.append(width) or fill(width, *rest)
  done = samples(engine, [request((1, 2, 3) * 6, "a", n=3, **HOT)])
  assert chunks == [8, 8, 3]  # 17 tokens
  # RULES 17: the draft's cache is copied, too.
  assert all(row.accepted == row.drafted > 0 for row in done.values())
  assert len({row.token_ids for row in done.values()}) == 3


def test_rule_11_no_sample_of_a_seed_is_a_sample_of_another():
  words = {
    SamplingParams(seed=seed).seed_words(0, "a", sample)
    for seed in range(30)
    for sample in range(30)
  }
  words |= {
    SamplingParams().seed_words(0, f"row {name}", sample)
    for name in range(30)
    for sample in range(30)
  }
  assert len(words) == 2 * 900
  assert SamplingParams(seed=7).seed_words(0, "a", 0) == (0, 7)


def test_every_completion_says_of_how_many_it_is():
  engine = engines.make("sampled", PARAMS)
  made = [request((1,), "two", n=2, **HOT), request((2,), "one")]
  done = samples(engine, made)
  said = {key: (row.sample, row.samples) for key, row in done.items()}
  assert said == {("two", 0): (0, 2), ("two", 1): (1, 2), ("one", 0): (0, 1)}


def test_a_prompt_that_cannot_run_fails_in_each_sample():
  engine = engines.make("sampled", PARAMS)
  done = samples(engine, [request((VOCAB,), "bad", n=3, **HOT)])
  assert [(row.sample, row.samples) for row in done.values()] == [
    (0, 3),
    (1, 3),
    (2, 3),
  ]
  assert all("token id" in row.error for row in done.values())


def test_requests_are_pulled_as_slots_fall_free():
  """Not all at once: the samples of one are run before the next is read."""
  engine = engines.make("sampled", PARAMS)
  pulled = []

  def pending():
    for name in range(4):
      pulled.append(name)
      yield request((1,), name, n=4, **HOT)

  for event in engine.run(pending()):
    assert pulled[-1] <= int(event.id) + 1


def test_rule_28_samples_of_a_greedy_row_are_an_error():
  with pytest.raises(ValueError, match="n is 3; at temperature 0 all samples"):
    request((1,), n=3)
