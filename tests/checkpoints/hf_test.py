import json
import pathlib

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from specjax.checkpoints import folders, hf
from specjax.models import config as config_lib
from specjax.models import decoder

CONFIG = {
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 40,
  "hidden_size": 16,
  "intermediate_size": 24,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 6,
  "rms_norm_eps": 1e-5,
  "rope_theta": 10000.0,
  "max_position_embeddings": 64,
  "tie_word_embeddings": False,
}


def build(*, tied=False, dtype=jnp.float32, scan_layers=False):
  config = config_lib.from_hugging_face(CONFIG | {"tie_word_embeddings": tied})
  return decoder.build(config, dtype=dtype, scan_layers=scan_layers)


def tensors(*, tied=False, dtype=np.float32) -> dict[str, np.ndarray]:
  """A random checkpoint by Hugging Face name, every number another."""
  shapes = {"model.embed_tokens.weight": (40, 16), "model.norm.weight": (16,)}
  for i in range(2):
    layer = f"model.layers.{i}"
    shapes |= {
      f"{layer}.input_layernorm.weight": (16,),
      f"{layer}.self_attn.q_proj.weight": (24, 16),
      f"{layer}.self_attn.k_proj.weight": (12, 16),
      f"{layer}.self_attn.v_proj.weight": (12, 16),
      f"{layer}.self_attn.o_proj.weight": (16, 24),
      f"{layer}.post_attention_layernorm.weight": (16,),
      f"{layer}.mlp.gate_proj.weight": (24, 16),
      f"{layer}.mlp.up_proj.weight": (24, 16),
      f"{layer}.mlp.down_proj.weight": (16, 24),
    }
  if not tied:
    shapes["lm_head.weight"] = (40, 16)
  draws = np.random.default_rng(0)
  return {
    name: draws.standard_normal(shape).astype(dtype)
    for name, shape in shapes.items()
  }


def save(folder: pathlib.Path, values) -> pathlib.Path:
  safetensors.save_file(values, folder / "model.safetensors")
  return folder


def save_sharded(folder: pathlib.Path, values) -> dict[str, str]:
  """Two shards and an index; returns the index's map."""
  names = sorted(values)
  parts = {
    "model-00001-of-00002.safetensors": names[::2],
    "model-00002-of-00002.safetensors": names[1::2],
  }
  for file, part in parts.items():
    safetensors.save_file({n: values[n] for n in part}, folder / file)
  weights = {name: file for file, part in parts.items() for name in part}
  write_index(folder, {"metadata": {}, "weight_map": weights})
  return weights


def write_index(folder: pathlib.Path, index) -> None:
  (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def by_path(model, params) -> dict[str, np.ndarray]:
  return {p: np.asarray(v) for p, v in zip(model.paths, params, strict=True)}


# Loading


def test_parameters_come_in_the_models_order_and_shapes(tmp_path):
  model = build()
  params = hf.load_params(save(tmp_path, tensors()), model)
  assert [p.shape for p in params] == [s.shape for s in model.shapes]
  assert {p.dtype for p in params} == {np.dtype(np.float32)}


def test_heads_are_split_and_numbers_kept(tmp_path):
  values, model = tensors(), build()
  loaded = by_path(model, hf.load_params(save(tmp_path, values), model))
  q = values["model.layers.1.self_attn.q_proj.weight"]
  o = values["model.layers.1.self_attn.o_proj.weight"]
  # Head n is rows 6n … 6n + 5 of the query, the same columns of the output.
  for n in range(4):
    own = slice(6 * n, 6 * n + 6)
    np.testing.assert_array_equal(
      loaded["layers.1.attention.q.weight"][n], q[own]
    )
    np.testing.assert_array_equal(
      loaded["layers.1.attention.o.weight"][:, n], o[:, own]
    )
  np.testing.assert_array_equal(loaded["head.weight"], values["lm_head.weight"])


def test_scanned_layers_are_stacked(tmp_path):
  save(tmp_path, tensors())
  unrolled, scanned = build(), build(scan_layers=True)
  one = by_path(unrolled, hf.load_params(tmp_path, unrolled))
  other = by_path(scanned, hf.load_params(tmp_path, scanned))
  for path, value in other.items():
    if path.startswith("layers."):
      rest = path.removeprefix("layers.")
      value, expected = list(value), [one[f"layers.{i}.{rest}"] for i in (0, 1)]
    else:
      expected = one[path]
    np.testing.assert_array_equal(value, expected, err_msg=path)


def test_shards_load_like_one_file(tmp_path):
  one, two = tmp_path / "one", tmp_path / "two"
  one.mkdir()
  two.mkdir()
  save_sharded(two, tensors())
  model = build()
  whole = hf.load_params(save(one, tensors()), model)
  for a, b in zip(whole, hf.load_params(two, model), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("source", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("target", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_every_type_is_cast_to_the_models(
  tmp_path, source, target, scan_layers
):
  values = tensors(dtype=source)
  model = build(dtype=target, scan_layers=scan_layers)
  loaded = by_path(model, hf.load_params(save(tmp_path, values), model))
  assert {v.dtype for v in loaded.values()} == {np.dtype(target)}
  np.testing.assert_array_equal(
    loaded["norm.weight"], values["model.norm.weight"].astype(target)
  )


def test_a_dtype_may_be_asked_for(tmp_path):
  save(tmp_path, tensors())
  params = hf.load_params(tmp_path, build(), dtype="bfloat16")
  assert {p.dtype for p in params} == {np.dtype(ml_dtypes.bfloat16)}


def test_a_tied_head_may_be_in_the_file_if_it_says_the_same(tmp_path):
  values = tensors(tied=True)
  embed = values["model.embed_tokens.weight"]
  model = build(tied=True)
  hf.load_params(save(tmp_path, values | {"lm_head.weight": embed}), model)
  other = values | {"lm_head.weight": embed + 1}
  with pytest.raises(hf.CheckpointError, match="1 unexpected: lm_head.weight"):
    hf.load_params(save(tmp_path, other), model)


def test_frequencies_of_old_checkpoints_are_no_weights(tmp_path):
  name = "model.layers.0.self_attn.rotary_emb.inv_freq"
  values = tensors() | {name: np.ones(3, np.float32)}
  hf.load_params(save(tmp_path, values), build())


# A folder that does not fit


def test_all_that_is_wrong_is_listed_at_once(tmp_path):
  values = tensors()
  del values["model.norm.weight"], values["lm_head.weight"]
  values["model.layers.7.mlp.up_proj.weight"] = np.ones(3, np.float32)
  values["model.layers.0.self_attn.q_proj.bias"] = np.ones(3, np.float32)
  values["model.embed_tokens.weight"] = np.ones((41, 16), np.float32)
  values["model.layers.0.mlp.up_proj.weight"] = np.ones((24, 16), np.int8)
  with pytest.raises(hf.CheckpointError) as error:
    hf.load_params(save(tmp_path, values), build())
  assert str(error.value) == (
    f"{tmp_path} does not fit the model: "
    "2 missing: lm_head.weight, model.norm.weight; "
    "2 unexpected: model.layers.0.self_attn.q_proj.bias, "
    "model.layers.7.mlp.up_proj.weight; "
    "1 of another shape: model.embed_tokens.weight (41, 16), the config says "
    "(40, 16); "
    "1 of a type other than F32, F16, BF16: "
    "model.layers.0.mlp.up_proj.weight I8"
  )


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("name", sorted(tensors()))
def test_no_tensor_may_be_missing(tmp_path, name, scan_layers):
  values = tensors()
  del values[name]
  with pytest.raises(hf.CheckpointError, match=f"1 missing: {name}"):
    hf.load_params(save(tmp_path, values), build(scan_layers=scan_layers))


def test_the_same_numbers_in_another_shape_are_refused(tmp_path):
  values = tensors()
  name = "model.layers.0.self_attn.o_proj.weight"
  values[name] = np.ascontiguousarray(values[name].T)
  with pytest.raises(hf.CheckpointError, match="1 of another shape: .*o_proj"):
    hf.load_params(save(tmp_path, values), build())


def test_long_lists_are_cut(tmp_path):
  values = {"model.norm.weight": np.ones(16, np.float32)}
  with pytest.raises(hf.CheckpointError, match=r"20 missing: .*, …$"):
    hf.load_params(save(tmp_path, values), build())


@pytest.mark.parametrize("part", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path, part):
  path = save(tmp_path, tensors()) / "model.safetensors"
  content = path.read_bytes()
  path.write_bytes(content[: int(part * len(content))])
  with pytest.raises(
    hf.CheckpointError, match=r"model\.safetensors: .*truncated or damaged"
  ):
    hf.load_params(tmp_path, build())


def test_an_empty_folder_says_what_it_lacks(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors"):
    hf.load_params(tmp_path, build())


def test_pickles_are_not_read_but_named(tmp_path):
  (tmp_path / "pytorch_model.bin").write_bytes(b"")
  with pytest.raises(FileNotFoundError, match="converted to safetensors"):
    hf.load_params(tmp_path, build())


def test_a_missing_shard_is_named(tmp_path):
  save_sharded(tmp_path, tensors())
  (tmp_path / "model-00002-of-00002.safetensors").unlink()
  with pytest.raises(FileNotFoundError, match="model-00002-of-00002"):
    hf.load_params(tmp_path, build())


@pytest.mark.parametrize(
  "index, message",
  [
    ({}, "weight_map is missing"),
    ({"weight_map": {}}, "weight_map is missing"),
    ({"weight_map": [1]}, "weight_map is missing"),
    ({"weight_map": {"a": "../x.safetensors"}}, "not the name of"),
    ({"weight_map": {"a": 3}}, "not the name of"),
    ({"weight_map": {"a": ""}}, "'' is not the name of"),
    ({"weight_map": {"a": "."}}, "'.' is not the name of"),
    ({"weight_map": {"a": ".."}}, "'..' is not the name of"),
    ({"weight_map": {"a": "/x.safetensors"}}, "'/x.saf.*not the name of"),
    ({"weight_map": {"a": "b/x.safetensors"}}, "'b/x.saf.*not the name of"),
    ({"weight_map": {"a": "b\\x.safetensors"}}, "not the name of"),
    ({"weight_map": {"a": "b\0.safetensors"}}, "not the name of"),
    ({"weight_map": {"a": "x.bin"}}, "'x.bin' is not the name of"),
    ({"weight_map": {"a": ["x"]}}, "not the name of"),
    ([], "expected a JSON object"),
  ],
)
def test_a_malformed_index_is_named(tmp_path, index, message):
  write_index(tmp_path, index)
  with pytest.raises(ValueError, match=rf"index\.json: .*{message}"):
    hf.load_params(tmp_path, build())


@pytest.mark.parametrize("name", ["x.safetensors", "\ud800.safetensors"])
def test_a_shard_that_is_no_file_is_named(tmp_path, name):
  (tmp_path / "x.safetensors").mkdir()
  write_index(tmp_path, {"weight_map": {"a": name}})
  with pytest.raises((ValueError, OSError), match=r"\.safetensors: ") as error:
    hf.load_params(tmp_path, build())
  assert str(error.value).startswith(str(tmp_path))


@pytest.mark.parametrize("scan_layers", [False, True])
def test_shapes_alone_are_checked_like_a_folder(scan_layers):
  model = build(scan_layers=scan_layers)
  shapes = {name: value.shape for name, value in tensors().items()}
  hf.check_shapes("mine", model, shapes)
  shapes["odd"] = shapes.pop("model.norm.weight")
  shapes["lm_head.weight"] = (16, 40)
  with pytest.raises(hf.CheckpointError) as error:
    hf.check_shapes("mine", model, shapes)
  assert str(error.value) == (
    "mine does not fit the model: 1 missing: model.norm.weight; "
    "1 unexpected: odd; 1 of another shape: lm_head.weight (16, 40), the "
    "config says (40, 16)"
  )


# Saving


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_what_is_saved_loads_again(tmp_path, scan_layers, dtype):
  model = build(dtype=dtype, scan_layers=scan_layers)
  params = model.init(0)
  hf.save_params(tmp_path / "new", model, params, config=CONFIG)
  for a, b in zip(params, hf.load_params(tmp_path / "new", model), strict=True):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
  config = hf.read_config(tmp_path / "new")
  assert config == CONFIG | {"torch_dtype": np.dtype(dtype).name}


def test_a_saved_file_is_what_safetensors_reads(tmp_path):
  values = tensors()
  folders.write(
    tmp_path,
    {name: value.shape for name, value in values.items()},
    values.items(),
    config={},
    dtype=np.float16,
  )
  read = safetensors.load_file(tmp_path / "model.safetensors")
  assert read.keys() == values.keys()
  for name, value in values.items():
    np.testing.assert_array_equal(read[name], value.astype(np.float16))
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    "config.json",
    "model.safetensors",
  ]


@pytest.mark.parametrize(
  "arriving",
  [
    [],
    [("b", np.ones(2, np.float32))],
    [("a", np.ones(3, np.float32))],
    [("a", np.ones(2, np.float32))] * 2,
  ],
)
def test_a_file_is_never_left_half_written(tmp_path, arriving):
  with pytest.raises(ValueError, match="announced"):
    folders.write(tmp_path, {"a": (2,)}, arriving, config={}, dtype=np.float32)
  assert list(tmp_path.iterdir()) == []


# config.json


def test_a_byte_order_mark_in_the_config_is_accepted(tmp_path):
  (tmp_path / "config.json").write_text("\ufeff" + json.dumps(CONFIG))
  assert hf.read_config(tmp_path) == CONFIG


@pytest.mark.parametrize("content", ["", "{", "[]", "{'a': 1}", '{"a": 1}}'])
def test_a_malformed_config_is_named(tmp_path, content):
  (tmp_path / "config.json").write_text(content)
  with pytest.raises(ValueError, match=r"config\.json: "):
    hf.read_config(tmp_path)


def test_a_folder_without_a_config_is_named(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"no config\.json"):
    hf.read_config(tmp_path)
  with pytest.raises(FileNotFoundError, match="no such folder"):
    hf.read_config(tmp_path / "nowhere")


def test_an_unknown_architecture_in_a_folder_is_refused_by_name(tmp_path):
  config = CONFIG | {"architectures": ["OddForCausalLM"]}
  (tmp_path / "config.json").write_text(json.dumps(config))
  with pytest.raises(ValueError, match="OddForCausalLM"):
    config_lib.from_hugging_face(hf.read_config(tmp_path))
