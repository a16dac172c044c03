"""Heads' folders: published layouts, both ways, and strict on both sides."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax.checkpoints import heads
from specjax.checkpoints.tensor_files import CheckpointError
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.models.heads import thin
from tests.models.heads import tiny

LAYER = (
  *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
  *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
  "post_attention_layernorm.weight",
)
# As SafeAILab's repositories have them.
EAGLE = {"fc.weight", *(f"layers.0.{name}" for name in LAYER)}
EAGLE3 = {
  *("fc.weight", "norm.weight", "lm_head.weight"),
  *(f"midlayer.{name}" for name in LAYER),
  *("midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight"),
}


def saved(folder, fuses, reduced, *, bias=False, **how):
  """(model, params, kept) of a head that lies in the folder now."""
  target, _ = tiny.target()
  model, params, kept = tiny.head(fuses, reduced, bias)
  heads.save_head(
    *(folder, "eagle", model, params),
    target=target.config,
    tokenizer="aa",
    kept=kept,
    **how,
  )
  return model, params, kept


def opened(folder, **how):
  target, _ = tiny.target()
  return heads.open_head(folder, target, **{"kind": "eagle", **how})


def edit(folder, changes=(), **config):
  """Tensors changed (None: taken out) and keys of config.json set."""
  path = folder / "model.safetensors"
  tensors = load_file(path)
  for name, value in dict(changes).items():
    tensors.pop(name, None)
    if value is not None:
      tensors[name] = value
  save_file(tensors, path)
  path = folder / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | config))


@pytest.mark.parametrize("fuses, reduced", tiny.KINDS)
def test_what_is_saved_is_what_is_opened(tmp_path, fuses, reduced):
  _, target_params = tiny.target()
  model, params, kept = saved(tmp_path, fuses, reduced)
  found = opened(tmp_path, tokenizer="aa")
  assert found.model.config == model.config
  assert found.model == model
  again = found.params(target_params)
  assert len(again) == len(params)
  for ours, theirs in zip(again, params, strict=True):
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
  names = set(load_file(tmp_path / "model.safetensors"))
  extra = {"d2t"} if reduced else set()
  assert names == (EAGLE3 if fuses else EAGLE) | extra


def test_a_published_eagle_1_folder_opens(tmp_path):
  """With a bias, an embedding that is the target's, and a config of little."""
  target, target_params = tiny.target()
  model, params, _ = saved(tmp_path, False, False, bias=True)
  embedding = np.zeros((tiny.VOCAB, 16), np.float32)
  edit(tmp_path, {"embed_tokens.weight": embedding})
  config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-3,
    "torch_dtype": "float16",
    "vocab_size": tiny.VOCAB,
  }
  (tmp_path / "config.json").write_text(json.dumps(config))
  found = opened(tmp_path)
  assert found.model == model and found.model.config.fc_bias
  for ours, theirs in zip(found.params(target_params), params, strict=True):
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
  short = np.zeros((tiny.VOCAB, 15), np.float32)
  edit(tmp_path, {"embed_tokens.weight": short})
  with pytest.raises(CheckpointError, match=r"embed_tokens.weight \(24, 15\)"):
    opened(tmp_path)


def test_a_published_eagle_3_folder_opens(tmp_path):
  """With `t2d`, a boolean of each of the target's ids."""
  model, params, kept = saved(tmp_path, True, True)
  config = json.loads((tmp_path / "config.json").read_text())
  for key in ("eagle_aux_hidden_state_layer_ids", "specjax_proposer"):
    del config[key]
  config["architectures"] = ["LlamaForCausalLMEagle3"]
  (tmp_path / "config.json").write_text(json.dumps(config))
  edit(tmp_path, {"t2d": np.isin(np.arange(tiny.VOCAB), kept)})
  found = opened(tmp_path)
  assert found.model == model  # the layers are the published ones
  np.testing.assert_array_equal(found.kept, kept)


def test_another_dtype(tmp_path):
  target, target_params = tiny.target()
  _, params, _ = saved(tmp_path, True, True, dtype=jnp.bfloat16)
  found = opened(tmp_path, dtype=jnp.bfloat16)
  for ours, theirs in zip(found.params(target_params), params, strict=True):
    if theirs.dtype == jnp.float32:
      theirs = theirs.astype(jnp.bfloat16)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize(
  "changes, said",
  [
    ({"fc.weight": None}, "1 missing: fc.weight"),
    ({"what": np.zeros(3, np.float32)}, "1 unexpected: what"),
    (
      {"fc.weight": np.zeros((16, 33), np.float32)},
      r"fc.weight \(16, 33\), the config says \(16, 32\)",
    ),
    ({"fc.weight": np.zeros((16, 32), np.int32)}, "fc.weight I32"),
    ({"d2t": None}, "1 missing: d2t, which says which 13 of the target's 24"),
    ({"d2t": np.zeros(12, np.int64)}, r"d2t is I64 \(12,\); expected I64 \(13"),
    ({"d2t": np.full(13, 20)}, "13 ids in rising order below 24"),
    ({"d2t": np.arange(13)[::-1].copy()}, "13 ids in rising order below 24"),
  ],
)
def test_every_tensor_is_looked_at(tmp_path, changes, said):
  saved(tmp_path, False, True)
  edit(tmp_path, changes)
  with pytest.raises(CheckpointError, match=said) as caught:
    opened(tmp_path)
  assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
  "ids, said",
  [
    (
      np.zeros(0, np.int64),
      "proposes 0 ids, and the target has 24",
    ),
    (
      np.zeros(25, np.int64),
      "proposes 25 ids, and the target has 24",
    ),
    (np.array(3), r"d2t is of the shape \(\); give a list of ids"),
  ],
)
def test_a_list_of_ids_is_one_of_the_targets(tmp_path, ids, said):
  target, params = tiny.target()
  model = thin.build(
    thin.ThinConfig(decoder=target.config, is_thin=True), target
  )
  given = dict(zip(target.paths, params, strict=True))
  own = [given[path] for path in model.head.paths]
  heads.save_head(tmp_path, "draft_model", model, own, target=target.config)
  edit(tmp_path, {"d2t": ids})
  with pytest.raises(ValueError, match=said):
    opened(tmp_path, kind="draft_model")


@pytest.mark.parametrize(
  "config, said",
  [
    (dict(hidden_size=32, head_dim=4), "d_model 32, and this one's is 16"),
    (dict(num_hidden_layers=2), "num_hidden_layers is 2; a head has 1"),
    (dict(target_hidden_size=64), "target_hidden_size is 64"),
    (dict(norm_before_residual=True), "norm_before_residual"),
    (dict(draft_vocab_size=0), "draft_vocab_size is 0"),
    (dict(draft_vocab_size=25), "25 ids, and the target has 24"),
    (dict(eagle_aux_hidden_state_layer_ids=[1, 2, 3]), "those of EAGLE-1"),
    (dict(specjax_proposer={"kind": "medusa"}), "--proposer=medusa"),
    (
      dict(specjax_proposer={"target": {"num_hidden_layers": 30}}),
      "num_hidden_layers 30, and this one's is 2",
    ),
  ],
)
def test_every_key_is_looked_at_before_any_weight(tmp_path, config, said):
  saved(tmp_path, False, True)
  edit(tmp_path, **config)
  with pytest.raises(ValueError, match=said) as caught:
    opened(tmp_path)
  assert str(tmp_path) in str(caught.value)


def test_another_tokenizer_is_refused(tmp_path):
  saved(tmp_path, False, False)
  with pytest.raises(ValueError, match="tokenizer 'aa', and this one's is 'b"):
    opened(tmp_path, tokenizer="bb")


def test_layers_of_eagle_3_are_numbers(tmp_path):
  saved(tmp_path, True, False)
  for layers in ([1, 2], [0, 1, True], "012", [0, 1, -1]):
    edit(tmp_path, eagle_aux_hidden_state_layer_ids=layers)
    with pytest.raises(ValueError, match="give 3 layers' numbers"):
      opened(tmp_path)
  edit(tmp_path, eagle_aux_hidden_state_layer_ids=[0, 1, 9])
  with pytest.raises(ValueError, match="layer 9, and it has 2"):
    opened(tmp_path)


def test_a_folder_without_weights_or_config(tmp_path):
  with pytest.raises(FileNotFoundError, match="no config.json"):
    opened(tmp_path)
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors"):
    opened(tmp_path)


@pytest.mark.parametrize(
  "is_thin, reduced, own_head",
  [(1, 0, 0), (1, 1, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1)],
)
def test_a_draft_that_borrows_is_saved_and_opened(
  tmp_path, is_thin, reduced, own_head
):
  target, target_params = tiny.target()
  kept = tiny.kept_ids() if reduced else None
  config = thin.ThinConfig(
    decoder=target.config,
    is_thin=bool(is_thin),
    draft_vocab=tiny.KEPT if reduced else None,
    own_head=bool(own_head),
  )
  model = thin.build(config, target)
  given = dict(zip(target.paths, target_params, strict=True))
  if own_head and reduced:
    given["head.weight"] = given["head.weight"][kept]
  own = [given[path] for path in model.head.paths]
  params = model.complete(tuple(own), target_params, kept)
  heads.save_head(
    *(tmp_path, "draft_model", model, params), target=target.config, kept=kept
  )
  assert heads.needs_target(tmp_path)
  names = set(load_file(tmp_path / "model.safetensors"))
  assert ("model.embed_tokens.weight" in names) != is_thin
  assert ("lm_head.weight" in names) == (own_head or not is_thin)
  assert ("d2t" in names) == reduced
  found = opened(tmp_path, kind="draft_model")
  assert found.model.config == config
  for ours, theirs in zip(found.params(target_params), params, strict=True):
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
  other = decoder.build(
    config_lib.from_hugging_face({**tiny.CONFIG, "num_hidden_layers": 3})
  )
  with pytest.raises(ValueError, match="num_hidden_layers 2, and this one's"):
    heads.open_head(tmp_path, other, kind="draft_model")
