"""Model folders whose config.json or safetensors are damaged, or lie."""

import json
import shutil

import hypothesis
import pytest
from hypothesis import strategies as st

import specjax
from specjax import api
from specjax.checkpoints import folders
from specjax.cli import command, convert
from tests import api_test
from tests.fuzz import fuzzing
from tests.text import tokenizers_made


@pytest.fixture(scope="module")
def good(tmp_path_factory):
  root = tmp_path_factory.mktemp("folders")
  folder = api_test.checkpoint(
    root / "model", tokenizers_made.byte_level(), api_test.VOCAB
  )
  return folder


@pytest.fixture
def model(good, tmp_path):
  """A folder to spoil: each example begins with it as it was."""
  folder = tmp_path / "model"

  def fresh():
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder)
    return folder

  return fresh


def load(argv):
  """What specjax-generate does before it compiles."""
  specjax.Engine(specjax.load(argv[1]), max_memory="2GB", prefill_widths=(16,))
  return 0


def check(folder, *words):
  """Copies it to a folder that holds another model, and loads it."""
  out = folder.parent / "out"
  shutil.rmtree(out, ignore_errors=True)
  out.mkdir()
  for name in ("config.json", "model.safetensors", "chat_template.jinja"):
    (out / name).write_text("old")
  before = fuzzing.content(out)
  source = fuzzing.content(folder)
  flags = (f"--model={folder}", f"--output={out}", "--overwrite")
  code, error = fuzzing.answer(convert.main, convert.PROGRAM, *flags)
  assert fuzzing.content(folder) == source
  if code:
    assert str(folder) in error
    assert not words or any(word in error for word in words), (words, error)
    assert fuzzing.content(out) == before
  run = lambda argv: command.run("load", load, argv)
  again, error = fuzzing.answer(run, "load", str(folder))
  if code:  # What cannot be copied cannot be loaded.
    assert again and (str(folder) in error or "memory" in error), error


# safetensors


def pieces(folder):
  data = (folder / "model.safetensors").read_bytes()
  length = int.from_bytes(data[:8], "little")
  return json.loads(data[8 : 8 + length]), data[8 + length :]


def put(folder, header, body, length=None):
  encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
  length = len(encoded) if length is None else length
  path = folder / "model.safetensors"
  path.write_bytes(length.to_bytes(8, "little") + encoded + body)
  return path


@fuzzing.settings(70)
@hypothesis.given(data=st.data())
def test_damaged_safetensors(model, data):
  folder = model()
  path = folder / "model.safetensors"
  whole = path.read_bytes()
  header = 8 + int.from_bytes(whole[:8], "little")
  path.write_bytes(data.draw(fuzzing.damaged(whole, header)))
  check(folder)


@fuzzing.settings(70)
@hypothesis.given(data=st.data())
def test_safetensors_headers_that_lie(model, data):
  folder = model()
  header, body = pieces(folder)
  names = sorted(set(header) - {"__metadata__"})
  name = data.draw(st.sampled_from(names))
  offsets = header[name]["data_offsets"]
  kind = data.draw(
    st.sampled_from("key value dtype shape offsets drop add swap".split())
  )
  if kind == "key":
    key = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
    del header[name][key]
  elif kind == "value":
    header[name] = data.draw(fuzzing.JSON)
  elif kind == "dtype":
    codes = ["F64", "I8", "BF16", "F16", "F4", "", "f32", "BOOL", "C64"]
    header[name]["dtype"] = data.draw(
      st.one_of(st.sampled_from(codes), fuzzing.JSON)
    )
  elif kind == "shape":
    header[name]["shape"] = data.draw(
      st.one_of(st.lists(fuzzing.EDGES, max_size=4), fuzzing.JSON)
    )
  elif kind == "offsets":
    header[name]["data_offsets"] = data.draw(
      st.one_of(
        st.tuples(fuzzing.EDGES, fuzzing.EDGES).map(list),
        st.tuples(st.integers(-64, 64), st.integers(-64, 64)).map(
          lambda d: [offsets[0] + d[0], offsets[1] + d[1]]
        ),
        fuzzing.JSON,
      )
    )
  elif kind == "drop":
    header.pop(name)
  elif kind == "swap":
    other = data.draw(st.sampled_from(names))
    header[name], header[other] = header[other], header[name]
  else:
    header[data.draw(st.text(max_size=9))] = {
      "dtype": "F32", "shape": [1], "data_offsets": [len(body), len(body) + 4],
    }  # fmt: skip
    body += b"\0" * 4
  put(folder, header, body)
  check(folder, "model.safetensors", "does not fit the model")


@pytest.mark.parametrize(
  "header, length",
  [
    (b"", 0),
    (b"{}", None),
    (b"[]", None),
    (b"null", None),
    (b"1", None),
    (b"{", None),
    (b"\xff\xfe{}", None),
    (b"[" * 100_000, None),
    (b'{"a":' * 100_000, None),
    (b'{"__metadata__": 3}', None),
    (b'{"a": ' + b"9" * 5000 + b"}", None),
    (b'{"model.norm.weight": {}, "model.norm.weight": {}}', None),
    (b"{}", 2**63),
    (b"{}", 2**64 - 1),
    (b"{}", 3),
    (b"{}", 1),
  ],
)
@pytest.mark.parametrize("body", [b"", b"\0" * 64])
def test_safetensors_headers_that_are_none(model, header, length, body):
  folder = model()
  put(folder, header, body, length)
  check(folder, "model.safetensors", "does not fit the model")


def test_safetensors_cut_at_every_length(model):
  folder = model()
  path = folder / "model.safetensors"
  whole = path.read_bytes()
  header = 8 + int.from_bytes(whole[:8], "little")
  lengths = [*range(20), *range(20, header, 61), header, len(whole) - 1]
  for length in lengths:
    path.write_bytes(whole[:length])
    flags = (f"--model={folder}", f"--output={folder / 'none'}")
    code, error = fuzzing.answer(convert.main, convert.PROGRAM, *flags)
    assert code == 1 and str(path) in error, (length, error)
    assert not (folder / "none").exists()


@fuzzing.settings(40)
@hypothesis.given(index=fuzzing.JSON, file=fuzzing.JSON)
def test_indices_that_lie(model, index, file):
  folder = model()
  specjax.load(folder).save(
    folder.parent / "s", max_shard_bytes=4000, overwrite=True
  )
  path = folder.parent / "s" / "model.safetensors.index.json"
  content = json.loads(path.read_text())
  if isinstance(file, str):
    content["weight_map"]["model.norm.weight"] = file
  else:
    content["weight_map"] = index
  path.write_text(json.dumps(content))
  check(path.parent)


# config.json

CONFIG_KEYS = """
  architectures model_type vocab_size hidden_size intermediate_size
  num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_act
  rms_norm_eps rope_theta rope_scaling rope_parameters tie_word_embeddings
  max_position_embeddings sliding_window attention_bias eos_token_id torch_dtype
  quantization_config layer_types partial_rotary_factor unheard_of
""".split()
FAMILIES = st.sampled_from(
  "Llama Mistral Qwen2 Qwen3 Gemma2 Gemma3 GPT2 Chinchilla Odd".split()
).map(lambda family: [f"{family}ForCausalLM"])
ROPES = st.dictionaries(
  st.sampled_from(
    "rope_type type factor low_freq_factor high_freq_factor rope_theta "
    "original_max_position_embeddings odd".split()
  ),
  st.one_of(st.sampled_from(["llama3", "default", "linear"]), fuzzing.JSON),
  max_size=5,
)


@fuzzing.settings(150)
@hypothesis.given(
  changed=st.dictionaries(
    st.sampled_from(CONFIG_KEYS),
    st.one_of(fuzzing.EDGES, fuzzing.JSON, ROPES),
    max_size=3,
  ),
  family=st.one_of(st.none(), FAMILIES),
  dropped=st.lists(st.sampled_from(CONFIG_KEYS), max_size=2),
)
def test_configs_of_any_value(model, changed, family, dropped):
  folder = model()
  path = folder / "config.json"
  config = json.loads(path.read_text()) | changed
  if family is not None:
    config["architectures"] = family
  for key in dropped:
    config.pop(key, None)
  path.write_text(json.dumps(config))
  check(folder)


@fuzzing.settings(40)
@hypothesis.given(content=st.one_of(st.binary(max_size=60), fuzzing.JSON))
def test_configs_that_are_none(model, content):
  folder = model()
  if not isinstance(content, bytes):
    content = json.dumps(content).encode()
  (folder / "config.json").write_bytes(content)
  check(folder, "config.json")


@fuzzing.settings(80)
@hypothesis.given(
  name=st.sampled_from(
    ["tokenizer_config.json", "generation_config.json", "tokenizer.json"]
    + ["special_tokens_map.json"]
  ),
  key=st.sampled_from(
    "eos_token bos_token eos_token_id add_bos_token chat_template model "
    "added_tokens decoder pre_tokenizer post_processor".split()
  ),
  value=fuzzing.JSON,
)
def test_tokenizer_files_of_any_value(model, name, key, value):
  folder = model()
  path = folder / name
  content = json.loads(path.read_text()) if path.exists() else {}
  path.write_text(json.dumps(content | {key: value}))
  run = lambda argv: command.run("load", load, argv)
  code, error = fuzzing.answer(run, "load", str(folder))
  assert not code or str(folder) in error or name in error, error


def test_a_model_of_a_billion_layers_is_refused_at_once(model):
  folder = model()
  path = folder / "config.json"
  for layers in (10**5, 10**9, 2**61):
    config = json.loads(path.read_text()) | {"num_hidden_layers": layers}
    folders.write_json(path, config)
    with pytest.raises(ValueError, match="num_hidden_layers") as caught:
      api.load(folder)
    assert str(path) in str(caught.value)
