import collections
import json
import shutil

import pytest

import specjax
from specjax.cli import init
from tests.text import tokenizers_made


def run(*flags):
  return init.main(["specjax-init", *flags])


def test_it_writes_a_folder_and_says_so(tmp_path, capsys):
  flags = ("--preset=chinchilla_tiny_draft", "--dtype=bfloat16", "--seed=5")
  assert run(*flags, f"--output={tmp_path}/new/model") == 0
  out, err = capsys.readouterr()
  assert out == (
    f"wrote {tmp_path}/new/model (chinchilla_tiny_draft, 0.2 MB, bfloat16)\n"
  )
  assert not err
  config = json.loads((tmp_path / "new/model/config.json").read_text())
  assert config["architectures"] == ["ChinchillaForCausalLM"]
  assert config["torch_dtype"] == "bfloat16"
  assert run(*flags, f"--output={tmp_path}/new/model") == 1
  assert "the folder is not empty" in capsys.readouterr().err
  assert run(*flags, f"--output={tmp_path}/new/model", "--overwrite") == 0


@pytest.mark.parametrize(
  "flags, words",
  [
    ((), "--preset is missing; give one of chinchilla_70b, "),
    (("--preset=odd", "--output=o"), "--preset=odd"),
    (("--preset=chinchilla_tiny",), "--output is missing"),
    (("--preset=chinchilla_tiny", "--output="), "--output= is empty"),
    (("--preset=chinchilla_tiny", "--output=o", "--seed=-1"), "--seed=-1 is"),
    (("--preset=chinchilla_tiny", "--output=o", "word"), "'word' is no flag"),
    (("--preset=t5_tiny", "--output=o", "--size=d_ff"), "--size=d_ff: give a"),
    (("--preset=t5_tiny", "--output=o", "--tokenizer="), "--tokenizer= is"),
    (
      ("--preset=chinchilla_70b", "--output=o", "--dtype=bfloat16"),
      "--preset=chinchilla_70b takes 129.4 GB in bfloat16; give --yes",
    ),
  ],
)
def test_a_wrong_command_line_is_one_line(
  tmp_path, monkeypatch, capsys, flags, words
):
  monkeypatch.chdir(tmp_path)
  assert run(*flags) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("specjax-init: error: ") and words in line
  assert not list(tmp_path.iterdir())


SMALL = ("--preset=t5_tiny", "--size=d_model:32", "--size=num_layers:1")


def test_sizes_and_a_tokenizer_of_ones_own_begin_a_model(tmp_path, capsys):
  own = tokenizers_made.folder(
    tmp_path / "own",
    tokenizers_made.byte_level(),
    tokenizer_config__json={"eos_token": tokenizers_made.EOS},
  )
  output = tmp_path / "start"
  flags = (*SMALL, f"--tokenizer={own}", f"--output={output}")
  assert run(*flags, "--size=vocab_size:262") == 0
  made = specjax.load(output)
  config = made.model.config
  assert (config.d_model, config.encoder_layers, config.layers) == (32, 1, 2)
  assert (
    made.tokenizer.fingerprint()
    == specjax.text.Tokenizer.from_folder(own).fingerprint()
  )
  assert made.tokenizer.eos_ids
  for more, words in (
    ("--size=odd:3", "--size=odd:3: t5_tiny has no such size; it has vocab_s"),
    ("--size=vocab_size:9", "has 262 tokens and t5_tiny 9; give --size=vocab"),
    ("--tokenizer=none", "none: no such folder"),
  ):
    assert run(*flags, "--overwrite", more) == 1
    assert words in capsys.readouterr().err


def test_a_disk_without_room_is_found_before_anything_is_written(
  tmp_path, monkeypatch, capsys
):
  usage = collections.namedtuple("usage", "free")
  monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**11))
  flags = ("--preset=chinchilla_70b", "--yes", f"--output={tmp_path}/new")
  assert run(*flags) == 1
  line = capsys.readouterr().err
  assert "takes 258.8 GB in float32 and 100.0 GB are free there" in line
  assert not list(tmp_path.iterdir())


def test_help_names_every_preset(capsys):
  assert run("--help") == 0
  assert "chinchilla_tiny|" in capsys.readouterr().out
