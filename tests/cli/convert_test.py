import json
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors

from specjax import text
from specjax.checkpoints import hf
from specjax.cli import convert
from specjax.models import config as config_lib
from specjax.models import decoder
from tests.checkpoints import gguf_files

KV = "llama.attention.head_count_kv"
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def source(tmp_path):
  return gguf_files.write(tmp_path / "model.gguf")


def run(*flags):
  """The command as a user calls it."""
  return subprocess.run(
    [sys.executable, "-m", "specjax.cli.convert", *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )


def test_the_command_writes_a_folder_that_model_and_tokenizer_load(
  tmp_path, source
):
  folder = tmp_path / "new" / "folder"
  done = run(f"--gguf={source}", f"--output={folder}")
  assert done.returncode == 0, done.stderr
  assert done.stdout == f"wrote {folder} (float32)\n"
  assert sorted(path.name for path in folder.iterdir()) == [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
  ]
  tokenizer = text.Tokenizer.from_folder(folder)
  assert tokenizer.eos_ids == (2,)
  assert tokenizer.bos_id == 1
  ids = tokenizer.encode_chat([{"role": "user", "content": "he<|im_end|>"}])
  assert ids == [gguf_files.TOKENS.index("he"), 2]
  config = config_lib.from_hugging_face(hf.read_config(folder))
  model = decoder.build(config, dtype=jnp.float32)
  params = hf.load_params(folder, model)
  out = model(params, jnp.array([ids], jnp.int32), model.init_cache(1, 16))
  assert out.logits.shape == (1, len(ids), gguf_files.V)
  assert bool(jnp.isfinite(out.logits).all())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_written_in_the_type_asked_for(tmp_path, source, dtype):
  folder = tmp_path / dtype
  convert.convert(source, folder, dtype=dtype)
  written = safetensors.load_file(folder / "model.safetensors")
  for name, value in gguf_files.weights().items():
    assert written[name].dtype == np.dtype(dtype)
    np.testing.assert_array_equal(written[name], value.astype(np.dtype(dtype)))
  assert hf.read_config(folder)["torch_dtype"] == dtype


def test_a_folder_with_files_is_kept_unless_told_otherwise(tmp_path, source):
  folder = tmp_path / "mine"
  folder.mkdir()
  (folder / "config.json").write_text("mine")
  with pytest.raises(FileExistsError, match="not empty.*--overwrite"):
    convert.convert(source, folder)
  assert [path.name for path in folder.iterdir()] == ["config.json"]
  assert (folder / "config.json").read_text() == "mine"
  convert.convert(source, folder, overwrite=True)
  assert hf.read_config(folder)["model_type"] == "llama"


UNUSABLE = {
  "layer too many": (dict(metadata={"llama.block_count": 1}), "block_count=1"),
  "layer too few": (dict(metadata={"llama.block_count": 3}), "block_count=3"),
  "other width": (
    dict(metadata={"llama.feed_forward_length": 65}),
    "6 of another shape",
  ),
  "other size": (
    dict(
      metadata={"llama.embedding_length": 64, "llama.rope.dimension_count": 16}
    ),
    "of another shape",
  ),
  "vast": (
    dict(metadata={"llama.feed_forward_length": 2**32 - 1}),
    "6 of another shape",
  ),
  "text for a width": (
    dict(metadata={"llama.feed_forward_length": "64"}),
    "llama.feed_forward_length='64'",
  ),
  "text for a length": (
    dict(metadata={"llama.context_length": "128"}),
    "llama.context_length='128'",
  ),
  "one head too few": (
    dict(
      metadata={"llama.attention.head_count": 2, KV: 2}
      | {"llama.attention.key_length": 8}
    ),
    "q_proj.weight",
  ),
}


def spoiled(name, value):
  tensors = gguf_files.weights()
  if value is None:
    del tensors[name]
  else:
    tensors[name] = value
  return dict(tensors=tensors)


for _name in (
  "model.norm.weight",
  "model.layers.1.self_attn.k_proj.weight",
  "model.layers.0.mlp.down_proj.weight",
):
  UNUSABLE[f"no {_name}"] = (spoiled(_name, None), f"1 missing: {_name}")
  UNUSABLE[f"odd {_name}"] = (
    spoiled(_name, np.ones((4, 32), np.float32)),
    f"1 of another shape: {_name} (4, 32)",
  )


@pytest.mark.parametrize("kind", UNUSABLE)
def test_what_would_be_an_unusable_folder_is_not_written(
  tmp_path, capsys, kind
):
  changes, message = UNUSABLE[kind]
  path = gguf_files.write(tmp_path / "bad.gguf", **changes)
  out = tmp_path / "out"
  call = ["specjax-convert", f"--gguf={path}", f"--output={out}"]
  assert convert.main(call) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f"specjax-convert: error: {path}")
  assert message in line
  assert not out.exists()


def test_overwriting_removes_what_would_win_over_the_new_files(
  tmp_path, source
):
  folder = tmp_path / "old"
  (folder / "additional_chat_templates").mkdir(parents=True)
  (folder / "more.safetensors").mkdir()
  stale = {
    "chat_template.jinja": "old",
    "chat_template.json": "{}",
    "additional_chat_templates/tool_use.jinja": "old",
    "special_tokens_map.json": '{"sep_token": "<|im_start|>"}',
    "added_tokens.json": "{}",
    "adapter_config.json": "{}",
    "model.safetensors.index.json": '{"weight_map": {"a": "b"}}',
    "model-00001-of-00002.safetensors": "old",
    "adapter_model.safetensors": "old",
    "model.safetensors": "old",
  }
  kept = ("README.md", "tokenizer.model", "notes.json", "model.gguf")
  for name in (*stale, *kept):
    (folder / name).write_text(stale.get(name, "mine"))
  convert.convert(source, folder, overwrite=True)
  for name in set(stale) - {"model.safetensors"}:
    assert not (folder / name).exists(), name
  for name in kept:
    assert (folder / name).read_text() == "mine"
  tokenizer = text.Tokenizer.from_folder(folder)
  assert tokenizer.chat_template == "{{ messages[0].content }}"
  model = decoder.build(config_lib.from_hugging_face(hf.read_config(folder)))
  hf.load_params(folder, model)


def test_a_failed_overwrite_keeps_the_model_that_was_there(tmp_path):
  folder = tmp_path / "old"
  folder.mkdir()
  for name in ("chat_template.jinja", "model.safetensors", "config.json"):
    (folder / name).write_text("mine")
  path = gguf_files.write(
    tmp_path / "bad.gguf", metadata={"llama.block_count": 7}
  )
  with pytest.raises(ValueError, match="block_count=7"):
    convert.convert(path, folder, overwrite=True)
  assert {p.read_text() for p in folder.iterdir()} == {"mine"}
  assert len(list(folder.iterdir())) == 3


def test_an_empty_folder_is_used(tmp_path, source):
  (tmp_path / "empty").mkdir()
  convert.convert(source, tmp_path / "empty")
  assert (tmp_path / "empty" / "model.safetensors").exists()


def test_a_bad_file_leaves_no_folder_behind(tmp_path, source):
  source.write_bytes(source.read_bytes()[:5000])
  with pytest.raises(ValueError, match="truncated or damaged"):
    convert.convert(source, tmp_path / "out")
  assert not (tmp_path / "out").exists()


def test_names_are_written_as_they_are(tmp_path):
  path = gguf_files.write(
    tmp_path / "m.gguf", metadata={"tokenizer.chat_template": "«é»"}
  )
  convert.convert(path, tmp_path / "out")
  content = (tmp_path / "out" / "tokenizer_config.json").read_text("utf-8")
  assert json.loads(content)["chat_template"] == "«é»"


@pytest.mark.parametrize(
  "flags, code, message",
  [
    (["--output=x"], 2, "--gguf and --model are missing"),
    (["--gguf=x", "--model=y", "--output=z"], 2, "are both given"),
    (["--model=", "--output=z"], 2, "--model= is empty"),
    (["--gguf=x"], 2, "--output is missing"),
    (["--gguf=x", "--output="], 2, "--output= is empty"),
    (["--gguf"], 2, "Missing value for flag --gguf"),
    (["--ggfu=x"], 2, "Unknown command line flag 'ggfu'"),
    (["--gguf=a", "--output=x", "--dtype=int8"], 2, "--dtype=int8"),
    (["--gguf=a", "--output=x", "--format=orbax"], 2, "needs --model"),
    (
      ["--model=a", "--output=x", "--format=orbax", "--dtype=float16"],
      2,
      "--dtype=float16 is none of --format=orbax",
    ),
    (["--gguf=a", "--output=x", "stray"], 2, "'stray' is no flag"),
    (["--gguf=nowhere.gguf", "--output=x"], 1, "nowhere.gguf"),
    (["--model=./nowhere", "--output=x"], 1, "'./nowhere': no such folder"),
    (["--gguf=README.md", "--output=LICENSE"], 1, "a file, not a folder"),
    (["--gguf=README.md", "--output=tests"], 1, "--overwrite"),
  ],
)
def test_a_wrong_call_is_told_in_one_line(
  monkeypatch, capsys, flags, code, message
):
  monkeypatch.chdir(ROOT)
  assert convert.main(["specjax-convert", *flags]) == code
  out, err = capsys.readouterr()
  assert out == ""
  (line,) = err.splitlines()
  assert line.startswith("specjax-convert: error: ")
  assert message in line


def test_help_names_every_flag(capsys):
  assert convert.main(["specjax-convert", "--help"]) == 0
  out, err = capsys.readouterr()
  assert err == ""
  for name in convert.FIELDS:
    assert f"--{name}" in out
  assert "--dtype=float32|bfloat16|float16  (default float32)" in out


def test_the_console_script_answers_like_the_module():
  # Not through `python -m`: absl's help once listed the flags of __main__.
  call = "import sys; from specjax.cli import convert; convert.cli()"
  done = subprocess.run(
    [sys.executable, "-c", call, "--help"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  assert "--gguf=STRING" in done.stdout
  assert done.stderr == ""
