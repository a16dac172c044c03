"""Heads are trained on what they will be asked, and written as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import heads
from specjax.training import chain, packing, recipes
from tests.training import made

KEPT = np.arange(0, 120, dtype=np.int32)
KINDS = {
  "eagle": ("eagle", dict(steps=2)),
  "eagle3": ("eagle", dict(steps=2, start_layer=-1, fuses=True)),
  "medusa": ("medusa", dict(steps=2)),
  "mtp": ("mtp", dict(steps=2, start_layer=0)),
}
WAITING = ("embed_norm.weight", "token_norm.weight")


def batch(corpus=None):
  rows = packing.Rows(made.corpus() if corpus is None else corpus, made.LENGTH)
  found = next(packing.in_order(rows, 2, 1))
  return {name: jnp.asarray(value) for name, value in found.items()}


def head(name, weights=None, kept=KEPT):
  kind, how = KINDS[name]
  weights = weights or {"next_token": 1.0}
  return recipes.head(kind, made.target(), kept, (), weights, **how)


def params(objective):
  return {n: jnp.asarray(x) for n, x in objective.init(0).items()}


def knowing(steps, at=0):
  """Steps that are sure of the token that comes; `at` puts them off."""

  def run(own, target, one, states):
    for step in range(steps):
      moved = jnp.roll(one["tokens"], -(step + 2 + at), axis=1)
      yield 50.0 * jax.nn.one_hot(moved, len(KEPT)), None

  return run


def test_step_s_of_position_i_is_asked_for_token_i_plus_2_plus_s():
  import dataclasses

  one = batch()
  asked = head("medusa")
  own = params(asked)

  @jax.jit
  def run(at):
    objective = dataclasses.replace(asked, steps=knowing(3, at))
    return objective.loss(own, asked.frozen, one)

  for at, right in ((1, False), (-1, False), (0, True)):
    total, metrics = run(jnp.int32(at))
    assert (float(total) < 1e-3) == right
  # Of a text of n tokens step s has n - 2 - s positions; it is the first row's.
  counts = [float(metrics[f"acceptance_{s}"][1]) for s in (1, 2, 3)]
  row = {name: value[:1] for name, value in one.items()}
  begins = int((row["positions"] == 0).sum()) - _padding(row)
  total = float(row["weight"].sum())
  assert counts == [total - begins * s for s in (1, 2, 3)]


def _padding(one):
  """Positions that belong to no text."""
  nothing = (one["positions"] == 0) & (one["weight"] == 0)
  return int(nothing.sum())


def test_eagle_is_trained_on_the_states_that_come():
  objective, one = head("eagle", {"feature": 1.0}), batch()
  law, model = objective.law, objective.model
  own = (*(params(objective)[p] for p in model.head.paths),)
  own = (*own, *objective.frozen["extras"])
  target = made.target().params
  states = jax.jit(law.states)(objective.frozen, one)
  run = jax.jit(lambda *given: list(objective.steps(*given)))
  guesses = run(own, target, one, states)
  # A text's pairs as the proposer reads them: (state before, token).
  begins = np.flatnonzero(np.asarray(one["positions"][0]) == 0)
  length = int(begins[1]) if len(begins) > 1 else made.LENGTH
  tokens = one["tokens"][:1, :length]
  hidden = model.fuse(own, target, states[:1, : length - 1])
  read = jax.jit(model)(own, target, tokens[:, 1:], hidden)
  logits, predicted = guesses[0]
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
  close(logits[0, : length - 1], read.logits[0])
  close(predicted[0, : length - 1], read.hidden[0])


@pytest.mark.parametrize(
  "name",
  [
    "eagle",
    "medusa",
    pytest.param("eagle3", marks=pytest.mark.long),
    pytest.param("mtp", marks=pytest.mark.long),
  ],
)
def test_every_parameter_of_a_head_learns_and_is_written(tmp_path, name):
  weights = {"kl": 1.0, "next_token": 0.1, "tv": 0.1}
  if name == "eagle":
    weights["feature"] = 0.5
  objective, one = head(name, weights), batch()
  own = params(objective)

  @jax.jit
  def run(own):
    return jax.value_and_grad(objective.loss, has_aux=True)(
      own, objective.frozen, one
    )

  (total, metrics), grads = run(own)
  assert np.isfinite(float(total))
  still = {n for n, g in grads.items() if not float(jnp.abs(g).max()) > 0}
  # What zeros read learns when they have moved.
  assert still <= {n for n in own if n.endswith(WAITING)}
  parts = sum(
    0.8 ** (s - 1) * weight * metrics[f"{loss}_{s}"][0]
    for s in (1, 2)
    for loss, weight in weights.items()
  )
  assert float(total) == pytest.approx(float(parts), rel=1e-4)
  for s in (1, 2):
    value, weight = metrics[f"acceptance_{s}"]
    assert 0 < value / weight < 1
  value, weight = metrics["tokens_per_step"]
  assert 1 < value / weight < 3

  objective.save(own, tmp_path)
  opened = heads.load_head(tmp_path, made.target(), kind=KINDS[name][0])
  assert opened.model.head.paths == objective.model.head.paths
  for path, value in zip(
    objective.model.head.paths, opened.params, strict=False
  ):
    np.testing.assert_array_equal(value, own[path])


def test_eagle_1_begins_better_than_at_random():
  objective, one = head("eagle", {"kl": 1.0}), batch()
  loss = jax.jit(lambda own: objective.loss(own, objective.frozen, one)[0])
  model = objective.model.head
  random = dict(zip(model.paths, model.init(0), strict=True))
  # And better than where the layer alone is.
  layer = random | {"fc.weight": params(objective)["fc.weight"]}
  assert loss(params(objective)) < min(loss(random), loss(layer))


def test_a_start_layer_that_is_none_is_named():
  how = dict(fuses=True, start_layer=2)
  with pytest.raises(ValueError, match="--start_layer=2: .* has 2 layers"):
    recipes.head("eagle", made.target(), None, (), {"kl": 1.0}, **how)


def test_medusas_steps_come_from_one_state():
  objective, one = head("medusa"), batch()
  own = tuple(params(objective).values())
  target = made.target().params
  states = jax.jit(objective.law.states)(objective.frozen, one)
  steps = chain.medusa(objective.model)
  own = (*own, *objective.frozen["extras"])
  run = jax.jit(lambda *given: list(steps(*given)))
  (first, _), (second, _) = run(own, target, one, states)
  # They begin as the target's own head, all of them.
  np.testing.assert_allclose(first, second, atol=1e-5)
