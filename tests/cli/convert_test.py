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
    (["--output=x"], 2, "--gguf is missing"),
    (["--gguf=x"], 2, "--output is missing"),
    (["--gguf=x", "--output="], 2, "--output is missing"),
    (["--gguf"], 2, "Missing value for flag --gguf"),
    (["--ggfu=x"], 2, "Unknown command line flag 'ggfu'"),
    (["--gguf=a", "--output=x", "--dtype=int8"], 2, "--dtype=int8"),
    (["--gguf=a", "--output=x", "stray"], 2, "'stray' is no flag"),
    (["--gguf=nowhere.gguf", "--output=x"], 1, "nowhere.gguf"),
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
