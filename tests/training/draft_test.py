"""Draft models that are trained: how they begin, and what is written."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import heads, pretrained
from specjax.checkpoints import random_folder, tensor_files
from specjax.models import decoder, presets
from specjax.training import packing, recipes
from specjax.training.objective import Law
from tests.training import made

draw = decoder.drawn
KEPT = np.arange(0, 120, 2, dtype=np.int32)
NARROW = {
  "hidden_size": 32,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "intermediate_size": 64,
}


def batch():
  rows = packing.Rows(made.corpus(), made.LENGTH)
  found = next(packing.in_order(rows, 2, 1))
  return {name: jnp.asarray(value) for name, value in found.items()}


def log_q(objective):
  params = {n: jnp.asarray(x) for n, x in objective.init(0).items()}
  run = jax.jit(objective.log_q)
  return run(params, objective.frozen, batch()), params


def test_all_of_a_targets_layers_are_the_target():
  objective = made.draft({"kl": 1.0}, layers=(0, 1))
  found, params = log_q(objective)
  own, one = made.target(), batch()
  logits = made.logits(own.params, one["tokens"], one["positions"])
  np.testing.assert_allclose(
    found, logits - jnp.logaddexp.reduce(logits, axis=-1, keepdims=True),
    atol=1e-4,
  )  # fmt: skip
  loss, metrics = jax.jit(objective.loss)(params, objective.frozen, one)
  assert abs(float(loss)) < 1e-3
  accepted, weight = metrics["acceptance"]
  assert accepted / weight == pytest.approx(1.0, abs=1e-4)


def test_repeated_layers_begin_as_the_target_and_learn():
  objective = made.draft(
    {"next_token": 1.0}, layers=(0, 0, 0, 1, 1), ends="own"
  )
  found, params = log_q(objective)
  assert objective.model.config.layers == 5
  whole, _ = log_q(made.draft({"next_token": 1.0}, layers=(0, 1), ends="own"))
  np.testing.assert_allclose(found, whole, atol=1e-5)
  slopes = jax.jit(
    jax.grad(lambda p: objective.loss(p, objective.frozen, batch())[0])
  )(params)
  for number in (1, 2, 4):
    for path in ("attention.o.weight", "mlp.down.weight"):
      assert not params[f"layers.{number}.{path}"].any()
      assert abs(slopes[f"layers.{number}.{path}"]).max() > 1e-6


def test_a_repeated_layer_whose_output_is_normed_is_deepened_gently(tmp_path):
  config = made.LLAMA | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "head_dim": 16,
    "layer_types": ["full_attention"] * made.LAYERS,
    "query_pre_attn_scalar": 16,
    "rope_local_base_freq": 10_000.0,
    "hidden_activation": "gelu_pytorch_tanh",
  }
  with mock.patch.dict(presets.PRESETS, {"tiny": config}):
    random_folder.write(tmp_path, "tiny", seed=1)
  target = pretrained.load(tmp_path, dtype="float32")
  law = Law(target=target.model, kept=None, layers=(made.LAYERS,))

  def begun(*layers):
    how = dict(placement=None, ends="own", layers=layers)
    objective = recipes.draft(target, law, {"next_token": 1.0}, **how)
    return objective, *log_q(objective)

  _, whole, _ = begun(0, 1)
  objective, first, params = begun(0, 0, 1)
  np.testing.assert_allclose(first, whole, atol=1e-5)
  # A norm made a product of almost nothing as large as any other.
  moved = {
    name: value + 1e-4 if ".1.attention.o." in name else value
    for name, value in params.items()
  }
  after = jax.jit(objective.log_q)(moved, objective.frozen, batch())
  np.testing.assert_allclose(after, first, atol=1e-5)


@pytest.mark.parametrize(
  "kept, how",
  [
    (None, dict(layers=(1,))),
    (KEPT, dict(layers=(1,))),
    (KEPT, dict(size=NARROW)),
    (None, dict(layers=(1,), ends="own")),
    (KEPT, dict(layers=(1,), ends="head")),
    (None, dict(size={"num_hidden_layers": 1}, ends="head")),
  ],
  ids=["thin", "reduced", "narrow", "own", "own rows", "own head"],
)  # fmt: skip
def test_what_is_written_is_what_was_trained(tmp_path, kept, how):
  objective = made.draft(kept=kept, **how)
  found, params = log_q(objective)
  objective.save(params, tmp_path)
  target = made.target()
  names = _tensors(tmp_path)
  thin = how.get("ends") != "own" and "hidden_size" not in how.get("size", {})
  assert ("model.embed_tokens.weight" in names) == (not thin)
  assert ("d2t" in names) == (kept is not None)
  assert ("lm_head.weight" in names) == (how.get("ends") == "head")
  one = batch()
  if thin or kept is not None:
    opened = heads.load_head(tmp_path, target, kind="draft_model")
    model, own = opened.model, opened.params
    run = jax.jit(lambda own, theirs, x: model(own, theirs, x, None).logits)
    logits = run(own, target.params, one["tokens"])
  else:
    opened = pretrained.load(tmp_path)
    run = jax.jit(lambda own, x: opened.model(own, x, None).logits)
    logits = run(opened.params, one["tokens"])
  logits = logits - jnp.logaddexp.reduce(logits, axis=-1, keepdims=True)
  # Its first text alone: the draft decodes no packed rows.
  begins = np.flatnonzero(np.asarray(one["positions"][0]) == 0)
  first = int(begins[1]) if len(begins) > 1 else made.LENGTH
  np.testing.assert_allclose(
    logits[0, :first], found[0, :first], rtol=1e-4, atol=1e-4
  )


def test_a_head_of_its_own_begins_as_the_targets_rows_and_is_trained():
  weights = {"kl": 1.0}
  bare = made.draft(weights, kept=KEPT, layers=(0, 1))
  own = made.draft(weights, kept=KEPT, layers=(0, 1), ends="head")
  found, params = log_q(own)
  np.testing.assert_allclose(found, log_q(bare)[0], atol=1e-5)
  assert params["head.weight"].shape == (len(KEPT), made.WIDTH)
  assert set(own.axes) == {*bare.axes, "head.weight"}
  # At the beginning it is the target, and next to nothing is to be learned.
  shaken = params | {"head.weight": params["head.weight"] * 1.5}
  slope = jax.jit(jax.grad(lambda p: own.loss(p, own.frozen, batch())[0]))
  assert jnp.abs(slope(shaken)["head.weight"]).max() > 0.01


@pytest.mark.parametrize("ends", ["target", "head", "own"])
def test_what_is_the_targets_is_not_drawn(ends, monkeypatch):
  drawn = []
  monkeypatch.setattr(
    decoder,
    "drawn",
    lambda paths, *rest: drawn.extend(paths) or draw(paths, *rest),
  )
  objective = made.draft(size={"num_hidden_layers": 1}, ends=ends)
  drawn.clear()
  params = objective.init(0)
  borrowed = {"embed.weight", "head.weight"}
  assert (borrowed & set(drawn) == set()) == (ends != "own")
  assert set(drawn) | (borrowed & set(params)) == set(params)
  if ends == "head":
    rows = objective.frozen["target"][objective.law.head]
    np.testing.assert_array_equal(params["head.weight"], rows)


def test_a_fitted_head_reads_the_drafts_states_as_the_target_reads_its_own():
  """One layer of two: least squares take its states to the target's."""
  texts = made.corpus()
  rows = packing.Rows(texts, made.LENGTH)
  accepted = {}
  for name, fitted_to in (("as it is", None), ("fitted", rows)):
    objective = made.draft(
      {"kl": 1.0}, layers=(0,), ends="head", fitted_to=fitted_to
    )
    params = {n: jnp.asarray(x) for n, x in objective.init(0).items()}
    run = jax.jit(objective.loss)
    _, metrics = run(params, objective.frozen, batch())
    total, weight = metrics["acceptance"]
    accepted[name] = float(total / weight)
  assert accepted["fitted"] > accepted["as it is"] + 0.02, accepted
  # All layers' states are the target's own: the fit changes nothing.
  whole = [
    made.draft({"kl": 1.0}, layers=(0, 1), ends="head", fitted_to=fitted_to)
    for fitted_to in (None, rows)
  ]
  np.testing.assert_allclose(
    log_q(whole[1])[0], log_q(whole[0])[0], rtol=0.02, atol=0.02
  )


def _tensors(folder):
  import contextlib
  import pathlib

  with contextlib.ExitStack() as stack:
    return set(tensor_files.open_folder(pathlib.Path(folder), stack))


def test_bfloat16_computes_beside_float32_masters():
  objective = made.draft({"kl": 1.0}, dtype="bfloat16")
  assert objective.model.dtype == jnp.bfloat16
  params = objective.init(0)
  assert {value.dtype for value in params.values()} == {np.dtype(np.float32)}


def test_the_most_frequent_ids_are_kept_and_the_end_of_a_text():
  corpus, target = made.corpus(), made.target()
  kept = recipes.kept_ids(corpus, target, 50, prompts=False)
  assert kept.dtype == np.int32 and (np.diff(kept) > 0).all()
  assert set(target.tokenizer.eos_ids) <= set(kept.tolist())
  counts = corpus.counts(made.V, prompts=False)
  rest = np.setdiff1d(np.arange(made.V), kept)
  assert counts[kept[:-1]].min() >= counts[rest].max()
  assert recipes.kept_ids(corpus, target, 0, prompts=False) is None
  with pytest.raises(ValueError, match="--vocabulary=265 is more than the 264"):
    recipes.kept_ids(corpus, target, 265, prompts=False)


@pytest.mark.parametrize(
  "how, words",
  [
    (dict(layers=(0, 2)), "--layers=0,2: .* has 2 layers; give numbers from"),
    (dict(layers=(1, 0)), "--layers=1,0"),
    (dict(size={"odd": 3}), "--size=odd:3: .* has no such size"),
    (dict(size={"vocab_size": 10}), "--size=vocab_size:10 is not the target's"),
    (
      dict(size={"hidden_size": 32}, ends="target"),
      "--ends=target needs the target's width",
    ),
  ],
)
def test_a_draft_that_cannot_be_is_refused_by_name(how, words):
  with pytest.raises(ValueError, match=words):
    made.draft(**how)
