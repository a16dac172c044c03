"""Log-probabilities are the raw target's (RULES.md 12, 14)."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.checkpoints import hf
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.proposers.draft_model import DraftModel
from specjax.proposers.ngram import Ngram
from specjax.proposers.none import NoProposer
from tests import engines, table_model
from tests.engines import DRAFTERS, LOOKAHEAD, VOCAB, request

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
PARAMS = table_model.make_table(VOCAB, seed=29)
COUNTING = engines.counting_table()
TOP = 3
SETTINGS = (
  dict(),
  dict(temperature=1.0),
  dict(temperature=3.0, top_p=0.7),
  dict(temperature=0.7, top_k=3, min_p=0.05),
  dict(repetition_penalty=1.5, frequency_penalty=1.0),
  dict(temperature=2.0, presence_penalty=-2.0, logit_bias={1: 5, 2: -100}),
)


def log_softmax(logits):
  logits = np.asarray(logits, np.float64)
  shifted = logits - logits.max(axis=-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def check(row, done, rescored):
  """Against a teacher-forced rescore [ids, V] of what was emitted."""
  ids = np.asarray(done.token_ids)
  want = log_softmax(rescored)
  own = np.take_along_axis(want, ids[:, None], axis=1)[:, 0]
  np.testing.assert_allclose(done.logprobs, own, atol=2e-5)
  if not row.logprobs:
    assert done.top_logprobs is None
    return
  for pairs, law in zip(done.top_logprobs, want, strict=True):
    best = np.argsort(-law, kind="stable")[: row.logprobs]
    assert len(pairs) == row.logprobs
    top = [value for _, value in pairs]
    np.testing.assert_allclose(top, law[best], atol=2e-5)
    assert top == sorted(top, reverse=True)
    for id, value in pairs:
      assert abs(law[id] - value) < 2e-5


def table_rescore(params, row, done):
  history = [*row.prompt, *done.token_ids]
  return [
    table_model.next_law(params, history[:at])
    for at in range(len(row.prompt), len(history))
  ]


def rows(vocab=VOCAB, sizes=(1, 2, 3, 9, 20), most=12):
  draws = np.random.default_rng(0)
  return [
    request(
      draws.integers(0, vocab, size),
      f"{size} {settings}",
      max_new_tokens=most,
      logprobs=(None, 0, 1, TOP)[(size + index) % 4],
      **settings,
    )
    for size in sizes
    for index, settings in enumerate(SETTINGS)
  ]


@pytest.mark.parametrize("steps", (1, 3))
@pytest.mark.parametrize("kind", DRAFTERS)
def test_rule_12_they_equal_a_teacher_forced_rescore(kind, steps):
  """Whatever the settings, and beside rows that ask for none."""
  engine = engines.make(kind, PARAMS, top_logprobs=TOP, steps_per_sync=steps)
  made = rows()
  done = engines.complete(engine, made)
  for row in made:
    got = done[row.id]
    assert (got.logprobs is None) == (row.logprobs is None)
    if row.logprobs is not None:
      check(row, got, table_rescore(PARAMS, row, got))
  bare = [row for row in made if row.logprobs is None]
  alone = engines.complete(engine, bare)
  for row in bare:  # RULES 7
    assert done[row.id].token_ids == alone[row.id].token_ids


# Plainly the table above is, too.
@pytest.mark.parametrize(
  "kind",
  (pytest.param("none", marks=pytest.mark.long), "ngram", "draft_model"),
)
def test_rule_12_a_real_decoders_equal_a_rescore(kind):
  folder = GOLDENS / "llama_tied"
  config = config_lib.from_hugging_face(hf.read_config(folder))
  model = decoder.build(config)
  params = hf.load_params(folder, model)
  proposer, own = {
    "none": (NoProposer(), ()),
    "ngram": (Ngram(lookahead=LOOKAHEAD, shortest=1), ()),
    "draft_model": (
      DraftModel(model=model, lookahead=LOOKAHEAD, vocab_size=model.vocab_size),
      params,
    ),
  }[kind]
  engine = engines.build(
    model, params, proposer, own, top_logprobs=TOP, capacity=120
  )
  made = [r for r in rows(model.vocab_size) if r.logprobs is not None]
  run = jax.jit(lambda tokens, cache: model(params, tokens, cache).logits)
  cache = model.init_cache(1, 120)
  for row, got in (
    (row, done)
    for done in engines.complete(engine, made).values()
    for row in made
    if row.id == done.id
  ):
    ids = [*row.prompt, *got.token_ids]
    tokens = jnp.asarray([ids + [0] * (64 - len(ids))], jnp.int32)
    logits = np.asarray(run(tokens, cache)[0])
    check(row, got, logits[len(row.prompt) - 1 : len(ids) - 1])


@functools.cache
def counting(kind, stop_ids=engines.NO_STOPS):
  return engines.make(
    kind,
    COUNTING,
    tokenizer=engines.Letters(),
    stop_ids=stop_ids,
    top_logprobs=TOP,
  )


@pytest.mark.parametrize("kind", ("oracle", "none"))
def test_rule_14_they_end_where_ids_and_text_end(kind):
  """At a stop string, an end token or a budget, at each place of a block."""
  made = [
    request((0,), f"{stop} {n}", stop=stop, max_new_tokens=n, logprobs=TOP)
    for stop in ((), ("d",), ("efg",), ("ha", "x"), ("hab",))
    for n in (1, 3, 5, 6, 20)
  ]
  ends = counting(kind, stop_ids=(6, 1000))
  for engine in (counting(kind), ends):
    done = engines.complete(engine, made)
    sizes = set()
    for row in made:
      got = done[row.id]
      assert len(got.logprobs) == len(got.top_logprobs) == len(got.token_ids)
      check(row, got, table_rescore(COUNTING, row, got))
      sizes.add(len(got.token_ids))
    assert len(sizes) > 3
  assert {r.finish_reason for r in done.values()} == {"stop", "length"}


def test_a_failed_row_keeps_those_of_what_it_said():
  params = (COUNTING[0].at[:, :, 4].set(jnp.nan),)
  engine = engines.make("oracle", params, top_logprobs=TOP)
  got = engines.complete(engine, [request((0,), logprobs=1)])["0"]
  assert got.error is not None
  assert len(got.logprobs) == len(got.top_logprobs) == len(got.token_ids)


def test_more_than_the_engine_is_made_for_is_refused_by_name():
  engine = engines.make("oracle", PARAMS)
  made = [request((1,), "bad", logprobs=2), request((1,), "own", logprobs=0)]
  done = engines.complete(engine, made)
  assert "logprobs is 2" in done["bad"].error
  assert "top_logprobs" in done["bad"].error
  assert len(done["own"].logprobs) == 20


@pytest.mark.parametrize("top", (-1, 1.5, True, VOCAB + 1))
def test_an_engines_top_logprobs_must_be_possible(top):
  with pytest.raises(ValueError, match="top_logprobs is"):
    engines.make("oracle", PARAMS, top_logprobs=top)
