"""Training lowers the loss, adds up passes, and goes on as if never stopped."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from specjax.training import packing, recipes, trainer
from tests.training import made


@pytest.fixture(scope="module")
def rows():
  kept, held = made.corpus().split(0.1, made.LENGTH)
  return packing.Rows(kept, made.LENGTH), packing.Rows(held, made.LENGTH)


@pytest.fixture(scope="module")
def learner():
  return trainer.Trainer(made.draft(), made.options())


def equal(one, other):
  same = jax.tree.map(lambda a, b: bool((a == b).all()), one, other)
  return all(jax.tree.leaves(same))


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
  tmp_path, rows, learner
):
  straight, done = trainer.run(learner, *rows, tmp_path / "a")
  assert done and int(straight["step"]) == 8
  for stop_after in (5, 1):
    calls = iter(range(100))
    stopped, done = trainer.run(
      learner,
      *rows,
      tmp_path / "b",
      stop=lambda calls=calls, last=stop_after: next(calls) >= last,
    )
    assert not done and not equal(stopped, straight)
  # Killed after it: the checkpoint of step 6 is there, the log has more.
  with (tmp_path / "b" / trainer.LOG).open("a") as file:
    file.write('{"step": 8, "loss": 0.0}\n{"step": 8, "lo')
  resumed, done = trainer.run(learner, *rows, tmp_path / "b")
  assert done and equal(resumed, straight)

  def log(name):
    found = trainer.read_log(tmp_path / name / trainer.LOG)
    timed = ("seconds", "tokens_per_s")
    return [{k: v for k, v in row.items() if k not in timed} for row in found]

  # A run that begins in the middle of a line of the log has less to average.
  looks = [[r for r in log(name) if "loss" not in r] for name in "ab"]
  assert looks[0] == looks[1] and [r["step"] for r in looks[0]] == [0, 4, 8]
  assert [r["step"] for r in log("b") if "loss" in r][-1] == 8


def test_a_fitted_head_that_muon_trains_goes_on_to_the_same_bits(
  tmp_path, rows
):
  """What a run begins with is made anew when it goes on: fit and scales."""

  def learner():
    options = made.options(steps=4)
    muon = dataclasses.replace(options.optimizer, kind="muon")
    return trainer.Trainer(
      recipes.head(
        "eagle", made.target(), None, (), {"kl": 1.0}, fitted_to=rows[0]
      ),
      dataclasses.replace(options, optimizer=muon),
    )

  one = learner()
  straight, _ = trainer.run(one, *rows, tmp_path / "a")
  begun = one.begin()["params"]
  moved = {
    name: float(np.abs(straight["params"][name] - begun[name]).max())
    for name in begun
  }
  assert min(moved.values()) > 0, moved
  calls = iter(range(100))
  trainer.run(one, *rows, tmp_path / "b", stop=lambda: next(calls) >= 2)
  resumed, done = trainer.run(learner(), *rows, tmp_path / "b")
  assert done and equal(resumed, straight)


def test_the_loss_falls(tmp_path, rows, learner):
  trainer.run(learner, *rows, tmp_path)
  log = trainer.read_log(tmp_path / trainer.LOG)
  looks = [row for row in log if "held_out_loss" in row]
  assert looks[-1]["held_out_loss"] < 0.9 * looks[0]["held_out_loss"]
  line = next(row for row in log if "tokens_per_s" in row)
  assert {"loss", "learning_rate", "gradient_norm", "epoch"} <= set(line)


def test_passes_add_up_to_one_of_all_their_rows(rows):
  batches = packing.Batches(rows[0], batch=8, accumulate=1, seed=0)
  with batches:
    whole = batches[0]
  # So that passes have unequally many positions.
  whole["weight"][0, :5] = 0.0
  parts = {name: x.reshape(4, 2, *x.shape[2:]) for name, x in whole.items()}
  after = []
  for batch, accumulate, one in ((8, 1, whole), (2, 4, parts)):
    learner = trainer.Trainer(
      made.draft(), made.options(batch=batch, accumulate=accumulate)
    )
    state, metrics = learner.step(
      learner.begin(), learner.objective.frozen, learner.place(one, passes=True)
    )
    after.append((state["params"], metrics))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *after
  )


@pytest.mark.long
def test_a_loss_that_is_no_number_ends_the_run(tmp_path, rows):
  options = made.options(log_every=1)
  wild = dataclasses.replace(options.optimizer, learning_rate=1e30, clip=0.0)
  learner = trainer.Trainer(
    made.draft(), dataclasses.replace(options, optimizer=wild)
  )
  with pytest.raises(RuntimeError, match="lower --learning_rate"):
    trainer.run(learner, *rows, tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path, rows, learner):
  calls = iter(range(100))
  trainer.run(learner, *rows, tmp_path, stop=lambda: next(calls) >= 1)
  (step,) = (tmp_path / trainer.CHECKPOINTS).glob("1")
  for path in step.rglob("*"):
    if path.is_file() and path.parent.name == "d":
      path.write_bytes(b"")
  with pytest.raises(ValueError, match="/1: damaged, or of another run"):
    trainer.run(learner, *rows, tmp_path)


def test_a_half_written_log_is_read(tmp_path):
  path = tmp_path / "log"
  path.write_text(json.dumps({"step": 1}) + '\n{"step": 2, "lo')
  assert trainer.read_log(path) == [{"step": 1}]
