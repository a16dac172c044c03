"""Sweeps on a tiny model: points, ratios, pictures, records on the way."""

import json

import pytest

from specjax.benchmark import plan as plan_lib
from specjax.benchmark import sweep, sweep_batch, sweep_startup, sweep_steps
from specjax.jobs import prompts
from tests.benchmark import tiny
from tests.benchmark.made import answer, sample


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tiny.folder(tmp_path_factory.mktemp("sweeps") / "model")


def plan(folder, **changes):
  settings = dict(model=str(folder), capacity=512, rounds=2, max_new_tokens=12)
  return plan_lib.Plan(**settings | changes)


@pytest.fixture
def kept():
  """Keeps what is written on the way."""

  def write(found):
    kept.written.append(json.loads(json.dumps(found)))

  class Kept:
    written = []
    how = {"write": write, "say": lambda text: None}

  kept = Kept()
  kept.written = []
  return kept


def check(kept, result, tmp_path, *words):
  assert result["complete"] and not any(w["complete"] for w in kept.written)
  text = sweep.table(result)
  for word in words:
    assert word in text, text
  sweep.plot(result, tmp_path / "p.png")
  assert (tmp_path / "p.png").stat().st_size > 5000


def test_a_step_against_the_live_length(folder, kept, tmp_path):
  result = sweep_steps.live(plan(folder), **kept.how)
  lengths = [12, 31, 62, 125, 187, 250, 375, 500]
  assert [point["live"] for point in result["points"]] == lengths
  assert all(p["milliseconds"]["median"] > 0 for p in result["points"])
  assert len(kept.written) == 2
  check(kept, result, tmp_path, "live", "500")


def test_a_step_against_the_capacity(folder, kept, tmp_path):
  result = sweep_steps.capacity(plan(folder), **kept.how)
  assert [p["capacity"] for p in result["points"]] == [64, 512]
  assert result["live"] == 25
  assert result["ratio"]["min"] <= result["ratio"]["median"]
  check(kept, result, tmp_path, "ratio: ")


def test_throughput_against_the_slots(folder, kept, tmp_path):
  rows = list(prompts.read(tiny.prompts(tmp_path / "p.jsonl")))
  result = sweep_batch.measure(
    plan(folder, capacity=96, rounds=1), rows, batches=(2,), **kept.how
  )
  where = [(point["batch"], point["run"]) for point in result["points"]]
  assert where == [(2, "plain"), (2, "ngram")]
  for point in result["points"]:
    assert point["tokens_per_s_with_prompt"]["median"] > 0
    assert point["compiles_after_warmup"] == 0
  check(kept, result, tmp_path, "batch", "ngram")


def test_only_while_all_slots_decode_do_tokens_count():
  # The second row starts at 3 s; the first ends at 6 s.
  both = sample(answer([1, 2, 4, 6]), answer([3, 5, 6, 9]), together=True)
  assert sweep_batch.full_batch(both) == (4, 3.0)


def test_starts_are_cold_once_and_warm_then(
  folder, kept, tmp_path, monkeypatch
):
  seen = []

  def start(asked, cache):
    seen.append(cache)
    return 20.0 if len(seen) == 1 else 2.0 + len(seen)

  monkeypatch.setattr(sweep_startup, "_start", start)
  result = sweep_startup.measure(plan(folder), **kept.how)
  assert len(set(seen)) == 1 and len(seen) == 3
  assert [(p["start"], p["seconds"]) for p in result["points"]] == [
    ("cold", 20.0),
    ("warm", 4.0),
    ("warm", 5.0),
  ]
  assert result["warm"] == {"median": 4.5, "min": 4.0, "max": 5.0}
  check(kept, result, tmp_path, "cold", "warm: 4.50")


def test_a_start_that_fails_says_why(tmp_path):
  with pytest.raises(RuntimeError, match="did not answer: .*no such folder"):
    sweep_startup._start(plan(tmp_path / "absent"), str(tmp_path / "cache"))
