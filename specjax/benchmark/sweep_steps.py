"""A plain step's time against the live length, and against the capacity.

The step is the engine's own program, sampling and the host's reading included,
on a state whose lengths are set: nothing has to be decoded to get there.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import tqdm

from specjax import api
from specjax.benchmark import plan as plan_lib
from specjax.benchmark import probe, record, runs, sweep
from specjax.engine.request import Request

CAPACITY = 4096
# At a capacity of 4096; at others in proportion.
LIVE = (100, 250, 500, 1000, 1500, 2000, 3000, 4000)
_FEW = 200
_TIMES_SMALLER = 8
_STEPS = 12  # of each kind in a round

Write = Callable[[dict[str, Any]], None]
Say = Callable[[str], None]


def live(plan: plan_lib.Plan, *, write: Write, say: Say) -> dict[str, Any]:
  """Milliseconds of a plain step against the tokens in the cache, in turns.

  Args:
    plan: what is asked for; its capacity is 4096 unless given.
    write: is given the record after each round.
    say: is given a line on what is going on.

  Raises:
    As `measure.measure`.
  """
  capacity = plan.capacity or CAPACITY
  lengths = sorted({max(size * capacity // CAPACITY, 1) for size in LIVE})
  target, _ = runs.load(plan.model, dtype=plan.dtype)
  made = _probe(target, capacity, lengths[0], say)
  times: dict[int, list[float]] = {size: [] for size in lengths}
  points: list[dict[str, Any]] = []
  what = "milliseconds of a plain step"
  result = sweep.record(plan, "live", points, what)
  result["capacity"] = capacity
  for _ in tqdm.tqdm(range(plan.rounds), unit="round"):
    for size in lengths:
      times[size] += _steps(made, size)
    points[:] = [
      {"live": size, "milliseconds": record.spread(seen)}
      for size, seen in times.items()
    ]
    write(result)
  return result | {"complete": True}


def capacity(plan: plan_lib.Plan, *, write: Write, say: Say) -> dict[str, Any]:
  """A plain step with the same few live tokens at two capacities, in turns.

  Args, raises: as `live`. The smaller capacity is an eighth of the larger.
  """
  large = plan.capacity or CAPACITY
  few = max(_FEW * large // CAPACITY, 1)
  sizes = (max(large // _TIMES_SMALLER, 2), large)
  target, _ = runs.load(plan.model, dtype=plan.dtype)
  probes = {size: _probe(target, size, few, say) for size in sizes}
  times: dict[int, list[float]] = {size: [] for size in sizes}
  points: list[dict[str, Any]] = []
  what = f"milliseconds of a plain step with {few} tokens in the cache"
  result = sweep.record(plan, "capacity", points, what)
  result |= {"capacity": large, "live": few}
  ratios = []
  for number in tqdm.tqdm(range(plan.rounds), unit="round"):
    order = sizes if number % 2 else sizes[::-1]
    seen = {size: _steps(probes[size], few) for size in order}
    for size in sizes:
      times[size] += seen[size]
    small_ms, large_ms = (statistics.median(seen[size]) for size in sizes)
    ratios.append(large_ms / small_ms)
    points[:] = [
      {"capacity": size, "milliseconds": record.spread(all_seen)}
      for size, all_seen in times.items()
    ]
    result["ratio"] = record.spread(ratios)
    write(result)
  return result | {"complete": True}


def _probe(
  target: api.Pretrained, size: int, live_tokens: int, say: Say
) -> probe.Probe:
  say(f"compiling capacity {size} …")
  run = runs.make(target, runs.PLAIN, capacity=size)
  request = Request(prompt=(0, 0), max_new_tokens=8)
  made = probe.Probe(run.engine, request, live=live_tokens)
  made.plain_step()
  return made


def _steps(made: probe.Probe, live_tokens: int) -> list[float]:
  """Milliseconds of some plain steps at a live length."""
  seen = []
  for _ in range(_STEPS):
    made.prime(live_tokens)
    start = time.perf_counter()
    made.plain_step()
    seen.append(1e3 * (time.perf_counter() - start))
  return seen
