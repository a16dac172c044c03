"""Encoder-decoders learn pairs: the loss, what padding does, and what drafts.

The reference is a pass of one pair alone through the engine's own encoder and
cache.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.training import packing, trainer
from tests.benchmark import tiny
from tests.training import made, pairs


@pytest.fixture(scope="module", autouse=True)
def quick():
  with tiny.compiled_quickly():
    yield


def arrays(batch):
  return {name: jnp.asarray(value) for name, value in batch.items()}


def parameters(objective, seed=0):
  return {n: jnp.asarray(x) for n, x in objective.init(seed).items()}


def each_pair(corpus):
  for first, last, size in zip(
    corpus.starts[:-1], corpus.starts[1:], corpus.answer, strict=True
  ):
    text = corpus.tokens[first:last]
    yield text[:size], text[size:]


def by_hand(objective, params, corpus):
  """Minus the log-probability of all outputs, a pair at a time."""
  model = objective.model
  own = tuple(params[path] for path in model.paths)

  @jax.jit
  def logits(own, source, size, tokens):
    cache = model.init_cache(1, pairs.LENGTH)
    cache = model.encode(own, source, size, cache)
    return model(own, tokens, cache).logits[0]

  total = 0.0
  for source, output in each_pair(corpus):
    padded = np.zeros((1, pairs.LENGTH), np.int32)
    padded[0, : len(source)] = source
    tokens = np.zeros((1, pairs.LENGTH), np.int32)
    tokens[0, 0] = model.config.start_id
    tokens[0, 1 : len(output)] = output[:-1]
    found = logits(own, padded, np.asarray([len(source)], np.int32), tokens)
    found = np.asarray(found, np.float64)[: len(output)]
    found -= np.log(np.exp(found).sum(-1, keepdims=True))
    total -= found[np.arange(len(output)), output].sum()
  return total


@pytest.fixture(scope="module")
def objective():
  return pairs.draft()


@pytest.fixture(scope="module")
def graded(objective):
  """Jitted: (parameters, batch) to ((loss, metrics), gradients)."""
  run = jax.jit(jax.value_and_grad(objective.loss, has_aux=True))
  return lambda params, batch: run(params, objective.frozen, batch)


def test_the_loss_of_packed_pairs_is_that_of_each_pair_alone(objective, graded):
  corpus, params = pairs.corpus(7), parameters(objective)
  rows = pairs.rows(corpus)
  assert len(rows) < len(corpus)  # Some share a row.
  (found,) = packing.in_order(rows, len(rows), 1)
  (loss, metrics), _ = graded(params, arrays(found))
  assert metrics["loss"][1] == rows.predicted
  assert float(loss) == pytest.approx(by_hand(objective, params, corpus), 1e-5)


def test_padding_changes_neither_loss_nor_gradients(objective, graded):
  corpus, params = pairs.corpus(7), parameters(objective)
  rows = pairs.rows(corpus)
  (found,) = packing.in_order(rows, len(rows), 1)
  junk = dict(found)
  for name, where in (
    ("source", "source_text"), ("tokens", "text"), ("next", "text"),
  ):  # fmt: skip
    junk[name] = np.where(found[where] == 0, 77, found[name])
  assert any((junk[name] != found[name]).any() for name in junk)
  # More room, and a row of nothing.
  wide = pairs.rows(corpus, 2 * pairs.LENGTH)
  (wider,) = packing.in_order(wide, len(wide) + 1, 1)
  (loss, _), slopes = graded(params, arrays(found))
  for other in (junk, wider):
    (same, _), others = graded(params, arrays(other))
    assert float(same) == pytest.approx(float(loss), rel=1e-5)
    for name, slope in slopes.items():
      np.testing.assert_allclose(
        others[name], slope, rtol=1e-3, atol=1e-4, err_msg=name
      )


def test_no_pair_sees_another(objective, graded):
  """A pair's own loss, beside any neighbours."""
  params, corpus = parameters(objective), pairs.corpus(4)
  rows = packing.Pairs(corpus, 64, start=0)
  assert len(rows) == 1
  whole, _ = graded(params, arrays(next(packing.in_order(rows, 1, 1))))
  alone = 0.0
  for pair in range(4):
    rows = packing.Pairs(corpus.take(np.asarray([pair])), 64, start=0)
    one, _ = graded(params, arrays(next(packing.in_order(rows, 1, 1))))
    alone += float(one[0])
  assert float(whole[0]) == pytest.approx(alone, rel=1e-5)


def test_all_of_a_targets_layers_are_the_target():
  own = pairs.target()
  objective = pairs.draft({"kl": 1.0, "tv": 0.5}, layers=(0, 1), ends="own")
  (batch,) = packing.in_order(pairs.rows(pairs.corpus(5)), 3, 1)
  loss, metrics = jax.jit(objective.loss)(
    parameters(objective), objective.frozen, arrays(batch)
  )
  assert own.model.config.layers == 2 and abs(float(loss)) < 1e-3
  accepted, weight = metrics["acceptance"]
  assert accepted / weight == pytest.approx(1.0, abs=1e-4)


def test_queries_begin_small_where_scores_are_not_divided(objective):
  begun = pairs.draft(size={"d_model": 32}).init(0)
  sizes = {k: float(x.std() * x.shape[-1] ** 0.5) for k, x in begun.items()}
  for part in ("attention", "cross"):
    assert sizes[f"layers.0.{part}.q.weight"] == pytest.approx(8**-0.5, rel=0.2)
    assert sizes[f"layers.0.{part}.k.weight"] == pytest.approx(1.0, rel=0.2)


@pytest.fixture(scope="module")
def sides():
  return tuple(map(pairs.rows, pairs.corpus(40).split(0.1, pairs.LENGTH)))


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
  tmp_path, objective, sides
):
  learner = trainer.Trainer(objective, made.options(steps=4))
  straight, done = trainer.run(learner, *sides, tmp_path / "a")
  calls = iter(range(9))
  stopped, early = trainer.run(
    learner, *sides, tmp_path / "b", stop=lambda: next(calls) >= 3
  )
  assert done and not early and int(stopped["step"]) == 3
  resumed, done = trainer.run(learner, *sides, tmp_path / "b")
  assert done
  for one, other in zip(
    jax.tree.leaves(straight), jax.tree.leaves(resumed), strict=True
  ):
    np.testing.assert_array_equal(one, other)
  losses = [
    row["held_out_loss"]
    for row in trainer.read_log(tmp_path / "a" / trainer.LOG)
    if "held_out_loss" in row
  ]
  assert losses[-1] < losses[0]


def test_a_trained_pair_drafts_and_greedy_stays_the_targets(tmp_path, sides):
  """Rule 25, and drafts that were learned are kept more often."""
  target, drafts = pairs.target(), {}
  how = dict(layers=(0,), ends="own")
  objective = pairs.draft({"kl": 1.0}, **how)
  objective.save(parameters(objective), tmp_path / "begun")
  learner = trainer.Trainer(objective, made.options(steps=60))
  state, _ = trainer.run(learner, *sides, tmp_path / "run")
  objective.save(state["params"], tmp_path / "trained")
  sources = [source for source, _ in each_pair(pairs.corpus(4, seed=9))]
  prompts = [source.tolist() for source in sources]
  how = dict(capacity=64, slots=4)
  plain = specjax.Engine(target, proposer="none", **how)
  wanted = plain.generate(prompts, max_new_tokens=12)
  for name in ("begun", "trained"):
    draft = specjax.load(tmp_path / name)
    engine = specjax.Engine(
      target, proposer="draft_model", draft=draft, lookahead=2, **how
    )
    found = engine.generate(prompts, max_new_tokens=12)
    assert [one.token_ids for one in found] == [one.token_ids for one in wanted]
    drafts[name] = sum(one.accepted for one in found)
  assert drafts["trained"] > drafts["begun"], drafts


@pytest.mark.parametrize(
  "answer, length, words",
  [
    (0, 16, "made: the prompt of pair 2 has no token"),
    (5, 16, "made: the answer of pair 2 has no token"),
    (1, 3, "the answer of pair 2 has 4 tokens, and --length is 3; give --le"),
  ],
)  # fmt: skip
def test_pairs_that_are_none_are_refused(answer, length, words):
  corpus = pairs.data.Corpus(
    tokens=np.arange(8, dtype=np.int32),
    starts=np.asarray([0, 3, 8], np.int64),
    answer=np.asarray([1, answer], np.int32),
    name="made",
    is_pairs=True,
  )
  with pytest.raises(ValueError, match=words):
    packing.Pairs(corpus, length, start=0)


def test_both_answers_to_a_prompt_are_held_out_together_and_none_is_cut():
  corpus = pairs.corpus(20)
  both = pairs.data.join([corpus, corpus])
  kept, held = both.split(0.1, 4)  # Shorter than the pairs.
  assert kept.is_pairs and len(kept) + len(held) == 40
  prompts = [
    {source.tobytes() for source, _ in each_pair(side)} for side in (kept, held)
  ]
  assert not prompts[0] & prompts[1]
