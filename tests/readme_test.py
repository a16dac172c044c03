"""What the README shows runs, and the tests it names are there."""

import ast
import pathlib
import re
import shlex

from specjax.checkpoints import hf
from specjax.cli import (
  benchmark_settings,
  checks,
  convert,
  distill_settings,
  init,
  lab_settings,
  settings,
  train_settings,
)
from specjax.models import config as config_lib
from specjax.models import decoder, presets
from tests.text import tokenizers_made

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(ROOT.glob("docs/*.md"))
EVERYTHING = "\n".join([README, *(page.read_text("utf-8") for page in PAGES)])


def blocks(language, text=README):
  """The fenced blocks of a language ("" for none)."""
  found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
  return [block for name, block in found if name == language]


def commands(program):
  """Every command line of `program`, program name first."""
  lines = "\n".join(blocks("", EVERYTHING)).replace("\\\n", " ").splitlines()
  calls = [line for line in lines if line.startswith(f"{program} ")]
  return [shlex.split(call, comments=True) for call in calls]


def checkpoint(folder):
  """A tiny model whose tokenizer has a token for every byte."""
  config = dict(
    architectures=["LlamaForCausalLM"],
    vocab_size=262,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=512,
    tie_word_embeddings=True,
  )
  model = decoder.build(config_lib.from_hugging_face(config))
  hf.save_params(folder, model, model.init(0), config=config)
  tokenizers_made.folder(
    folder,
    tokenizers_made.byte_level(),
    tokenizer_config__json={"eos_token": tokenizers_made.EOS},
  )


def test_the_python_example_runs_as_written(tmp_path, monkeypatch, capsys):
  (example,) = blocks("python")
  checkpoint(tmp_path / ".cache" / "smollm2")
  monkeypatch.chdir(tmp_path)
  exec(compile(example, "README.md", "exec"), {})
  assert capsys.readouterr().out.count(" of ") >= 2


def test_the_commands_are_accepted(monkeypatch):
  monkeypatch.chdir(ROOT)
  generate = commands("specjax-generate")
  assert len(generate) >= 3
  for words in generate:
    checks.check(settings.parse(words))
  from_gguf, from_folder, to_orbax = commands("specjax-convert")
  assert convert.parse(from_gguf).gguf == "model.gguf"
  assert convert.parse(from_folder).model == "folder"
  assert convert.parse(to_orbax).format == "orbax"
  for words in commands("specjax-init"):
    assert init.parse(words).preset in presets.PRESETS
  measured = commands("specjax-benchmark")
  assert len(measured) >= 3
  trained, *others = measured  # the first is of "Training a proposer"
  assert benchmark_settings.parse(trained).model == ".cache/chinchilla_tiny"
  for words in others:
    model = benchmark_settings.parse(words).model
    assert model in (".cache/smollm2", ".cache/t5_target")


def test_the_commands_of_training_are_accepted_and_follow_each_other(
  monkeypatch,
):
  monkeypatch.chdir(ROOT)
  made = [init.parse(words).output for words in commands("specjax-init")]
  answered, said = map(distill_settings.parse, commands("specjax-distill-data"))
  tiny, heads, by_kl, pairs, deeper, draft = map(
    train_settings.parse, commands("specjax-train")
  )
  measured = benchmark_settings.parse(commands("specjax-benchmark")[0])
  assert tiny.model in made and tiny.model == measured.model
  assert tiny.output == measured.draft_model and pairs.model in made
  assert heads.data == (answered.output,) and heads.model == answered.model
  assert by_kl.data == heads.data and by_kl.model == heads.model
  drafts = [settings.parse(words) for words in commands("specjax-generate")]
  assert deeper.model == pairs.output and said.model == deeper.output
  assert draft.model == deeper.output and said.output in draft.data
  assert heads.output in [given.settings.draft_model for given in drafts]


def test_the_labs_commands_are_accepted(monkeypatch):
  monkeypatch.chdir(ROOT)
  asked = commands("specjax-lab")
  assert len(asked) >= 5
  for words in asked:
    assert lab_settings.parse(words).config.draft is not None


def test_flags_named_in_the_text_exist():
  named = set(re.findall(r"`--(\w+)", EVERYTHING))
  named -= {"help", "config", "dry_run"}
  parts = (settings, convert, benchmark_settings, init, lab_settings)
  parts += (train_settings, distill_settings)
  known = {name for part in parts for name in part.FIELDS}
  for name, field in settings.FIELDS.items():
    if field.metadata["kind"] == "switch":
      known.add(f"no{name}")
  assert named and named <= known, named - known


def test_rule_32_the_promise_names_its_evidence_and_it_is_there():
  assert "## What is promised" in README
  named = re.findall(r"`(tests/\S+?\.py)::(\w+)`", README)
  assert len(named) >= 10
  for path, name in named:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {
      node.name for node in tree.body if isinstance(node, ast.FunctionDef)
    }, f"{path} has no {name}"


def test_files_named_in_the_text_exist():
  named = re.findall(r"`([\w./]+/[\w.]+\.(?:py|ipynb|jsonl|sh))`", EVERYTHING)
  missing = [name for name in named if not (ROOT / name).exists()]
  assert named and not missing
