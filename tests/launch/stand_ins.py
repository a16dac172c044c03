"""A gcloud, a kubectl and the workers of a slice, for the launchers' tests.

gcloud remembers its arguments and behaves: a slice that was created is there,
`scp` copies into the workers' home folders and `ssh` runs its command there as
a login shell would, with nothing on PATH but coreutils and what a test puts.
"""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
WORKERS = 2
TOOLS = """
  bash basename cat chmod cp date git grep gzip hostname ln mkdir mv nohup rm
  sed setsid sleep sort tail tar
""".split()

_GCLOUD = f"""#!{sys.executable} -SE
import json, os, pathlib, shutil, subprocess, sys
home = pathlib.Path({{home!r}})
arguments = sys.argv[1:]
with (home / "calls.jsonl").open("a") as log:
  log.write(json.dumps(arguments) + "\\n")
kind, verb, *rest = arguments[2:]
options = [a[2:] for a in rest if a.startswith("--")]
flags = dict(a.split("=", 1) for a in options if "=" in a)
words = [a for a in rest if not a.startswith("--")]
state = home / kind
at = flags.get("worker", "all")
workers = range({WORKERS}) if at == "all" else [int(at)]
workers = [home / f"worker-{{{{i}}}}" for i in workers]
if verb == "describe":
  if not state.exists():
    sys.exit("ERROR: (gcloud) NOT_FOUND: Resource was not found")
  now, *later = state.read_text().splitlines()
  if now == "DENIED":
    sys.exit("ERROR: (gcloud) PERMISSION_DENIED: ask somebody")
  print(now)
  if later:
    state.write_text("\\n".join(later))
elif verb in ("create", "start"):
  state.write_text({{created!r}}[kind])
elif verb == "delete":
  state.unlink()
elif verb == "scp":
  *files, target = words
  for worker in workers:
    for file in files:
      shutil.copy(file, worker / target.split(":")[1])
elif verb == "ssh":
  env = dict(PATH=str(home / "bin-of-workers"), HOME="", LC_ALL="C")
  codes = [
    subprocess.run(
      ["bash", "-c", flags["command"]],
      cwd=worker,
      env=env | dict(HOME=str(worker)),
    ).returncode
    for worker in workers
  ]
  sys.exit(max(codes))
"""
_KUBECTL = f"""#!{sys.executable} -SE
import json, pathlib, sys
home = pathlib.Path({{home!r}})
given = sys.stdin.read() if "-" in sys.argv else ""
with (home / "calls.jsonl").open("a") as log:
  log.write(json.dumps([*sys.argv[1:], given]) + "\\n")
"""
# Remembers how it was called; with --wait it goes on for a minute.
_GENERATE = f"""#!{sys.executable} -SE
import json, os, pathlib, sys, time
if "--help" not in sys.argv:
  told = dict(flags=sys.argv[1:], cwd=os.getcwd(), token=os.getenv("HF_TOKEN"))
  with open(os.environ["HOME"] + "/ran.jsonl", "a") as log:
    log.write(json.dumps(told) + "\\n")
  print("it runs", flush=True)
  time.sleep(60 if "--wait" in sys.argv else 0)
"""
# A Python that remembers what it was asked. `-c` asks whether it is new enough;
# an environment that it makes has another of its kind, which installs.
_PYTHON = """#!/bin/bash
echo "$(basename "$0") $*" >>"$HOME/python.log"
case "$1 $2" in
  "-c "*) [[ $0 != */{old} ]] ;;
  "-m venv" | "-m uv")
    mkdir -p "${{@: -1}}/bin"
    cp "{home}/python-of-venvs" "${{@: -1}}/bin/python"
    ;;
  "-m pip")
    [[ $0 != */venv/bin/* ]] ||
      cp "{home}/generate" "${{0%/*}}/specjax-generate"
    ;;
esac
"""


class Slice:
  """A slice of two workers that exists as folders of `home`."""

  def __init__(self, home: pathlib.Path):
    self.home = home
    self.workers = [home / f"worker-{i}" for i in range(WORKERS)]
    for folder in (*self.workers, home / "bin", self._tools):
      folder.mkdir(parents=True)
    created = {"tpu-vm": "READY", "queued-resources": "ACTIVE"}
    here = str(home)
    self._script("bin/gcloud", _GCLOUD.format(home=here, created=created))
    self._script("bin/kubectl", _KUBECTL.format(home=here))
    self._script("generate", _GENERATE)
    self._script("python-of-venvs", _PYTHON.format(home=here, old="none"))
    for tool in TOOLS:
      (self._tools / tool).symlink_to(shutil.which(tool))
    self.add_python("python3", old=True)

  @property
  def _tools(self):
    return self.home / "bin-of-workers"

  def _script(self, name, text):
    path = self.home / name
    path.write_text(text)
    path.chmod(0o755)

  def add_python(self, name, *, old=False):
    text = _PYTHON.format(home=self.home, old=name if old else "none")
    self._script(f"bin-of-workers/{name}", text)

  def put_state(self, *states, kind="tpu-vm"):
    (self.home / kind).write_text("\n".join(states))

  def calls(self):
    """What gcloud and kubectl were called with since the last look."""
    path = self.home / "calls.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [json.loads(line) for line in lines]

  def verbs(self):
    return [call[3] for call in self.calls()]

  def ran(self, worker=0):
    """How specjax-generate was called on a worker."""
    path = self.workers[worker] / "ran.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]

  def asked_of_python(self, worker=0):
    return (self.workers[worker] / "python.log").read_text()

  def run(self, script, *words, launch=ROOT / "launch", **env):
    """Runs a launcher; gives the finished process."""
    path = f"{self.home}/bin:{os.environ['PATH']}"
    clean = {k: v for k, v in os.environ.items() if k != "HF_TOKEN"}
    return subprocess.run(
      [str(launch / script), *words],
      capture_output=True,
      text=True,
      env=clean | {"PATH": path} | env,
      timeout=60,
    )


def mode(path):
  return stat.S_IMODE(path.stat().st_mode)
