"""Encoder-decoders by the ten-line path and the commands, from folders."""

import json

import pytest

import specjax
from specjax import pretrained
from specjax.checkpoints import random_folder
from specjax.cli import (
  benchmark,
  convert,
  distill_data,
  generate,
  layers,
  train,
)
from tests import heads_made
from tests.benchmark import tiny

PROMPTS = ("the cat, the cat", "hello")
CAPACITY = 64
FITTED = ("--ends=head", "--fit")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  """Folders of a target, its draft, and of a decoder."""
  found = tmp_path_factory.mktemp("models")
  random_folder.write(found / "target", "t5_tiny")
  random_folder.write(found / "draft", "t5_tiny_draft", seed=1)
  random_folder.write(found / "decoder", "chinchilla_tiny_draft")
  return found


@pytest.fixture(scope="module")
def target(folders):
  return specjax.load(folders / "target")


@pytest.fixture(scope="module", autouse=True)
def quick():
  with tiny.compiled_quickly():
    yield


def made(target, folders, proposer="none", **options):
  draft = None
  if proposer == "draft_model":
    draft = specjax.load(folders / "draft")
  return specjax.Engine(
    target,
    proposer=proposer,
    draft=draft,
    capacity=CAPACITY,
    prefill_widths=(16,),
    **options,
  )


def test_the_prompt_is_the_source_and_every_proposer_says_the_same(
  target, folders
):
  plain = made(target, folders).generate(PROMPTS, max_new_tokens=20)
  assert len({done.token_ids for done in plain}) == 2
  for proposer, options in (
    ("ngram", dict(ngram_min=1)),
    ("draft_model", {}),
    ("layer_skip", dict(draft_layers=1)),
  ):
    engine = made(target, folders, proposer, slots=2, **options)
    got = engine.generate(PROMPTS, max_new_tokens=20)
    for one, other in zip(got, plain, strict=True):
      assert one.error is None and one.token_ids == other.token_ids
      assert one.prompt_tokens == other.prompt_tokens > 0
    assert sum(one.drafted for one in got) > 0


def test_prompt_and_output_each_have_the_capacity(target, folders):
  engine = made(target, folders)
  full, over = ([5] * CAPACITY, [5] * (CAPACITY + 1))
  assert engine.refusal(specjax.Request(prompt=tuple(full))) is None
  why = engine.refusal(specjax.Request(prompt=tuple(over)))
  full, over = engine.generate([full, over], max_new_tokens=1000)
  assert over.error == why
  assert full.finish_reason == "length"
  assert len(full.token_ids) == CAPACITY - 1
  assert f"prompt has {CAPACITY + 1} tokens" in over.error


def test_memory_counts_the_sources_beside_the_outputs(target, folders):
  own = made(target, folders).memory
  decoder = specjax.load(folders / "decoder")
  config = target.model.config
  per_token = 2 * 4 * config.layers * config.kv_heads * config.head_dim
  assert own.target_cache == 2 * 128 * per_token + 2 * 4
  assert made(decoder, folders).memory.prefill != own.prefill


def test_a_draft_is_of_the_targets_kind(target, folders):
  decoder = specjax.load(folders / "decoder")
  for one, other in ((target, decoder), (decoder, target)):
    with pytest.raises(ValueError, match="has an encoder that reads"):
      specjax.Engine(one, proposer="draft_model", draft=other)


def test_modules_of_a_decoders_own_are_refused(target):
  with pytest.raises(ValueError, match="for decoders alone, and .* has an"):
    specjax.heads.load_draft("mtp", None, target)


@pytest.mark.parametrize("kind", ("medusa", "eagle"))
def test_heads_of_the_decoder_are_read_and_say_the_same(
  target, folders, tmp_path, kind
):
  folder = heads_made.save(tmp_path / kind, target, kind)
  head = specjax.load_head(folder, target)
  engine = specjax.Engine(
    target,
    proposer=kind,
    draft=head,
    lookahead=2,
    capacity=CAPACITY,
    prefill_widths=(16,),
  )
  got = engine.generate(PROMPTS, max_new_tokens=20)
  plain = made(target, folders).generate(PROMPTS, max_new_tokens=20)
  assert [one.token_ids for one in got] == [one.token_ids for one in plain]
  assert sum(one.drafted for one in got) > 0


def test_generate_takes_files_of_prompts(folders, tmp_path, capsys):
  prompts = tiny.prompts(tmp_path / "p.jsonl", PROMPTS)
  flags = [f"--model={folders}/target", f"--prompts={prompts}"]
  flags += ["--proposer=draft_model", f"--draft_model={folders}/draft"]
  flags += ["--max_new_tokens=6", f"--capacity={CAPACITY}", "--slots=2"]
  flags += [f"--output={tmp_path}/o.jsonl", "--compilation_cache=off"]
  assert generate.main(["specjax-generate", *flags]) == 0
  lines = (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()
  rows = [json.loads(line) for line in lines]
  assert len(rows) == 2
  assert all(len(row["token_ids"]) == 6 for row in rows)


def test_convert_writes_the_same_folder_in_either_form(folders, tmp_path):
  flags = [f"--model={folders}/target", f"--output={tmp_path}/orbax"]
  assert convert.main(["specjax-convert", *flags, "--format=orbax"]) == 0
  flags = [f"--model={tmp_path}/orbax", f"--output={tmp_path}/back"]
  assert convert.main(["specjax-convert", *flags]) == 0
  again = pretrained.load(tmp_path / "back")
  for one, other in zip(
    again.params, pretrained.load(folders / "target").params, strict=True
  ):
    assert (one == other).all()


@pytest.mark.parametrize(
  "command, flags",
  [
    (train, ["--proposer=medusa", "--data={p}", "--output={o}", "--steps=1"]),
    (train, ["--layers=0", "--data={p}", "--output={o}", "--learn_prompts"]),
    (train, ["--data={p}", "--output={o}", "--layers=0", *FITTED]),
    (distill_data, ["--prompts={p}", "--output={o}", "--hidden=1"]),
    (distill_data, ["--output={o}", "--self_prompts=9"]),
    (layers, ["--prompts={p}"]),
  ],
)
def test_what_is_for_decoders_alone_says_so(
  folders, tmp_path, capsys, command, flags
):
  prompts = tiny.prompts(tmp_path / "p.jsonl", PROMPTS)
  flags = [flag.format(p=prompts, o=tmp_path / "out") for flag in flags]
  assert command.main(["prog", f"--model={folders}/target", *flags]) != 0
  err = capsys.readouterr().err
  assert "is an encoder-decoder" in err and len(err.splitlines()) == 1


def test_a_draft_learns_what_its_target_answers(folders, tmp_path, capsys):
  """specjax-distill-data makes pairs, specjax-train learns them."""
  prompts = tiny.prompts(tmp_path / "p.jsonl", PROMPTS)
  target = f"--model={folders}/target"
  how = [f"--prompts={prompts}", f"--output={tmp_path}/data", "--slots=2"]
  how += ["--max_new_tokens=6", "--temperatures=0,1", "--compilation_cache=off"]
  assert distill_data.main(["prog", target, *how]) == 0
  how = [f"--data={tmp_path}/data", f"--output={tmp_path}/draft", "--layers=0"]
  how += ["--steps=2", "--batch=2", "--length=64", "--compilation_cache=off"]
  how += ["--ends=own", "--loss=kl:1,tv:1"]
  assert train.main(["prog", target, *how]) == 0, capsys.readouterr().err
  draft = specjax.load(tmp_path / "draft")
  assert draft.model.reads_source and draft.model.config.layers == 1


def test_benchmark_measures_them(folders, tmp_path, capsys):
  prompts = tiny.prompts(tmp_path / "p.jsonl", PROMPTS)
  flags = [f"--model={folders}/target", f"--prompts={prompts}", "--rounds=1"]
  flags += [f"--draft_model={folders}/draft", "--runs=ngram,draft_model"]
  flags += [f"--capacity={CAPACITY}", "--max_new_tokens=12", "--lookahead=2"]
  flags += [f"--json={tmp_path}/b.json", "--compilation_cache=off"]
  assert benchmark.main(["specjax-benchmark", *flags]) == 0
  found = json.loads((tmp_path / "b.json").read_text())
  assert found["complete"]
  out = capsys.readouterr().out
  assert "draft_model" in out and "ngram" in out


def test_peers_are_refused_with_an_encoder(folders, tmp_path, capsys):
  pytest.importorskip("llama_cpp")
  prompts = tiny.prompts(tmp_path / "p.jsonl", PROMPTS)
  flags = [f"--model={folders}/target", f"--prompts={prompts}"]
  assert benchmark.main(["b", *flags, "--peer=llama_cpp"]) != 0
  assert "has an encoder; leave the peer out" in capsys.readouterr().err
