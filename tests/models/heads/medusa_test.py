"""Medusa's heads: what each computes, and how they begin."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax.checkpoints import heads
from specjax.models.heads import medusa
from specjax.models.heads.medusa import MedusaConfig
from tests.models import golden

TARGET = golden.load("llama_untied")
MODEL, PARAMS = TARGET.model, TARGET.params
WIDTH, VOCAB = MODEL.config.d_model, MODEL.vocab_size
KEPT = np.arange(1, VOCAB, 3)
SIZES = dict(d_model=WIDTH, vocab_size=VOCAB, heads=3, blocks=2)
KINDS = {
  "own": {},
  "shared": dict(shares=True),
  "own, reduced": dict(draft_vocab=len(KEPT)),
  "shared, reduced": dict(shares=True, draft_vocab=len(KEPT)),
}


def build(kind, **sizes):
  model = medusa.build(MedusaConfig(**SIZES | KINDS[kind] | sizes), MODEL)
  return model, KEPT if model.is_reduced else None


def random(model):
  draws = np.random.default_rng(2)
  return tuple(
    jnp.asarray(draws.normal(0, 0.3, spec.shape), spec.dtype)
    for spec in model.head.shapes
  )


def states():
  """The last layer's states after reading the golden tokens: [B, T, 1, D]."""
  last = MODEL.config.layers
  run = jax.jit(MODEL, static_argnums=(2, 3))
  return run(PARAMS, TARGET.tokens, None, (last,))


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_begins_as_the_targets_own(kind):
  model, kept = build(kind)
  params = model.complete(model.begin(PARAMS, kept), PARAMS, kept)
  assert [p.shape for p in params] == [s.shape for s in model.shapes]
  out = states()
  hidden = model.fuse(params, PARAMS, out.features)
  logits = jax.jit(model)(params, PARAMS, hidden)
  assert logits.shape == (*TARGET.tokens.shape, 3, model.draft_vocab)
  wanted = out.logits if kept is None else out.logits[..., kept]
  for head in range(3):
    golden.close(logits[:, :, head], wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_its_blocks_and_a_table(kind):
  """Against numpy: x + silu(Wx + b), twice, then the rows of a table."""
  model, kept = build(kind)
  own = random(model)
  params = model.complete(own, PARAMS, kept)
  draws = np.random.default_rng(0)
  hidden = draws.normal(size=(2, 3, WIDTH)).astype(np.float32)
  got = jax.jit(model, static_argnums=3)(params, PARAMS, hidden, 2)
  assert got.shape[2] == 2  # of so many heads
  by_path = dict(zip(model.head.paths, map(np.asarray, own), strict=True))
  table = np.asarray(PARAMS[MODEL.paths.index("head.weight")])
  for head in range(2):
    x = hidden
    for block in range(2):
      name = f"heads.{head}.blocks.{block}"
      out = x @ by_path[f"{name}.weight"].T + by_path[f"{name}.bias"]
      x = x + out / (1 + np.exp(-out))
    if not model.config.shares:
      rows = by_path[f"heads.{head}.head.weight"]
    else:
      rows = table if kept is None else table[kept]
    np.testing.assert_allclose(got[:, :, head], x @ rows.T, rtol=0, atol=1e-3)


def test_heads_of_one_shared_table_read_it_once():
  """One product with it, whatever the number of heads."""
  model, _ = build("shared")
  params = model.complete(model.begin(PARAMS), PARAMS)
  hidden = jnp.zeros((1, 1, WIDTH))
  traced = jax.make_jaxpr(model)(params, PARAMS, hidden)
  text = str(traced)
  assert text.count(f"f32[3,{VOCAB}] = dot_general") in (1, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ("medusa_head.", ""))
def test_a_saved_folder_comes_back_in_the_published_layout(
  kind, prefix, tmp_path
):
  model, kept = build(kind, prefix=prefix)
  own = random(model)
  heads.save_head(
    *(tmp_path, "medusa", model, own), target=MODEL.config, kept=kept
  )
  names = set(load_file(tmp_path / "model.safetensors"))
  tables = {f"{prefix}{i}.2.weight" for i in range(3)}
  assert names - {"d2t"} == {
    f"{prefix}{i}.{j}.linear.{what}"
    for i in range(3)
    for j in range(2)
    for what in ("weight", "bias")
  } | (set() if model.config.shares else tables)
  opened = heads.open_head(tmp_path, MODEL, kind="medusa")
  assert opened.model.config == model.config
  expected = model.complete(own, PARAMS, kept)
  for got, want in zip(opened.params(PARAMS), expected, strict=True):
    np.testing.assert_array_equal(got, want)


def published(folder, *, heads=2, width=WIDTH, vocab=VOCAB, content=None):
  """A folder as it is published: its config names neither size."""
  folder.mkdir(exist_ok=True)
  tensors = {}
  for i in range(heads):
    tensors[f"{i}.0.linear.weight"] = np.zeros((width, width), np.float32)
    tensors[f"{i}.0.linear.bias"] = np.zeros((width,), np.float32)
    tensors[f"{i}.1.weight"] = np.zeros((vocab, width), np.float32)
  save_file(tensors, folder / "model.safetensors")
  config = {
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    "medusa_num_heads": 2,
    "medusa_num_layers": 1,
  }
  (folder / "config.json").write_text(json.dumps(config | (content or {})))
  return folder


def test_a_published_folder_loads(tmp_path):
  opened = heads.open_head(published(tmp_path), MODEL, kind="medusa")
  config = opened.model.config
  assert dataclasses.asdict(config) == dict(
    **dict(d_model=WIDTH, vocab_size=VOCAB, heads=2, blocks=1),
    **dict(shares=False, draft_vocab=None, prefix=""),
  )
  assert len(opened.params(PARAMS)) == len(opened.model.shapes) == 6


@pytest.mark.parametrize(
  "how, words",
  [
    (dict(width=WIDTH + 8), f"d_model {WIDTH + 8}, and this one's is {WIDTH}"),
    (dict(vocab=VOCAB + 1), f"vocab_size {VOCAB + 1}, and this one's"),
    (dict(heads=3), r"3 unexpected: 2\.0\.linear\.bias"),
    (dict(heads=1), "3 missing: "),
    (dict(content={"medusa_choices": 3}), "unknown settings medusa_choices"),
    (dict(content={"medusa_num_heads": 0}), "medusa_num_heads is 0"),
    (dict(content={"specjax_embeddings": "target"}), r"unexpected: 0\.1\.w"),
  ],
)
def test_what_does_not_fit_is_named(how, words, tmp_path):
  with pytest.raises(ValueError, match=words):
    heads.open_head(published(tmp_path, **how), MODEL, kind="medusa")
