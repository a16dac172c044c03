"""The whole benchmark on a tiny model, with stand-ins for the peers."""

import json
import types

import pytest

import specjax
from specjax.benchmark import asked as asked_lib
from specjax.benchmark import (
  differences,
  figures,
  measure,
  peers_transformers,
  plots,
  probe,
  record,
  report,
  runs,
)
from specjax.benchmark import plan as plan_lib
from specjax.checkpoints import heads
from specjax.jobs import prompts
from tests import heads_made
from tests.benchmark import tiny
from tests.benchmark.made import Contestant

ROUNDS = 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  root = tmp_path_factory.mktemp("models")
  return {
    "target": tiny.folder(root / "target"),
    "draft": tiny.folder(root / "draft", seed=1),
    "prompts": tiny.prompts(root / "prompts.jsonl"),
  }


def plan(folders, **changes):
  settings = dict(
    model=str(folders["target"]),
    prompts=str(folders["prompts"]),
    max_new_tokens=12,
    capacity=200,
    rounds=ROUNDS,
  )
  return plan_lib.Plan(**settings | changes)


@pytest.fixture(scope="module")
def measured(folders):
  """The records as they were written, and the last one."""
  written, said = [], []

  def load(folder, **settings):
    assert folder == str(folders["target"])
    assert settings["lookahead"] == (3,)
    slow = [Contestant("transformers plain", second=2.0)]
    ways = [
      Contestant("transformers prompt lookup", second=s) for s in (2.0, 1.0)
    ]
    return [slow, ways]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(peers_transformers, "check", lambda: None)
    patch.setattr(peers_transformers, "load", load)
    last = measure.measure(
      plan(
        folders,
        draft_model=str(folders["draft"]),
        runs=("plain", "ngram", "draft_model"),
        lookahead=(3,),
        peer=("transformers",),
      ),
      list(prompts.read(folders["prompts"])),
      cache=folders["target"],
      write=lambda r: written.append(json.loads(json.dumps(r))),
      say=said.append,
      bandwidth_bytes=2**20,
    )
  return written, last, said


def test_every_field_is_there_for_every_run(measured):
  _, last, _ = measured
  assert last["complete"] and last["rounds_done"] == ROUNDS
  assert set(last["definitions"]) == set(figures.DEFINITIONS)
  names = [run["name"] for run in last["runs"]]
  assert names == [
    "plain",
    "ngram C=3",
    "draft_model C=3",
    "transformers plain",
    "transformers prompt lookup",
  ]
  for run in last["runs"]:
    assert set(figures.DEFINITIONS) <= set(run)
    assert len(run["rounds"]) == len(run["speedup_of_rounds"]) == ROUNDS
    assert run["tokens_per_s"] > 0 and run["startup_s"] > 0


def test_figures_of_our_runs_are_sane(measured):
  _, last, _ = measured
  plain, *others = [run for run in last["runs"] if run["peer"] is None]
  assert plain["speedup"] == plain["tokens_per_step"] == 1
  assert plain["tokens_equal"] == 1 and plain["lookahead"] is None
  assert plain["acceptance"] is None and plain["predicted_speedup"] is None
  for run in others:
    assert run["lookahead"] == 3
    assert 1 <= run["tokens_per_step"] <= 4
    assert 0 <= run["acceptance"] <= 1
    assert len(run["acceptance_per_position"]) == 3
    assert run["draft_cost"] > 0 and run["verify_cost"] > 0
    assert 0 < run["wide_share"] <= 1
    assert run["tokens_equal"] == 1  # Greedy in float32.
    assert run["efficiency"] == pytest.approx(
      run["speedup"] / run["predicted_speedup"]
    )
    assert run["predicted_speedup"] == pytest.approx(
      figures.predicted_speedup(
        run["tokens_per_step"],
        3,
        run["draft_cost"],
        run["verify_cost"],
        run["wide_share"],
      )
    )
  for run in (plain, *others):
    assert 0 < run["bandwidth_fraction"]
    assert {"step", "plain_step", "plain_pass", "wide_pass", "draft"} <= set(
      run["milliseconds"]
    )


def test_rule_27_nothing_compiles_after_the_warm_up(measured):
  _, last, _ = measured
  for run in last["runs"]:
    assert run["compiles_after_warmup"] == (0 if run["peer"] is None else None)


def test_peers_stand_beside_ours(measured):
  _, last, said = measured
  fast = last["runs"][-1]
  assert fast["settings"] == {"second": 1.0}  # The better of its ways.
  assert fast["tokens_per_s"] == pytest.approx(1.0)
  assert 0 <= fast["tokens_equal"] < 1
  ratio = last["ratios"]["plain"]["transformers plain"]
  assert ratio["min"] <= ratio["median"] <= ratio["max"]
  best = last["best"]["over"]["transformers"]
  assert best["name"] == "transformers prompt lookup"
  assert any("prompt lookup, tokens/s" in line for line in said)


def test_where_answers_part_the_targets_logits_are_told(measured):
  _, last, _ = measured
  plain, ngram, _, peer, _ = last["runs"]
  assert plain["first_differences"] == ngram["first_differences"] == []
  # The stand-in says 0, 1, 2 …, whatever the model likes best.
  parted = peer["first_differences"]
  assert [one["id"] for one in parted] == ["1", "2"]
  assert all(one["margin"] > 0 and one["position"] >= 0 for one in parted)
  assert "transformers plain parts from plain in 2" in report.table(last)


def test_a_difference_is_where_both_have_a_token():
  assert differences.first((1, 2, 3), (1, 4)) == 1
  assert differences.first((1, 2), (1, 2, 3)) is None


def test_records_come_as_the_rounds_go(measured):
  written, _, _ = measured
  assert len(written) == 5 * ROUNDS
  assert not any(found["complete"] for found in written)
  assert [len(found["runs"][0]["rounds"]) for found in written[:5]] == [1] * 5
  # Before anything else has run, plain decoding is there alone.
  first = written[0]["runs"]
  assert first[0]["tokens_per_s"] > 0
  assert first[1]["tokens_per_s"] is None and first[1]["rounds"] == []


def test_the_table_names_runs_and_peers(measured):
  written, last, _ = measured
  text = report.table(last)
  for word in ("ngram C=3", "efficiency", "transformers plain", "paper's"):
    assert word in text
  assert "NOT COMPLETE" not in text
  assert "NOT COMPLETE" in report.table(written[0])
  assert "best of ours (" in text and "place 1, 2, …" in text


def test_a_record_is_replaced_whole(measured, tmp_path):
  written, last, _ = measured
  path = tmp_path / "r.json"
  record.write(path, written[0])
  assert json.loads(path.read_text())["complete"] is False
  record.write(path, last)
  again = json.loads(path.read_text())
  assert again["complete"] and again["prompts"][0]["id"] == "1"
  assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture_is_written(measured, tmp_path, ending):
  path = tmp_path / f"p.{ending}"
  plots.runs(measured[1], path)
  assert path.stat().st_size > 5000


@pytest.mark.parametrize(
  "settings, changes, words",
  [
    ({"lookahead": 2}, {}, "line 1: lookahead is what is compared"),
    ({"stop": "x"}, {"peer": ("transformers",)}, "stop is not compared"),
    ({"temperature": 1}, {"peer": ("llama_cpp",)}, "temperature is not"),
    ({"top_p": 2}, {"temperature": 1.0}, "line 1: top_p is 2"),
    ({"temprature": 2}, {}, "line 1: unknown field 'temprature'"),
  ],
)
def test_rows_that_cannot_be_measured_are_refused(
  folders, tmp_path, settings, changes, words
):
  path = tiny.prompts(tmp_path / "p.jsonl", **settings)

  class Encoder:
    def encode(self, text):
      return [1, 2]

  with pytest.raises(ValueError, match=words):
    plan_lib.build(
      plan(folders, **changes), list(prompts.read(path)), Encoder()
    )


def test_answers_that_would_be_cut_are_refused(folders):
  target, _ = runs.load(str(folders["target"]), dtype="float32")
  rows = list(prompts.read(folders["prompts"]))
  built = plan_lib.build(plan(folders), rows, target.tokenizer)
  engine = types.SimpleNamespace(target=target, capacity=20)
  with pytest.raises(ValueError, match="--capacity=20; raise it"):
    plan_lib.check_room(built, engine)


def test_they_are_refused_before_anything_compiles(folders, monkeypatch):
  monkeypatch.setattr(specjax.Engine, "warmup", lambda engine: 1 / 0)
  with pytest.raises(ValueError, match="--capacity=20; raise it"):
    measure.measure(
      plan(folders, capacity=20),
      list(prompts.read(folders["prompts"])),
      cache=folders["target"],
      write=lambda record: None,
      say=lambda line: None,
    )


@pytest.mark.parametrize("by", ["draft_model", "runs", "neither"])
def test_a_peer_drafts_with_what_our_runs_draft_with(folders, by, tmp_path):
  draft = str(folders["draft"])
  how = {
    "draft_model": dict(draft_model=draft),
    "runs": dict(runs=("plain", f"draft_model:{draft}@3")),
    "neither": dict(runs=("plain", "ngram")),
  }[by]
  target, load_s = runs.load(str(folders["target"]), dtype="float32")
  loaded = runs.load_draft("draft_model", draft, target)[0]
  drafts = {"draft_model C=3": loaded} if by == "runs" else {}
  found = measure._assistant(plan(folders, **how), target, drafts, tmp_path)
  assert found == (None if by == "neither" else draft)


def test_a_probe_stays_at_its_length_whatever_is_run(folders):
  target, load_s = runs.load(str(folders["target"]), dtype="float32")
  run = runs.make(target, "ngram", 3, capacity=200, load_s=load_s)
  request = plan_lib.build(
    plan(folders, lookahead=(3,)),
    list(prompts.read(folders["prompts"])),
    target.tokenizer,
  )[0]
  made = probe.Probe(run.engine, request, live=150)
  for part in (made.plain_step, made.wide_step, made.draft):
    part()
  made.forward(4)
  made.prime()
  assert made._state.cache.length.tolist() == [150]
  assert made._state.active.tolist() == [True]
  made.prime(60)
  assert made._state.cache.length.tolist() == [60]
  # The engine is idle again, and has lost nothing.
  (answer,) = run.answer([request])
  assert len(answer.token_ids) == 12
  with pytest.raises(ValueError, match="live length of 197 does not fit"):
    probe.Probe(run.engine, request, live=197)


def test_sampled_answers_have_a_speedup_and_are_not_compared(folders):
  got = measure.measure(
    plan(
      folders,
      runs=("plain", "ngram"),
      lookahead=(3,),
      temperature=1.0,
      seed=3,
      rounds=1,
    ),
    list(prompts.read(folders["prompts"])),
    cache=folders["target"],
    write=lambda found: None,
    say=lambda text: None,
    bandwidth_bytes=2**20,
  )
  _, ngram = got["runs"]
  assert ngram["speedup"] > 0 and ngram["efficiency"] > 0
  assert ngram["tokens_equal"] is None
  assert ngram["compiles_after_warmup"] == 0
  json.dumps(got, allow_nan=False)


@pytest.mark.long
def test_one_benchmark_alternates_all_proposers(tmp_path):
  """Each with what it drafts with and a lookahead of its own."""
  folder = tiny.folder(tmp_path / "target", layers=2)
  target = specjax.load(folder)
  saved = {
    kind: heads_made.save(tmp_path / kind, target, kind) for kind in heads.KINDS
  }
  asked = [
    f"{kind}:{path}@{2 + n}"
    for n, (kind, path) in enumerate(saved.items())
    if kind != "medusa"
  ]
  asked += [f"medusa:{saved['medusa']}@2", "layer_skip:1@2", "ngram@6"]
  got = measure.measure(
    plan(
      {"target": folder, "prompts": tiny.prompts(tmp_path / "prompts.jsonl")},
      runs=("plain", *asked),
      draft_weights="int8",
      rounds=1,
    ),
    list(prompts.read(tmp_path / "prompts.jsonl")),
    cache=tmp_path,
    write=lambda found: None,
    say=lambda text: None,
    bandwidth_bytes=2**20,
  )
  runs_of = {run["kind"]: run for run in got["runs"]}
  assert runs_of.keys() == set(asked_lib.KINDS)
  assert runs_of["medusa"]["name"] == "medusa medusa C=2"
  assert runs_of["eagle"]["settings"] == {
    "draft_model": str(saved["eagle"]),
    "draft_weights": "int8",
  }
  assert runs_of["layer_skip"]["settings"] == {"draft_layers": [0]}
  for kind, run in runs_of.items():
    assert run["tokens_equal"] == 1 and run["compiles_after_warmup"] == 0
    if kind != "plain":
      assert run["draft_cost"] > 0 and run["efficiency"] > 0
      assert run["bytes_per_step"] >= runs_of["plain"]["bytes_per_step"] * 0.9
