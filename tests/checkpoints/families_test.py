"""Every family's tensors, from a Hugging Face folder and back into one.

The folders are the goldens, which transformers wrote.
"""

import json
import pathlib
import shutil
import tracemalloc

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from specjax.checkpoints import hf, keymaps
from specjax.models import config as config_lib
from specjax.models import decoder

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
# One for each layout, and for each kind of parameter within it.
NAMES = (
  *("llama_bias", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2"),
  *("t5", "mt5", "byt5"),
)


def tensors(name):
  return safetensors.load_file(GOLDENS / name / "model.safetensors")


def build(name, **options):
  config = hf.read_config(GOLDENS / name)
  model = decoder.build(config_lib.from_hugging_face(config), **options)
  return config, model


def loaded(model, folder, values=None):
  """Parameters by path, of a folder or of tensors put into one."""
  if values is not None:
    safetensors.save_file(values, folder / "model.safetensors")
  params = hf.load_params(folder, model)
  return {p: np.asarray(v) for p, v in zip(model.paths, params, strict=True)}


def same(one, other):
  assert one.keys() == other.keys()
  for name, value in one.items():
    assert value.dtype == other[name].dtype
    np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_what_was_loaded_bit_by_bit(
  name, scan_layers, tmp_path
):
  config, model = build(name, scan_layers=scan_layers)
  params = hf.load_params(GOLDENS / name, model)
  hf.save_params(tmp_path / "saved", model, params, config=config)
  same(
    safetensors.load_file(tmp_path / "saved" / "model.safetensors"),
    tensors(name),
  )
  again = hf.load_params(tmp_path / "saved", model)
  for one, other in zip(params, again, strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_has_to_be_there_and_no_other(name, tmp_path):
  _, model = build(name)
  values = tensors(name)
  gone = sorted(values)[len(values) // 2]
  values["stray"] = values.pop(gone)
  with pytest.raises(hf.CheckpointError) as error:
    loaded(model, tmp_path, values)
  assert f"1 missing: {gone}" in str(error.value)
  assert "1 unexpected: stray" in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_random_parameters_have_the_models_shapes(name):
  _, model = build(name)
  params = dict(zip(model.paths, model.init(0), strict=True))
  assert [p.shape for p in params.values()] == [s.shape for s in model.shapes]
  plain = 0 if name.startswith("gemma") else 1
  for path, value in params.items():
    if path.endswith("norm.weight"):
      np.testing.assert_array_equal(value, plain)
    elif path.endswith("bias"):
      np.testing.assert_array_equal(value, 0)
    else:
      assert 0 < np.std(value) < 1


# GPT-2: one tensor for query, key and value; products are (in, out).


def test_the_fused_tensor_holds_query_key_and_value_in_this_order(tmp_path):
  _, model = build("gpt2")
  values = tensors("gpt2")
  found = loaded(model, GOLDENS / "gpt2")
  weight = values["transformer.h.1.attn.c_attn.weight"]  # D, 3 N H
  bias = values["transformer.h.1.attn.c_attn.bias"]
  n, h, d = found["layers.1.attention.q.weight"].shape
  assert weight.shape == (d, 3 * n * h)
  for part, ours in enumerate("qkv"):
    for head in range(n):
      at = part * n * h + head * h
      np.testing.assert_array_equal(
        found[f"layers.1.attention.{ours}.weight"][head],
        weight[:, at : at + h].T,
      )
      np.testing.assert_array_equal(
        found[f"layers.1.attention.{ours}.bias"][head], bias[at : at + h]
      )
  np.testing.assert_array_equal(
    found["layers.0.mlp.down.weight"],
    values["transformer.h.0.mlp.c_proj.weight"].T,
  )


def test_the_parts_of_a_tensor_are_saved_together_or_not_at_all():
  _, model = build("gpt2")
  shapes = {p: s.shape for p, s in zip(model.paths, model.shapes, strict=True)}
  table = keymaps.LAYOUTS["GPT2LMHeadModel"].table
  del shapes["layers.1.attention.k.bias"]
  found = keymaps.sources(list(shapes), list(shapes.values()), table=table)
  with pytest.raises(KeyError, match=r"h\.1\.attn\.c_attn\.bias"):
    keymaps.pieces(found)


def test_gpt2_is_read_without_the_prefix_and_with_its_masks(tmp_path):
  _, model = build("gpt2")
  # As the published file has it.
  bare = {
    name.removeprefix("transformer."): value
    for name, value in tensors("gpt2").items()
  }
  for layer in range(2):
    bare[f"h.{layer}.attn.bias"] = np.ones((1, 1, 64, 64), np.uint8)
    bare[f"h.{layer}.attn.masked_bias"] = np.float32([-1e4])
  same(loaded(model, tmp_path, bare), loaded(model, GOLDENS / "gpt2"))


def test_a_tensor_under_both_of_its_names_is_refused(tmp_path):
  _, model = build("gpt2")
  values = tensors("gpt2")
  values["wte.weight"] = values["transformer.wte.weight"]
  with pytest.raises(hf.CheckpointError, match="unexpected: wte.weight"):
    loaded(model, tmp_path, values)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("own", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_half_precision_files_are_cast_once(name, own, dtype, tmp_path):
  _, model = build(name, dtype=own)
  values = {k: v.astype(dtype) for k, v in tensors(name).items()}
  wide = {k: v.astype(np.float32) for k, v in values.items()}
  (tmp_path / "wide").mkdir()
  same(loaded(model, tmp_path, values), loaded(model, tmp_path / "wide", wide))


def test_a_load_that_turns_tensors_holds_one_copy_and_one_tensor(tmp_path):
  config = {**hf.read_config(GOLDENS / "gpt2"), "n_layer": 8}
  config |= {"n_embd": 96, "n_inner": 384}
  model = decoder.build(config_lib.from_hugging_face(config))
  hf.save_params(tmp_path, model, model.init(0), config=config)
  whole = 4 * model.parameter_count
  largest = 4 * 96 * 384
  tracemalloc.start()
  params = hf.load_params(tmp_path, model)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert len(params) == len(model.paths)
  assert peak < whole + 3 * largest + 200_000 < 1.4 * whole


# Gemma 3 with an image part.


def test_the_text_part_is_read_and_the_image_part_left(tmp_path):
  config, model = build("gemma3_vision")
  values = tensors("gemma3_vision")
  text = {k: v for k, v in values.items() if "language_model" in k}
  assert len(text) < len(values)
  params = hf.load_params(GOLDENS / "gemma3_vision", model)
  hf.save_params(tmp_path, model, params, config=config)
  same(safetensors.load_file(tmp_path / "model.safetensors"), text)
  # As transformers 5 names tensors in memory, and 4.5x wrote them.
  newer = {
    "model." + name.replace("language_model.model.", "language_model."): value
    for name, value in values.items()
  }
  same(loaded(model, tmp_path, newer), loaded(model, GOLDENS / "gemma3_vision"))


# T5: the embedding may be there once for each side, too.


def test_a_t5s_repeated_embeddings_are_left(tmp_path):
  _, model = build("t5")
  values = tensors("t5")
  for side in ("encoder", "decoder"):
    values[f"{side}.embed_tokens.weight"] = values["shared.weight"].copy()
  old = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
  values[old] = np.zeros((8, 3), np.float32)
  values["lm_head.weight"] = values["shared.weight"].copy()
  same(loaded(model, tmp_path, values), loaded(model, GOLDENS / "t5"))


# transformers 5 says of every T5 that it is tied.


@pytest.mark.parametrize(
  "name, said",
  [
    ("t5_v1_1", {"scale_decoder_outputs": False}),
    ("byt5", {"scale_decoder_outputs": False}),
    ("mt5", {}),
  ],
)
def test_a_t5_with_a_head_of_its_own_has_it_whatever_its_config_says(
  name, said, tmp_path
):
  content = hf.read_config(GOLDENS / name)
  assert content["tie_word_embeddings"] is False
  said = content | {"tie_word_embeddings": True} | said
  (tmp_path / "config.json").write_text(json.dumps(said))
  shutil.copy(GOLDENS / name / "model.safetensors", tmp_path)
  config = hf.read_decoder_config(tmp_path)
  assert config == hf.read_decoder_config(GOLDENS / name)
  assert not config.tied and config.head_scale is None
  # As it is written again it says so.
  assert hf.read_model_config(tmp_path)["tie_word_embeddings"] is False
  model = decoder.build(config)
  same(loaded(model, tmp_path), loaded(model, GOLDENS / name))


def test_a_t5_without_a_head_of_its_own_is_tied_as_it_says(tmp_path):
  content = hf.read_config(GOLDENS / "t5")
  head = tensors("t5")["shared.weight"].copy()
  for said, values in (
    (content, tensors("t5") | {"lm_head.weight": head}),
    # There is none, or nothing to look at.
    (content | {"scale_decoder_outputs": False}, tensors("t5")),
    (content | {"scale_decoder_outputs": False}, None),
  ):
    (tmp_path / "config.json").write_text(json.dumps(said))
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    if values is not None:
      safetensors.save_file(values, tmp_path / "model.safetensors")
    assert hf.read_model_config(tmp_path) == said
    assert hf.read_decoder_config(tmp_path).tied


def test_all_supported_architectures_have_a_layout():
  assert set(keymaps.LAYOUTS) == set(config_lib.ARCHITECTURES)
  text = json.loads((GOLDENS / "gemma3_vision/config.json").read_text())
  assert text["architectures"][0] in keymaps.LAYOUTS
