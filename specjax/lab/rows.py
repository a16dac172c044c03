"""Rows: what the lab finds out about one case."""

import dataclasses
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import jax

from specjax.lab import account as account_lib
from specjax.lab import lower, program, topology

# How the compiler spells sizes: 26.98G is of 2**30.
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LACKS = (
  re.compile(r"required for [\w ]+ \(([\d.]+)([KMGT]?)\) exceeds available "
             r"HBM \(([\d.]+)([KMGT]?)\)"),
  re.compile(r"[Uu]sed ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"),
)  # fmt: skip
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "CompileTimeHbmOom")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One case: of one chip and one step, and never a measured latency.

  Bytes are physical, with the padding of layouts, unless they are ideal.

  Attributes:
    config: whose pair it is.
    topology, strategy, proposer, batch, lookahead, siblings, context, live: see
      `lower.Case`.
    variant: what was chosen of the proposer: EAGLE's kind, how many heads or
      modules, which layers, how many ids; "" where there is nothing to choose.
    chips: of the slice.
    fits: whether it compiled, and leaves room for what rests. refused: why it
      cannot be split so, or None.
    usable_bytes: what a program may have of the chip's memory.
    needed_bytes: what it lacked when it did not fit; short_bytes: by how much.
    argument_bytes, temp_bytes, donated_bytes: as the compiler counts them;
      donated ones are given back as outputs in place. resting_bytes: of
      weights that lie beside them and no step reads; see `lower.Step`.
    state_bytes: of the step's state; cache_bytes: of its keys and values.
    cache_leaves, cache_leaves_aliased: arrays of keys or values, and how many
      of them are updated in place.
    hbm_traffic_bytes: between memory and chip; traffic: by part.
    ideal_traffic_bytes: weights as often as passes go over them (the target's
      once, a draft's C times), live caches once a pass; ideal: by part.
    held: bytes of arguments by part, without the padding of layouts.
    traffic_ms, flops_ms: what traffic and products take at the chip's
      bandwidth and peak: lower bounds.
    flops: of products.
    collectives: kind -> [count, bytes] without sampling's; sampling: its own.
    cycles: the compiler's estimate, for regressions on one kind of chip only.
    compile_s: how long it compiled.
  """

  config: str
  topology: str
  chips: int
  strategy: str
  proposer: str
  batch: int
  lookahead: int
  siblings: int = 0
  context: int
  live: int
  fits: bool
  usable_bytes: int
  variant: str = ""
  refused: str | None = None
  needed_bytes: int | None = None
  short_bytes: int | None = None
  argument_bytes: int | None = None
  temp_bytes: int | None = None
  donated_bytes: int | None = None
  resting_bytes: int | None = None
  state_bytes: int | None = None
  cache_bytes: int | None = None
  cache_leaves: int | None = None
  cache_leaves_aliased: int | None = None
  hbm_traffic_bytes: int | None = None
  ideal_traffic_bytes: int | None = None
  traffic_ms: float | None = None
  flops: int | None = None
  flops_ms: float | None = None
  traffic: Mapping[str, int] | None = None
  ideal: Mapping[str, int] | None = None
  held: Mapping[str, int] | None = None
  collectives: Mapping[str, tuple[int, int]] | None = None
  sampling: Mapping[str, tuple[int, int]] | None = None
  cycles: int | None = None
  compile_s: float | None = None

  @property
  def who(self) -> str:
    """The proposer and what was chosen of it."""
    return f"{self.proposer} {self.variant}".rstrip()

  @property
  def drafted(self) -> str:
    """How many drafts, and siblings if there are any."""
    beside = f" M {self.siblings}" if self.siblings else ""
    return f"C {self.lookahead}{beside}"

  @property
  def resident_bytes(self) -> int:
    """What lies in memory between steps."""
    return self.argument_bytes + self.resting_bytes

  @property
  def bound_ms(self) -> float:
    """The larger of the two lower bounds of a step."""
    return max(self.traffic_ms, self.flops_ms)

  def as_json(self) -> dict[str, Any]:
    """What a line of --json holds."""
    return dataclasses.asdict(self)


def row(pair: lower.Pair, case: lower.Case, config: str = "") -> Row:
  """Compiles a case and accounts for it; what does not fit is a row too.

  Args:
    pair, case: what to compile.
    config: what the row calls the pair.

  Raises:
    ImportError: the TPU compiler is not installed.
    RuntimeError: the compiler fails otherwise than for want of memory.
  """
  chip = case.topology.chip
  common = dict(
    config=config,
    topology=str(case.topology),
    chips=case.topology.chips,
    strategy=str(case.strategy),
    proposer=case.proposer,
    batch=case.batch,
    lookahead=case.lookahead,
    siblings=case.siblings,
    context=case.context,
    live=case.live,
    usable_bytes=int(chip.usable_bytes),
  )
  try:
    step = lower.step(pair, case)
  except ValueError as error:
    return Row(**common, fits=False, refused=" ".join(str(error).split()))
  common |= dict(held=step.held, variant=step.variant)
  begin = time.perf_counter()
  try:
    with topology.uncached():
      compiled = step.lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if not any(word in str(error) for word in _OUT_OF_MEMORY):
      raise
    needed, available = lacks(str(error))
    return Row(
      **common,
      fits=False,
      needed_bytes=needed,
      short_bytes=needed - available,
      compile_s=time.perf_counter() - begin,
    )
  common |= dict(compile_s=time.perf_counter() - begin)
  memory = compiled.memory_analysis()
  needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
  short = needed + step.resting - int(chip.usable_bytes)
  if step.resting and short > 0:
    return Row(
      **common,
      fits=False,
      needed_bytes=needed + step.resting,
      short_bytes=short,
    )
  return Row(**common, fits=True, **_found(compiled, step, chip))


def lacks(message: str) -> tuple[int, int]:
  """What the compiler needed and what there was, in bytes, from its error.

  Raises:
    RuntimeError: the message says neither; quotes it.
  """
  for pattern in _LACKS:
    if found := pattern.search(message):
      need, unit, have, other = found.groups()
      return (
        int(float(need) * _UNITS[unit]),
        int(float(have) * _UNITS[other]),
      )
  raise RuntimeError(f"the compiler says: {' '.join(message.split())[:300]}")


def _found(compiled, step: lower.Step, chip: topology.Chip) -> dict[str, Any]:
  """What a compiled step says of itself."""
  parsed = program.parse(compiled.as_text())
  total = account_lib.account(
    parsed,
    parts=lower.part,
    trips=step.trips,
    shares=step.shares,
    kernels=step.kernels,
  )
  memory = compiled.memory_analysis()
  state, caches, aliased = 0.0, [], 0
  for number, name in enumerate(parsed.entry.parameters):
    argument = parsed.entry.instructions[name]
    if argument.scope.startswith("state."):
      state += argument.shape.bytes
    if lower.part(argument.scope).endswith("_cache"):
      caches.append(argument.shape.bytes)
      aliased += number in parsed.aliased
  said = {False: {}, True: {}}
  for (kind, sampling), (count, size) in sorted(total.collectives.items()):
    said[sampling][kind] = (round(count), round(size))
  traffic = total.traffic_bytes
  return dict(
    argument_bytes=memory.argument_size_in_bytes,
    temp_bytes=memory.temp_size_in_bytes,
    donated_bytes=memory.alias_size_in_bytes,
    resting_bytes=step.resting,
    state_bytes=round(state),
    cache_bytes=round(math.fsum(caches)),
    cache_leaves=len(caches),
    cache_leaves_aliased=aliased,
    hbm_traffic_bytes=round(traffic),
    ideal_traffic_bytes=round(sum(step.ideal.values())),
    traffic_ms=traffic / chip.bandwidth * 1e3,
    flops=round(total.flops),
    flops_ms=total.flops / chip.flops * 1e3,
    traffic={part: round(total.traffic[part]) for part in lower.PARTS},
    ideal={part: round(step.ideal[part]) for part in lower.PARTS},
    collectives=said[False],
    sampling=said[True],
    cycles=round(total.cycles),
  )


def draft_cost(plain: Row, row: Row) -> float:
  """Leviathan et al.'s c: what a draft takes, of a plain step's time.

  Of the bounds: what a step takes beyond a plain one, by its drafts. What
  siblings take is the drafts' too.

  Args:
    plain: the same case at lookahead 0.
    row: the case.
  """
  return (row.bound_ms / plain.bound_ms - 1) / row.lookahead


def speed_up(plain: Row, row: Row, acceptance: float) -> float:
  """How much faster than plain decoding, were both at their lower bounds.

  Leviathan et al. 2023: (1 - a^(C+1)) / ((1 - a)(C c + 1)), if each draft is
  accepted with probability a whatever came before it; c is `draft_cost`. Of
  siblings, none takes a draft's place: a says nothing of how often they do.

  Args:
    plain, row: see `draft_cost`.
    acceptance: a, in [0, 1].
  """
  c = row.lookahead
  tokens = c + 1 if acceptance == 1 else (
    (1 - acceptance ** (c + 1)) / (1 - acceptance)
  )  # fmt: skip
  return tokens / (c * draft_cost(plain, row) + 1)
