"""Seconds from the start of specjax-generate to its first token."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from specjax.benchmark import plan as plan_lib
from specjax.benchmark import record, sweep


def measure(
  plan: plan_lib.Plan,
  *,
  write: Callable[[dict[str, Any]], None],
  say: Callable[[str], None],
) -> dict[str, Any]:
  """Starts specjax-generate once cold, and `rounds` times warm.

  Each start is a process of its own: the first finds an empty folder of
  compiled programs (cold), the others what it left there (warm).

  Args:
    plan: what is asked for.
    write: is given the record after each start.
    say: is given a line after each start.

  Raises:
    RuntimeError: specjax-generate fails.
  """
  points: list[dict[str, Any]] = []
  result = sweep.record(plan, "startup", points, "seconds to the first token")
  with tempfile.TemporaryDirectory() as folder:
    for number in range(plan.rounds + 1):
      state = "warm" if number else "cold"
      seconds = _start(plan, folder)
      say(f"{state}: {seconds:.2f} s")
      points.append({"start": state, "seconds": seconds})
      result["warm"] = record.spread(
        [point["seconds"] for point in points if point["start"] == "warm"]
      )
      write(result)
  return result | {"complete": True}


def _start(plan: plan_lib.Plan, folder: str) -> float:
  """Seconds from starting a process to its first output."""
  command = [
    sys.executable,
    "-c",
    "from specjax.cli import generate; generate.cli()",
    f"--model={plan.model}",
    f"--dtype={plan.dtype}",
    f"--compilation_cache={folder}",
    "--prompt=The capital of France is",
    "--max_new_tokens=8",
    "--stream",
  ]
  if plan.capacity is not None:
    command.append(f"--capacity={plan.capacity}")
  start = time.perf_counter()
  with (
    tempfile.TemporaryFile() as said,
    subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said) as child,
  ):
    first = child.stdout.read(1)
    seconds = time.perf_counter() - start
    child.stdout.read()
    code = child.wait()
    if code or not first:
      said.seek(0)
      lines = said.read().decode("utf-8", "replace").strip().splitlines()
      why = lines[-1] if lines else f"exit code {code}"
      raise RuntimeError(f"specjax-generate did not answer: {why}")
  return seconds
