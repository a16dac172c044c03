"""launch/local_pod.sh: the processes, devices and collectives of a pod."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
POD = ROOT / "launch" / "local_pod.sh"
SAME = ("id", "text", "token_ids", "finish_reason", "prompt_tokens")


def dry(*words):
  return subprocess.run(
    [POD, *words], capture_output=True, text=True, check=False
  )


def test_dry_run_prints_what_each_process_is_told():
  done = dry("--dry_run", "2", "4", "--model=m", "--prompts=a b.jsonl")
  assert done.returncode == 0, done.stderr
  assert "--xla_force_host_platform_device_count=4" in done.stdout
  for process in "01":
    (line,) = re.findall(f".*--process_id={process}'.*", done.stdout)
    assert "'--num_processes=2'" in line
    assert "'--prompts=a b.jsonl'" in line


@pytest.mark.parametrize("words", [(), ("2",), ("0", "1"), ("2", "--model=m")])
def test_counts_that_are_none_are_refused(words):
  done = dry(*words)
  assert done.returncode == 2
  assert "is no count; usage: local_pod.sh [--dry_run] N M" in done.stderr


def test_help_says_how():
  assert "launch/local_pod.sh [--dry_run] N M" in dry("--help").stdout


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
  """40 prompts for a tiny model, some of them sampled."""
  from tests.benchmark import tiny

  folder = tmp_path_factory.mktemp("pod")
  (folder / "model").mkdir()
  tiny.folder(folder / "model", layers=2)
  rows = [
    {"prompt": f"the cat {i}, the cat" * (1 + i % 3), "temperature": i % 2}
    for i in range(40)
  ]
  (folder / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
  return [
    f"--model={folder}/model",
    f"--prompts={folder}/in.jsonl",
    f"--compilation_cache={folder}/xla",
    "--proposer=ngram",
    "--max_new_tokens=32",
    "--slots=2",
    "--capacity=256",
  ]


def start(flags, tmp_path, *more):
  return subprocess.Popen(
    [POD, "2", "2", *flags, *more],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ
    | {"LOG_DIR": str(tmp_path / "logs"), "PYTHON": sys.executable},
  )


def process(pod, index):
  """The process id of one of a pod's processes."""
  found = subprocess.run(
    ["pgrep", "-P", str(pod.pid), "-f", f"process_id={index}"],
    capture_output=True,
    text=True,
    check=True,
  )
  return min(map(int, found.stdout.split()))


def count(path):
  return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_rows(path, wanted, pod):
  while count(path) < wanted:
    assert pod.poll() is None, pod.stderr.read()
    time.sleep(0.01)


def answers(path):
  rows = [json.loads(line) for line in path.read_bytes().splitlines()]
  assert len({row["id"] for row in rows}) == len(rows)
  return {row["id"]: [row[key] for key in SAME] for row in rows}


@pytest.mark.long
def test_killed_processes_and_signals_leave_a_file_that_resume_completes(
  flags, tmp_path
):
  one, out = tmp_path / "one.jsonl", tmp_path / "out.jsonl"
  subprocess.run(
    [sys.executable, "-m", "specjax.cli.generate", *flags, f"--output={one}"],
    check=True,
    cwd=ROOT,
    stderr=subprocess.DEVNULL,
  )
  more = "--mesh=data:2,model:2", f"--output={out}", "--resume"
  for victim in 1, 0:
    with start(flags, tmp_path, *more) as pod:
      wait_for_rows(out, count(out) + 3, pod)
      os.kill(process(pod, victim), signal.SIGKILL)
      begin = time.monotonic()
      _, err = pod.communicate(timeout=120)
      took = time.monotonic() - begin
    log = (tmp_path / f"logs/process-{1 - victim}.log").read_text()
    print(f"process {victim} killed: the other ended after {took:.1f} s\n{err}")
    assert took < 60
    assert f"process {victim} of 2 has gone" in log.splitlines()[-1]
    assert "--resume goes on" in log.splitlines()[-1]
    assert pod.returncode == (1 if victim else 137)
  with start(flags, tmp_path, *more) as pod:
    wait_for_rows(out, count(out) + 3, pod)
    os.kill(process(pod, 1), signal.SIGTERM)
    _, err = pod.communicate(timeout=120)
  assert pod.returncode == 143, err
  assert "process 1 was asked to stop (SIGTERM)" in err
  assert count(out) < 40
  with start(flags, tmp_path, *more) as pod:
    wait_for_rows(out, count(out) + 1, pod)
    pod.send_signal(signal.SIGINT)
    _, err = pod.communicate(timeout=120)
  assert pod.returncode == 130, err
  with start(flags, tmp_path, *more) as pod:
    _, err = pod.communicate(timeout=300)
  assert pod.returncode == 0, err
  assert answers(out) == answers(one)
