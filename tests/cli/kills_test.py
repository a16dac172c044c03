"""kill -9 at random moments, with the real command on a tiny model."""

import json
import pathlib
import random
import subprocess
import sys
import time

import pytest

from tests import api_test
from tests.text import tokenizers_made

ROOT = pathlib.Path(__file__).parents[2]
KILLS = 10
# What the rows that run beside it cannot change. They can decide whether a
# step speculates, and so how many steps there are.
SAME = ("id", "text", "token_ids", "finish_reason", "prompt_tokens")


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
  """60 prompts, some greedy, some sampled, for a tiny random model."""
  folder = tmp_path_factory.mktemp("kills")
  backend = tokenizers_made.byte_level()
  model = api_test.checkpoint(folder / "model", backend, api_test.VOCAB)
  dice = random.Random(1)
  rows = [
    {"prompt": "the cat " * dice.randrange(1, 5), "temperature": i % 3 / 2}
    for i in range(60)
  ]
  lines = "\n".join(map(json.dumps, rows))
  (folder / "in.jsonl").write_text(lines)
  return [
    f"--model={model}",
    f"--prompts={folder}/in.jsonl",
    f"--compilation_cache={folder}/xla",
    "--proposer=ngram",
    "--max_new_tokens=48",
    "--slots=2",
  ]


def start(flags, path, *more):
  command = [sys.executable, "-m", "specjax.cli.generate", *flags]
  return subprocess.Popen(
    [*command, f"--output={path}", *more],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
    cwd=ROOT,
  )


def finish(flags, path, *more):
  with start(flags, path, *more) as child:
    _, err = child.communicate(timeout=600)
  assert child.returncode == 0, err
  return err


def lines_of(path):
  return path.read_bytes().count(b"\n") if path.exists() else 0


def answers(path):
  rows = [json.loads(line) for line in path.read_bytes().splitlines()]
  assert len({row["id"] for row in rows}) == len(rows)
  return {row["id"]: [row[key] for key in SAME] for row in rows}


@pytest.mark.long
def test_killed_at_ten_random_moments_each_id_is_there_once(flags, tmp_path):
  path, undisturbed = tmp_path / "out.jsonl", tmp_path / "undisturbed.jsonl"
  finish(flags, undisturbed)
  begin = time.monotonic()
  finish(flags, undisturbed, "--overwrite")  # With all compiled.
  whole_s = time.monotonic() - begin
  dice = random.Random(time.time_ns())
  killed = done = 0
  while killed < KILLS:
    with start(flags, path, "--resume") as child:
      # Every other one comes at any moment of a run, most of which is its
      # start; the others among the rows.
      chance = dice.uniform(0, whole_s) if killed % 2 else 20 * whole_s
      until = time.monotonic() + chance
      enough = done + dice.randrange(1, 9)
      while time.monotonic() < until and lines_of(path) < enough:
        time.sleep(0.001)
      time.sleep(dice.uniform(0, 0.02))
      assert child.poll() is None, child.stderr.read()
      child.kill()
      child.communicate()
    killed += 1
    assert lines_of(path) >= done
    done = lines_of(path)
    print(f"kill {killed}: {done} rows")
  assert done < 60
  print(finish(flags, path, "--resume").splitlines()[0])
  assert answers(path) == answers(undisturbed)
