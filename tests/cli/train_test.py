"""specjax-train: one command makes what --draft_model names."""

import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from specjax.cli import train, train_settings
from specjax.training import fitting, trainer
from tests.training import made

TEXT = "The sun rises in the east and sets in the west, day after day.\n" * 40
FITTED = np.eye(made.WIDTH, dtype=np.float32)
SMALL = ("--steps=4", "--batch=2", "--length=32", "--log_every=1")


def run(*flags):
  return train.main(["specjax-train", *flags])


@pytest.fixture
def data(tmp_path):
  path = tmp_path / "text.txt"
  path.write_text(TEXT)
  return path


def flags(data, output, *more):
  return (
    f"--model={made.target().folder}",
    f"--data={data}",
    f"--output={output}",
    "--compilation_cache=off",
    *SMALL,
    *more,
  )


def test_a_draft_is_made_logged_and_not_made_twice(tmp_path, data, capsys):
  output = tmp_path / "draft"
  how = flags(data, output, "--layers=0", "--vocabulary=100")
  assert run(*how) == 0
  said = capsys.readouterr().err
  assert "the target reads along" in said and "held-out acceptance" in said
  layers = made.target().model.config.layers
  assert f"--hidden={layers} would say it" in said
  assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
    path.name for path in output.iterdir()
  }
  log = trainer.read_log(output / train.RUN / trainer.LOG)
  assert [row["step"] for row in log if "loss" in row] == [1, 2, 3, 4]
  weights = (output / "model.safetensors").read_bytes()
  assert run(*how) == 2
  assert "holds something already" in capsys.readouterr().err
  assert run(*how, "--resume") == 0  # Nothing is left to do.
  assert (output / "model.safetensors").read_bytes() == weights
  assert run(*how, "--resume", "--seed=3") == 1
  said = capsys.readouterr().err
  assert "has a run of --seed=3, and it was begun with 0" in said
  data.write_text(TEXT + "More.")
  assert run(*how, "--resume") == 1
  assert "another --data" in capsys.readouterr().err
  data.write_text(TEXT)
  other = shutil.copytree(made.target().folder, tmp_path / "other")
  tensors = bytearray((other / "model.safetensors").read_bytes())
  tensors[-1] ^= 1
  (other / "model.safetensors").write_bytes(tensors)
  assert run(*how, f"--model={other}", "--resume") == 1
  assert "another --model" in capsys.readouterr().err


GOOD = ("--model=m", "--data=d", "--output=o", "--layers=0")


@pytest.mark.parametrize(
  "given, words",
  [
    (GOOD[1:], "--model is missing"),
    (GOOD[:1] + GOOD[2:], "--data is missing"),
    (GOOD[:2] + GOOD[3:], "--output is missing"),
    (GOOD[:3], "--layers and --size are both missing"),
    ((*GOOD, "--size=a:1"), "--layers and --size are both given"),
    ((*GOOD[:3], "--size=a"), "--size=a: give a key of config.json"),
    ((*GOOD[:3], "--layers=a"), "--layers=a: give numbers"),
    (
      (*GOOD, "--heads=2"),
      "--heads=2 does nothing with --proposer=draft_model",
    ),
    (
      (*GOOD, "--proposer=medusa"),
      "--layers=0 does nothing with --proposer=med",
    ),
    ((*GOOD, "--steps=0"), "--steps=0 is out of range"),
    (
      (*GOOD, "--steps=5", "--warmup=5"),
      "--warmup=5 is no less than --steps=5",
    ),
    ((*GOOD, "--learning_rate=0"), "--learning_rate=0.0 is out of range"),
    ((*GOOD, "--held_out_share=0"), "--held_out_share=0.0 is out of range"),
    (
      (*GOOD, "--held_out=h", "--held_out_share=0.1"),
      "does nothing with --held",
    ),
    ((*GOOD, "--strategy=fsdp"), "--strategy=fsdp does nothing without --mesh"),
    ((*GOOD, "--resume", "--overwrite"), "exclude each other"),
    ((*GOOD, "--loss=odd:1"), "--loss=odd:1: 'odd:1' is no loss"),
    ((*GOOD, "--loss=feature:1"), "feature is EAGLE-1's"),
    ((*GOOD, "--plot="), "--plot= is empty"),
    ((*GOOD[:3], "--proposer=eagle", "--eagle=2"), "--eagle=2 is no EAGLE"),
    (
      (*GOOD[:3], "--proposer=eagle", "--start_layer=-1"),
      "--start_layer=-1 is for EAGLE-3",
    ),
    (
      (*GOOD[:3], "--proposer=eagle", "--decay=0.5"),
      "--decay=0.5 does nothing where one step is trained; leave it out, or"
      " give more with --unroll",
    ),
    (
      (*GOOD[:3], "--proposer=mtp", "--decay=0.5"),
      "give more with --heads",
    ),
    (
      (*GOOD[:3], "--proposer=eagle", "--eagle=3", "--fit"),
      "--fit is for EAGLE-1",
    ),
    ((*GOOD, "--fit"), "--fit fits a draft_model's own head"),
    (
      (*GOOD[:3], "--proposer=medusa", "--fit"),
      "--fit does nothing with --proposer=medusa",
    ),
    (
      (*GOOD, "--ends=head", "--fit", "--start_from=d"),
      "--fit and --start_from=d are two beginnings",
    ),
    ((*GOOD, "--start_from="), "--start_from= is empty"),
    ((*GOOD, "--optimizer=sgd"), "--optimizer=sgd"),
    ((*GOOD, "word"), "'word' is no flag"),
  ],
)
def test_a_wrong_command_line_is_one_line(
  tmp_path, monkeypatch, capsys, given, words
):
  monkeypatch.chdir(tmp_path)
  assert run(*given) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("specjax-train: error: ") and words in line
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  "more, words",
  [
    (("--data=absent",), "--data=absent: absent: no such file or folder"),
    (("--layers=7",), "--layers=7: "),
    (("--vocabulary=9999",), "--vocabulary=9999 is more than the 264"),
    (("--plot=loss.odd",), "--plot=loss.odd ends in no format"),
  ],
)
def test_what_cannot_be_made_leaves_nothing_behind(
  tmp_path, data, capsys, more, words
):
  output = tmp_path / "draft"
  given = dict(one.split("=", 1) for one in flags(data, output, "--layers=0"))
  given |= dict(one.split("=", 1) for one in more)
  assert run(*(f"{name}={value}" for name, value in given.items())) != 0
  line = capsys.readouterr().err.splitlines()[-1]
  assert line.startswith("specjax-train: error: ") and words in line
  assert not output.exists()


def test_a_run_that_goes_on_fits_nothing_anew(tmp_path, data, monkeypatch):
  fits = []
  monkeypatch.setattr(
    fitting, "solve", lambda *_, **__: fits.append(1) or FITTED
  )
  how = flags(data, tmp_path / "draft", "--layers=0", "--ends=head", "--fit")
  assert run(*how) == 0 and len(fits) == 1
  assert run(*how, "--resume") == 0 and len(fits) == 1
  assert run(*how, "--overwrite") == 0 and len(fits) == 2
  # There is nothing to go on from: it begins.
  shutil.rmtree(tmp_path / "draft" / train.RUN / trainer.CHECKPOINTS)
  assert run(*how, "--resume") == 0 and len(fits) == 3


def held_out(output):
  """The loss at the beginning and at the end."""
  log = trainer.read_log(output / train.RUN / trainer.LOG)
  found = [row["held_out_loss"] for row in log if "held_out_loss" in row]
  return found[0], found[-1]


@pytest.mark.parametrize(
  "kind",
  [
    ("--layers=0", "--ends=head", "--vocabulary=100"),
    ("--layers=0", "--ends=own"),
    ("--proposer=eagle", "--vocabulary=100"),
    ("--proposer=medusa", "--heads=2"),
  ],
)
def test_a_training_goes_on_from_another_ones_weights(tmp_path, data, kind):
  first, second = tmp_path / "first", tmp_path / "second"
  rate = "--learning_rate=0.01"
  assert run(*flags(data, first, *kind, rate)) == 0
  # It has a list of ids of its own.
  rest = [flag for flag in kind if not flag.startswith("--vocabulary")]
  more = (*rest, rate, f"--start_from={first}")
  assert run(*flags(data, second, *more)) == 0
  assert held_out(second)[0] == pytest.approx(held_out(first)[1], rel=1e-5)
  assert held_out(second)[1] < held_out(first)[1]


@pytest.mark.parametrize(
  "more, words",
  [
    (("--layers=0,1",), "is not there, and in what is to be trained ("),
    (("--layers=0", "--vocabulary=99"), "drafts 100 ids, and its list stays"),
    (("--proposer=medusa",), "'draft_model' drafts with, not 'medusa'"),
  ],
)
def test_a_beginning_of_another_form_is_refused(
  tmp_path, data, capsys, more, words
):
  first, second = tmp_path / "first", tmp_path / "second"
  assert run(*flags(data, first, "--layers=0", "--vocabulary=100")) == 0
  assert run(*flags(data, second, *more, f"--start_from={first}")) == 1
  line = capsys.readouterr().err.splitlines()[-1]
  assert f"--start_from={first}" in line and words in line
  assert not second.exists()


def test_prompts_that_are_not_there_are_not_learned(tmp_path, data, capsys):
  how = flags(data, tmp_path / "draft", "--layers=0", "--learn_prompts")
  assert run(*how) == 2
  line = capsys.readouterr().err.splitlines()[-1]
  assert f"--learn_prompts does nothing with --data={data}: no text" in line
  assert line.endswith("leave it out")
  assert not (tmp_path / "draft").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path, data, capsys):
  (tmp_path / "mine").mkdir()
  (tmp_path / "mine" / "config.json").write_text("{}")
  how = flags(data, tmp_path / "mine", "--layers=0")
  assert run(*how, "--resume") == 2
  assert "holds something and no run" in capsys.readouterr().err
  target = made.target().folder
  how = flags(data, target, "--layers=0")
  assert run(*how, "--overwrite") == 2
  assert "is the target's own folder" in capsys.readouterr().err


def test_help_names_every_setting(capsys):
  assert run("--help") == 0
  said = capsys.readouterr().out
  assert all(f"--{name}" in said for name in train_settings.FIELDS)


@pytest.mark.long
def test_a_run_killed_at_a_random_step_ends_in_the_same_bits(tmp_path, data):
  """What a resumed run writes is what one that was never killed writes."""
  root = pathlib.Path(train.__file__).parents[2]
  env = {**os.environ, "PYTHONPATH": str(root)}
  env |= {"SPECJAX_CACHE": str(tmp_path / "cache")}
  more = ("--layers=0", "--steps=60", "--save_every=5", "--resume")

  def start(output):
    how = [f for f in flags(data, output) if not f.startswith("--steps")]
    how.remove("--compilation_cache=off")
    words = [sys.executable, "-m", "specjax.cli.train", *how, *more]
    return subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL)

  assert start(tmp_path / "a").wait() == 0
  draws, kills = random.Random(time.time_ns()), []
  log = tmp_path / "b" / train.RUN / trainer.LOG
  for _ in range(2):
    last = max((row["step"] for row in trainer.read_log(log)), default=0)
    process = start(tmp_path / "b")
    wanted = last + draws.randint(2, 20)
    while process.poll() is None:
      steps = [row["step"] for row in trainer.read_log(log)]
      if steps and max(steps) >= wanted:
        process.send_signal(signal.SIGKILL)
        kills.append(max(steps))
      time.sleep(0.01)
  assert kills, "it was over before it could be killed"
  assert start(tmp_path / "b").wait() == 0
  a, b = ((tmp_path / n / "model.safetensors").read_bytes() for n in "ab")
  assert a == b, f"killed after steps {kills}"
  settings = (tmp_path / "b" / train.RUN / train.SETTINGS).read_text()
  assert json.loads(settings)["steps"] == 60


ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("train_*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_commands_of_a_configs_header_are_accepted(path, monkeypatch):
  monkeypatch.chdir(path.parents[1])
  header = path.read_text().split('"""')[1].replace("\\\\\n", " ")
  lines = [line.removeprefix("Command:") for line in header.splitlines()]
  commands = [shlex.split(one) for one in lines if "specjax-train --" in one]
  commands = [one for one in commands if one[0] == "specjax-train"]
  assert commands
  for words in commands:
    settings = train_settings.parse(words)
    assert train_settings.losses_of(settings)
    assert f"--output={settings.output}" in words
