"""The command line of specjax-benchmark."""

import json
import sys

import pytest

from specjax.benchmark import bandwidth, measure, plan
from specjax.cli import benchmark, benchmark_settings
from tests.benchmark import tiny


def run(*flags):
  return benchmark.main(["specjax-benchmark", *flags])


def parse(*flags):
  return benchmark_settings.parse(["specjax-benchmark", *flags])


def test_lists_are_taken_apart_and_plain_is_always_there():
  s = parse(
    "--model=m", "--prompts=p", "--draft_model=d", "--lookahead=4,8",
    "--runs=draft_model,ngram", "--peer=llama_cpp", "--peer=transformers",
  )  # fmt: skip
  assert s.runs == ("plain", "draft_model", "ngram")
  assert s.lookahead == (4, 8)
  assert s.peer == ("llama_cpp", "transformers")


def test_each_run_may_name_what_it_drafts_with_and_how_much():
  s = parse(
    "--model=m", "--prompts=p", "--draft_model=d", "--lookahead=4,8",
    "--runs=ngram,eagle:a/e@3,eagle:f@3,mtp@2,draft_model@2,layer_skip:0+2@5",
  )  # fmt: skip
  asked = plan.Plan(
    model="m", draft_model="d", runs=s.runs, lookahead=s.lookahead
  )
  runs = asked.every_run()
  assert [run.name for run in runs] == [
    *("plain", "ngram C=4", "ngram C=8", "eagle e C=3", "eagle f C=3"),
    *("mtp C=2", "draft_model C=2", "layer_skip 0,2 C=5"),
  ]
  # What another run needs is not for mtp, which the model may carry.
  assert [asked.drafts_with(run) for run in runs] == [
    *(None, None, None, "a/e", "f", None, "d", "0,2"),
  ]
  assert asked.widest == 8 + 1
  alone = plan.Plan(model="m", draft_model="d", runs=("mtp",))
  assert alone.drafts_with(alone.every_run()[1]) == "d"


def test_a_run_may_have_siblings_beside_its_lookahead():
  s = parse(
    "--model=m", "--prompts=p", "--draft_model=d",
    "--runs=draft_model@3,draft_model@3+4,eagle:a/e@2+6,layer_skip:0+2@5+1",
  )  # fmt: skip
  asked = plan.Plan(
    model="m", draft_model="d", runs=s.runs, lookahead=s.lookahead
  )
  runs = asked.every_run()
  assert [(run.name, run.siblings) for run in runs] == [
    ("plain", 0),
    ("draft_model C=3", 0),
    ("draft_model C=3 M=4", 4),
    ("eagle e C=2 M=6", 6),
    ("layer_skip 0,2 C=5 M=1", 1),
  ]
  assert [run.lookahead for run in runs] == [None, 3, 3, 2, 5]
  assert asked.widest == 1 + 2 + 6


@pytest.mark.parametrize(
  "flags, words",
  [
    ("--model=m --prompts=p --runs=ngram@4+2", "ngram has no second guesses"),
    ("--model=m --prompts=p --runs=plain@4+2", "plain drafts nothing"),
    ("--model=m --prompts=p --runs=mtp@0+2", "'mtp@0+2' drafts nothing"),
    ("--model=m --prompts=p --runs=mtp@3+0", "give 1 to 1024 siblings"),
    ("--model=m --prompts=p --runs=mtp@3+-1", "give 1 to 1024 siblings"),
    ("--model=m --prompts=p --runs=mtp@3+1025", "give 1 to 1024 siblings"),
    ("--model=m --prompts=p --runs=mtp@4+", "'mtp@4+' is no run"),
    ("--model=m --prompts=p --runs=mtp@4-2", "'mtp@4-2' is no run"),
    ("--model=m --prompts=p --runs=4", "'4' is no run"),
    ("--model=m --prompts=p --runs=mtp@4+2,mtp@4+2", "one is there twice"),
    ("--prompts=p", "--model is missing"),
    ("--model=m", "--prompts is missing"),
    ("--model=m --prompts=p --runs=ngrams", "did you mean ngram?"),
    ("--model=m --prompts=p --runs=ngram,ngram", "one is there twice"),
    ("--model=m --prompts=p --lookahead=4,0", "--lookahead=4,0: give whole"),
    ("--model=m --prompts=p --lookahead=four", "--lookahead=four: give whole"),
    ("--model=m --prompts=p --lookahead=4,4", "one is there twice"),
    ("--model=m --prompts=p --peer=vllm", "--peer=vllm is unknown"),
    ("--model=m --prompts=p --peer=llama_cpp --peer=llama_cpp", "given twice"),
    ("--model=m --prompts=p --rounds=0", "--rounds=0 is out of range"),
    ("--model=m --prompts=p --max_new_tokens=1", "give at least 2"),
    ("--model=m --prompts=p --runs=draft_model", "needs --draft_model, or"),
    ("--model=m --prompts=p --runs=eagle@4", "eagle needs --draft_model, or"),
    ("--model=m --prompts=p --runs=eagle:@4", "names nothing after the colon"),
    ("--model=m --prompts=p --runs=ngram:d", "ngram needs no folder"),
    ("--model=m --prompts=p --runs=plain@4", "plain drafts nothing"),
    ("--model=m --prompts=p --runs=ngram@0", "'ngram@0' drafts nothing"),
    ("--model=m --prompts=p --runs=ngram@4,ngram", "one is there twice"),
    ("--model=m --prompts=p --runs=layer_skip", "needs --draft_layers, or"),
    ("--model=m --prompts=p --runs=layer_skip:5+2", "as layer_skip:0+1+5"),
    (
      "--model=m --prompts=p --runs=eagle,medusa --draft_model=d",
      "--draft_model=d cannot be for eagle and medusa; say in --runs",
    ),
    ("--model=m --prompts=p --ngram_min=5", "--ngram_max=4 is out of range"),
    ("--model=m --prompts=p --json=", "--json= is empty"),
    ("--model=m --prompts=p --json=/absent/x", "in no folder that is there"),
    ("--model=m --prompts=p --nonsense", "Unknown command line flag"),
    ("--model=m p.jsonl", "'p.jsonl' is no flag; prompts go in --prompts"),
    (
      "--model=m --prompts=p --peer=transformers --temperature=1",
      "compared greedily; leave out --temperature=1.0",
    ),
    (
      "--model=m --prompts=p --peer=llama_cpp --slots=2",
      "one prompt at a time; leave out --slots=2",
    ),
    ("--model=m --sweep=batch", "--prompts is missing"),
    ("--model=m --prompts=p --sweep=batch --lookahead=2,4", "takes one"),
  ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(capsys, flags, words):
  assert run(*flags.split()) == 2
  out, err = capsys.readouterr()
  assert out == "" and len(err.splitlines()) == 1
  assert err.startswith("specjax-benchmark: error: ") and words in err


@pytest.mark.parametrize(
  "flags, words",
  [
    ("--runs=plain --lookahead=5", "--lookahead=5 does nothing without a run"),
    ("--runs=plain --verifier=block", "--verifier=block does nothing"),
    ("--runs=plain --ngram_max=5", "--ngram_max=5 does nothing without ngram"),
    ("--draft_model=d", "--draft_model=d does nothing without a run that"),
    ("--runs=eagle:e --draft_model=d", "--draft_model=d does nothing without"),
    (
      "--runs=ngram@3 --lookahead=4",
      "does nothing where every run has its own",
    ),
    ("--runs=layer_skip:3 --draft_layers=2", "without a run layer_skip that"),
    ("--runs=ngram --draft_weights=int8", "without a run that has weights of"),
    ("--gguf=f", "--gguf=f does nothing without --peer=llama_cpp"),
    ("--seed=3", "--seed=3 does nothing at temperature 0"),
    ("--sweep=live", "--prompts=p does nothing with --sweep=live"),
    ("--sweep=batch --slots=4", "--slots=4 does nothing with --sweep=batch"),
    ("--sweep=batch --runs=plain", "--runs=plain does nothing with"),
    ("--sweep=batch --peer=llama_cpp", "does nothing with --sweep=batch"),
  ],
)
def test_rule_28_a_setting_that_does_nothing_is_refused(capsys, flags, words):
  assert run("--model=m", "--prompts=p", *flags.split()) == 2
  assert words in capsys.readouterr().err


def test_an_assistant_makes_use_of_a_draft_and_a_lookahead():
  s = parse(
    "--model=m", "--prompts=p", "--runs=plain", "--peer=transformers",
    "--draft_model=d", "--lookahead=3",
  )  # fmt: skip
  assert s.runs == ("plain",) and s.lookahead == (3,)


@pytest.mark.parametrize(
  "flags, code, words",
  [
    ((), 1, "no such file or directory; name a file"),
    (("--plot=x.doc",), 1, "--plot=x.doc ends in no format"),
  ],
)
def test_files_are_looked_at_before_anything_is_loaded(
  capsys, flags, code, words
):
  assert run("--model=absent", "--prompts=/absent.jsonl", *flags) == code
  assert words in capsys.readouterr().err


def test_a_picture_without_matplotlib_says_what_to_install(capsys, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  assert run("--model=m", "--prompts=p", "--plot=p.png") == 1
  err = capsys.readouterr().err
  assert "--plot=p.png needs matplotlib: pip install 'specjax[plot]'" in err


def test_help_names_every_flag(capsys):
  assert run("--help") == 0
  out = capsys.readouterr().out
  for name in benchmark_settings.FIELDS:
    assert f"--{name}" in out


@pytest.fixture
def tiny_run(tmp_path, monkeypatch):
  monkeypatch.setattr(bandwidth, "BYTES", 2**20)
  flags = (
    f"--model={tiny.folder(tmp_path / 'model')}",
    f"--prompts={tiny.prompts(tmp_path / 'p.jsonl')}",
    f"--json={tmp_path / 'out.json'}",
    f"--plot={tmp_path / 'out.png'}",
    "--compilation_cache=off",
    "--max_new_tokens=6",
    "--rounds=1",
    "--capacity=128",
    "--runs=plain",
  )
  with tiny.compiled_quickly():
    yield flags


def test_from_the_command_line_to_table_json_and_picture(
  capsys, tmp_path, tiny_run
):
  assert run(*tiny_run, "--chat") == 0
  out, err = capsys.readouterr()
  assert "plain" in out and "efficiency" in out
  assert err.startswith("loading ")
  found = json.loads((tmp_path / "out.json").read_text())
  assert found["complete"] and found["runs"][0]["name"] == "plain"
  assert found["settings"]["prompts"].endswith("p.jsonl")
  assert found["settings"]["chat"] and found["machine"]["cores"] >= 1
  assert (tmp_path / "out.png").stat().st_size > 5000


def test_an_interrupted_benchmark_leaves_what_it_has(
  capsys, tmp_path, tiny_run, monkeypatch
):
  def interrupted(*args, write, **how):
    write({"complete": False, "runs": []})
    raise KeyboardInterrupt

  monkeypatch.setattr(measure, "measure", interrupted)
  assert run(*tiny_run) == 130
  found = json.loads((tmp_path / "out.json").read_text())
  assert found["complete"] is False
  assert not (tmp_path / "out.png").exists()


def test_a_missing_peer_is_one_line_before_loading(
  capsys, tiny_run, monkeypatch
):
  monkeypatch.setitem(sys.modules, "torch", None)
  assert run(*tiny_run, "--peer=transformers") == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert "--peer=transformers: torch is not installed; pip install" in line


@pytest.mark.parametrize(
  "flags, start",
  [
    ("--runs=eagle --draft_model=smol", "--draft_model=smol: "),
    ("--runs=ngram,eagle:smol@3,mtp", "--runs=eagle:smol@3: "),
  ],
)
def test_a_draft_that_nothing_is_called_is_refused_before_loading(
  capsys, flags, start
):
  assert run("--model=m", "--prompts=p", *flags.split()) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert f"error: {start}model 'smol': no such folder" in line


@pytest.mark.parametrize("flag", ["json", "plot"])
def test_no_file_of_its_own_is_written_over(flag, tmp_path, capsys):
  path = tmp_path / "p.jsonl"
  path.write_text('{"prompt": "x"}\n')
  argv = [f"--{flag}={path}", f"--prompts={path}", "--model=m"]
  assert benchmark.main(["specjax-benchmark", *argv]) == 2
  assert f"--{flag}={path} is the file of --prompts too" in (
    capsys.readouterr().err
  )
  assert path.read_text() == '{"prompt": "x"}\n'
