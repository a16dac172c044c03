"""Two processes do one job together: the real command without a model.

They share jax's coordination service, but no collective: those are in
pod_test.py.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import pytest

from specjax.cli import processes
from specjax.sharding import hosts

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "tests.fake_command", "--model=.")


@pytest.fixture
def job(tmp_path):
  """Flags of a job of 60 rows; where its answers go."""
  rows = [json.dumps({"prompt": f"{i} " * 5}) for i in range(60)]
  (tmp_path / "in.jsonl").write_text("\n".join(rows))
  out = tmp_path / "out.jsonl"
  return (f"--prompts={tmp_path}/in.jsonl", f"--output={out}"), out


def start(*flags, each=((), ()), **environment):
  """Two processes; `each` holds flags of one alone."""
  with socket.socket() as found:
    found.bind(("127.0.0.1", 0))
    port = found.getsockname()[1]
  return [
    subprocess.Popen(
      [
        *COMMAND,
        *flags,
        *each[i],
        f"--coordinator_address=127.0.0.1:{port}",
        "--num_processes=2",
        f"--process_id={i}",
      ],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      cwd=ROOT,
      env=os.environ | environment,
    )
    for i in range(2)
  ]


def end(pair):
  """Exit codes and what was written, of both."""
  try:
    said = [child.communicate(timeout=60) for child in pair]
  finally:
    for child in pair:
      child.kill()
  return [child.returncode for child in pair], *zip(*said, strict=True)


def alone(*flags):
  return subprocess.run(
    [*COMMAND, *flags], capture_output=True, cwd=ROOT, check=True, text=True
  ).stderr


def wait_for_rows(path, count, pair):
  while not path.exists() or path.read_bytes().count(b"\n") < count:
    assert pair[0].poll() is None, pair[0].stderr.read()
    time.sleep(0.005)


def test_process_0_writes_what_one_alone_would_and_alone_speaks(job):
  flags, out = job
  codes, stdout, stderr = end(start(*flags))
  assert codes == [0, 0], stderr
  together = out.read_bytes()
  alone(*flags, "--overwrite")
  assert together == out.read_bytes()
  assert f"60 of 60 rows written to {out}" in stderr[0]
  assert (stdout, stderr[1]) == (("", ""), "")


@pytest.mark.parametrize(
  "how, code, words",
  [
    (signal.SIGTERM, 143, "terminated"),
    pytest.param(signal.SIGINT, 130, "interrupted", marks=pytest.mark.long),
  ],
)
def test_a_signal_to_either_ends_both_after_the_same_step(
  job, how, code, words
):
  flags, out = job
  pair = start(*flags, FAKE_STEP_S="0.05")
  wait_for_rows(out, 3, pair)
  pair[1].send_signal(how)
  codes, _, stderr = end(pair)
  assert codes == [code, code], stderr
  assert f"process 1 was asked to stop ({how.name})" in stderr[0]
  assert f"rows written to {out}, {words}; --resume goes on" in stderr[0]
  assert "ending after this step" in stderr[1]
  done = out.read_bytes()
  assert 3 <= done.count(b"\n") < 60
  assert "rows done" in alone(*flags, "--resume")
  assert out.read_bytes().startswith(done)
  assert out.read_bytes().count(b"\n") == 60


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_one_takes_the_other_with_it_and_resume_goes_on(job, victim):
  flags, out = job
  pair = start(*flags, FAKE_STEP_S="0.05", FAKE_SILENCE_S="4")
  wait_for_rows(out, 3, pair)
  pair[victim].kill()
  begin = time.monotonic()
  codes, _, stderr = end(pair)
  other = 1 - victim
  assert time.monotonic() - begin < 30
  assert codes[other] == 1, stderr[other]
  last = stderr[other].splitlines()[-1]
  assert last == (
    f"specjax-generate: process {victim} of 2 has gone (killed, or its machine"
    f" is), so process {other} ends; --resume goes on"
  )
  assert out.read_bytes().count(b"\n") < 60
  alone(*flags, "--resume")
  assert out.read_bytes().count(b"\n") == 60


def test_a_full_disk_ends_both(job):
  flags, _ = job
  codes, _, stderr = end(start(flags[0], "--output=/dev/full"))
  assert codes == [1, 1]
  assert "error: output /dev/full: no space left on device" in stderr[0]
  assert "process 0 of 2 has ended: output /dev/full: no space" in stderr[1]


@pytest.mark.long
def test_a_signal_while_compiling_ends_both(job):
  flags, out = job
  pair = start(*flags, FAKE_COMPILE="deaf")
  for line in pair[0].stderr:
    if "compiling" in line:
      break
  time.sleep(0.3)
  pair[1].send_signal(signal.SIGTERM)
  codes, _, stderr = end(pair)
  assert codes == [143, 143]
  assert "specjax-generate: process 1 of 2 was terminated" in stderr[0]
  assert stderr[1] == "\nspecjax-generate: terminated\n"


def test_only_many_processes_have_a_mesh_unasked(monkeypatch):
  assert processes.mesh(None) is None
  assert processes.mesh("data:2") == "data:2"
  monkeypatch.setitem(hosts._STATE, "group", hosts.Group(count=2))
  monkeypatch.setattr(jax, "device_count", lambda: 8)
  assert processes.mesh(None) == "model:8"
  assert processes.mesh("data:8") == "data:8"


def test_processes_started_differently_refuse_to_begin(job):
  flags, out = job
  each = ["--max_new_tokens=8"], ["--max_new_tokens=9"]
  codes, _, stderr = end(start(*flags, each=each))
  assert codes == [1, 1]
  words = (
    "process 1 has --max_new_tokens=9, but process 0 has 8; start all with the"
    " same settings and prompts"
  )
  assert words in stderr[0] and words in stderr[1]
  assert not out.exists()


@pytest.mark.long
def test_prompts_that_only_one_can_read_are_refused():
  codes, _, stderr = end(start("--prompts=/dev/stdin"))
  assert codes == [1, 1]
  assert "--prompts=/dev/stdin is no file, and every process must" in stderr[0]


@pytest.mark.long
def test_a_reader_that_goes_ends_both(job):
  flags, _ = job
  pair = start(flags[0], FAKE_STEP_S="0.05")
  pair[0].stdout.readline()
  pair[0].stdout.close()
  pair[0].wait(timeout=60)
  pair[1].wait(timeout=60)
  assert [child.returncode for child in pair] == [141, 141]
  for child in pair:
    child.communicate()
