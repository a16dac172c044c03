"""The command as a process: signals, kills, and streams that go away."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "tests.fake_command", "--model=.")


def start(*flags, stdout=subprocess.PIPE, **environment):
  return subprocess.Popen(
    [*COMMAND, *flags],
    stdout=stdout,
    stderr=subprocess.PIPE,
    text=True,
    cwd=ROOT,
    env=os.environ | environment,
  )


def shell(line, **environment):
  """Runs a line of shell; the command is $RUN."""
  return subprocess.run(
    ["bash", "-c", line],
    capture_output=True,
    cwd=ROOT,
    env=os.environ | {"RUN": " ".join(COMMAND)} | environment,
    timeout=60,
  )


@pytest.fixture
def job(tmp_path):
  """Flags of a job of 60 rows; where its answers go."""
  rows = [json.dumps({"prompt": f"{i} " * 5}) for i in range(60)]
  (tmp_path / "in.jsonl").write_text("\n".join(rows))
  out = tmp_path / "out.jsonl"
  return (f"--prompts={tmp_path}/in.jsonl", f"--output={out}"), out


def read_until(stream, words):
  read = ""
  while words not in read:
    line = stream.readline()
    assert line, read
    read += line
  return read


def wait_for_rows(path, count):
  while not path.exists() or path.read_bytes().count(b"\n") < count:
    time.sleep(0.002)


@pytest.mark.parametrize(
  "how, code, words",
  [
    (signal.SIGINT, 130, "interrupted"),
    (signal.SIGTERM, 143, "terminated"),
  ],
)
def test_a_signal_ends_a_job_that_resume_takes_up(job, how, code, words):
  flags, out = job
  with start(*flags, FAKE_STEP_S="0.01") as child:
    wait_for_rows(out, 3)
    child.send_signal(how)
    _, err = child.communicate(timeout=60)
  assert child.returncode == code
  assert "ending after this step" in err
  assert f" of 60 rows written to {out}, {words}; --resume goes on" in err
  done = out.read_bytes()
  assert done.endswith(b"\n")
  assert 3 <= done.count(b"\n") < 60
  with start(*flags, "--resume") as child:
    _, err = child.communicate(timeout=60)
  assert child.returncode == 0
  count = done.count(b"\n")
  assert f"resuming: {count} of 60 rows done" in err
  assert out.read_bytes().startswith(done)
  assert out.read_bytes().count(b"\n") == 60


@pytest.mark.parametrize("compiles", ["nap", "deaf", "thread"])
@pytest.mark.parametrize(
  "how, code, words",
  [
    (signal.SIGINT, 130, "interrupted"),
    (signal.SIGTERM, 143, "terminated"),
  ],
)
def test_a_signal_while_compiling_ends_soon(job, compiles, how, code, words):
  flags, out = job
  with start(*flags, FAKE_COMPILE=compiles) as child:
    read_until(child.stderr, "compiling")
    time.sleep(0.2)
    child.send_signal(how)
    begin = time.monotonic()
    _, err = child.communicate(timeout=60)
  assert time.monotonic() - begin < 10  # 2 s and what a busy machine adds.
  assert child.returncode == code
  assert err == f"\nspecjax-generate: {words}\n"
  assert compiles == "deaf" or not out.exists()


def test_killed_at_any_moment_no_row_is_lost_or_repeated(job):
  flags, out = job
  with start(*flags) as child:
    child.communicate(timeout=60)
  whole = out.read_bytes()
  out.unlink()
  dice = random.Random(0)
  for _ in range(3):
    before = out.read_bytes().count(b"\n") if out.exists() else 0
    with start(*flags, "--resume", FAKE_STEP_S="0.003") as child:
      wait_for_rows(out, before + dice.randrange(1, 15))
      time.sleep(dice.random() * 0.01)
      child.kill()
      child.communicate()
  assert out.read_bytes().count(b"\n") < 60
  with start(*flags, "--resume") as child:
    child.communicate(timeout=60)
  assert child.returncode == 0
  assert out.read_bytes() == whole


def test_a_reader_that_goes_ends_it_quietly(tmp_path):
  rows = 3000 * '{"prompt": "abc"}\n'
  (tmp_path / "in.jsonl").write_text(rows)
  done = shell(
    f"$RUN --prompts={tmp_path}/in.jsonl 2>{tmp_path}/err | head -n 1;"
    " echo ${PIPESTATUS[0]}"
  )
  first, code = done.stdout.splitlines()
  assert json.loads(first)["text"] == "cba"
  assert code == b"141"
  assert "Traceback" not in (tmp_path / "err").read_text()
  assert "error" not in (tmp_path / "err").read_text()


@pytest.mark.parametrize(
  "streams",
  ["2>&1 | true", "2>&-", ">&- 2>&-", "0<&- >&- 2>&-", "2>/dev/full"],
)
def test_a_job_that_writes_to_a_file_needs_no_streams(job, streams):
  flags, out = job
  done = shell(
    f"$RUN {' '.join(flags)} {streams}; exit ${{PIPESTATUS[0]}}",
    FAKE_STEP_S="0.001",
  )
  assert done.returncode == 0
  assert done.stdout == done.stderr == b""
  rows = [json.loads(line) for line in out.read_bytes().splitlines()]
  assert [row["id"] for row in rows] == [str(i) for i in range(1, 61)]


def test_rows_for_a_closed_standard_output_are_refused(job):
  flags, _ = job
  done = shell(f"$RUN {flags[0]} >&-")
  assert done.returncode == 1
  assert b"standard output is closed; give --output" in done.stderr


@pytest.mark.parametrize(
  "line, name",
  [
    ("$RUN {prompts} --output=/dev/full", "output /dev/full"),
    ("$RUN {prompts} >/dev/full", "standard output"),
    ("$RUN --prompt=abc >/dev/full", "standard output"),
  ],
)
def test_a_full_disk_is_one_line(job, line, name):
  flags, _ = job
  done = shell(line.format(prompts=flags[0]))
  assert done.returncode == 1
  last = done.stderr.decode().splitlines()[-1]
  assert last.startswith(f"specjax-generate: error: {name}: no space left on")
  assert b"Traceback" not in done.stderr
  assert b"Exception ignored" not in done.stderr


def test_a_disk_that_fills_up_keeps_the_rows_that_fit(job):
  flags, out = job
  done = shell(f"ulimit -f 4; $RUN {' '.join(flags)}")
  assert done.returncode == 1
  assert b"file too large; " in done.stderr
  written = out.read_bytes()
  assert written.endswith(b"\n")
  assert 0 < written.count(b"\n") < 60
  assert shell(f"$RUN {' '.join(flags)} --resume").returncode == 0
  assert out.read_bytes().startswith(written)
  assert out.read_bytes().count(b"\n") == 60


def test_standard_output_of_another_encoding_gets_escapes(tmp_path):
  done = shell("$RUN --prompt='中é'", PYTHONIOENCODING="latin-1", LANG="C")
  assert done.returncode == 0
  assert done.stdout == "é\\u4e2d\n".encode("latin-1")
