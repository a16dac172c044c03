"""Sharded loads and saves, on eight simulated devices in one process."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
CHECKS = [
  name
  for file in ("sharded_loads.py", "sharded_orbax.py")
  for name in re.findall(r"^def (check_\w+)", (HERE / file).read_text(), re.M)
]
PROGRAM = """
import pathlib, sys
from tests.checkpoints import eight_devices, sharded_loads, sharded_orbax
eight_devices.main(pathlib.Path(sys.argv[1]), (sharded_loads, sharded_orbax))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM, str(tmp_path_factory.mktemp("eight"))],
    cwd=HERE.parents[1],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("check", CHECKS)
def test_on_eight_devices(results, check):
  assert results[check] is None, results[check]
