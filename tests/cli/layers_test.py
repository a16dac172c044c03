import json

import pytest

from specjax.checkpoints import hf
from specjax.cli import layers
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.proposers import kinds
from tests.text import tokenizers_made

CONFIG = dict(
  architectures=["LlamaForCausalLM"],
  vocab_size=262,
  hidden_size=16,
  intermediate_size=24,
  num_hidden_layers=3,
  num_attention_heads=2,
  max_position_embeddings=64,
  tie_word_embeddings=True,
)


@pytest.fixture
def folder(tmp_path):
  """A model whose second layer does nothing."""
  model = decoder.build(config_lib.from_hugging_face(CONFIG))
  idle = ("layers.1.attention.o.weight", "layers.1.mlp.down.weight")
  params = tuple(
    value * 0 if path in idle else value
    for path, value in zip(model.paths, model.init(0), strict=True)
  )
  hf.save_params(tmp_path / "model", model, params, config=CONFIG)
  tokenizers_made.folder(
    tmp_path / "model",
    tokenizers_made.byte_level(),
    tokenizer_config__json={"eos_token": tokenizers_made.EOS},
  )
  lines = [json.dumps({"prompt": text}) for text in ("abc", "A river is")]
  (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
  return tmp_path


def run(*flags):
  return layers.main(["specjax-layers", *flags])


@pytest.mark.long
def test_it_finds_the_layer_that_does_nothing_and_says_how_to_draft(
  folder, capsys
):
  code = run(
    f"--model={folder}/model",
    f"--prompts={folder}/prompts.jsonl",
    "--lookahead=3",
    "--max_new_tokens=6",
  )
  out, err = capsys.readouterr()
  assert code == 0, err
  head, *rows, flags = out.splitlines()
  assert head.split()[0] == "speed-up"
  found = {row.split()[-1]: float(row.split()[1]) for row in rows}
  assert found["0,2"] == 1
  assert found.keys() == {"0,2", "0-0", "0-1"}
  assert flags.startswith("--proposer=layer_skip --draft_layers=")
  assert flags.endswith(" --lookahead=3")
  assert kinds.layers(flags.split()[1].partition("=")[2])


@pytest.mark.parametrize(
  "flags, words",
  [
    ((), "--model is missing"),
    (("--model=m",), "--prompts is missing"),
    (("--model=m", "--prompts=p", "--budget=0"), "--budget=0 is out of range"),
    (("--model=m", "--prompts=p", "--temperature=nan"), "--temperature=nan"),
    (("--model=m", "--prompts=p", "--seed=1"), "--seed does nothing"),
    (("--model=m", "--prompts=p", "word"), "'word' is no flag"),
  ],
)
def test_a_wrong_command_line_is_one_line(flags, words, capsys):
  assert run(*flags) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("specjax-layers: error: ") and words in line


def test_a_missing_prompt_file_is_named(folder, capsys):
  code = run(f"--model={folder}/model", f"--prompts={folder}/none.jsonl")
  assert code == 1
  assert f"--prompts={folder}/none.jsonl: no such file" in (
    capsys.readouterr().err
  )
