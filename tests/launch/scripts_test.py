"""What holds for every script that starts something."""

import re
import subprocess
import sys

import pytest

from tests.launch import stand_ins

LAUNCH = sorted((stand_ins.ROOT / "launch").glob("*.sh"))
PROGRAMS = [
  path for path in LAUNCH if path.name not in ("common.sh", "worker.sh")
]
HOSTS = re.compile(
  r"(hugging|pypi|pkg\.dev|docker\.|gcr\.|ghcr\.|quay\.|github)", re.I
)


def test_shellcheck_finds_nothing():
  scripts = [*LAUNCH, stand_ins.ROOT / ".ci/run"]
  shellcheck = f"{sys.prefix}/bin/shellcheck"
  done = subprocess.run(
    [shellcheck, "-x", *map(str, scripts)],
    capture_output=True,
    text=True,
    cwd=stand_ins.ROOT,
  )
  assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_help_is_the_header(path):
  done = subprocess.run([path, "--help"], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert f" launch/{path.name} " in done.stdout
  assert not done.stdout.startswith("#") and "set -" not in done.stdout


@pytest.mark.parametrize("path", LAUNCH, ids=lambda path: path.name)
def test_a_script_stops_at_the_first_error(path):
  text = path.read_text()
  if path.name != "common.sh":  # The others source it.
    assert "\nset -euo pipefail\n" in text


def test_no_registry_or_hub_is_named():
  for path in (stand_ins.ROOT / "launch").iterdir():
    assert not HOSTS.search(path.read_text()), path.name
