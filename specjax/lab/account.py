"""What a compiled program moves, computes and says, loops counted.

From the entry down: a loop's body counts as often as it runs, a condition as
its dearest branch (or each as often as it is said to), and each buffer keeps
the name of the part it belongs to on its way through loops, copies and updates.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence

from specjax.lab import products, traffic
from specjax.lab.kernels import Kernels
from specjax.lab.program import Array, Computation, Instruction, Program, leaves

OTHER = "other"
# Scopes of the step in which tokens are drawn, checked and counted.
SAMPLING = frozenset({"sampling", "commit"})
COLLECTIVES = (
  "all-reduce", "all-gather", "reduce-scatter", "all-to-all",
  "collective-permute", "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip
# Data moves through them, or stays where it is.
_MOVES = frozenset({
  "bitcast", "copy", "reshape", "transpose", "convert", "dynamic-slice",
  "slice", "pad", "dynamic-update-slice", "copy-start", "copy-done",
  "slice-start", "slice-done", "all-gather", "all-gather-start",
  "all-gather-done", "optimization-barrier", "opt-barrier", "scatter",
})  # fmt: skip

# The scopes around a loop, outermost first -> how often it runs, or None.
Trips = Callable[[tuple[str, ...]], float | None]
# The scopes around a condition -> how often each branch runs, of 1, or None.
Shares = Callable[[tuple[str, ...]], Sequence[float] | None]


@dataclasses.dataclass(kw_only=True)
class Account:
  """Of one chip and one run of the program.

  Attributes:
    traffic: bytes between HBM and the chip, by part.
    flops: of products.
    cycles: the compiler's own estimate. It covers neither collectives nor
      kernels: good for regressions on one kind of chip, never a latency.
    collectives: (kind, whether sampling's) -> (count, bytes); the bytes are
      what one chip gives or gets, whichever is more.
  """

  traffic: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )
  flops: float = 0.0
  cycles: float = 0.0
  collectives: dict[tuple[str, bool], tuple[float, float]] = dataclasses.field(
    default_factory=dict
  )

  @property
  def traffic_bytes(self) -> float:
    """All parts together."""
    return sum(self.traffic.values())

  def talk(self, kind: str, sampling: bool, count: float, size: float) -> None:
    """Adds collectives."""
    old = self.collectives.get((kind, sampling), (0.0, 0.0))
    self.collectives[kind, sampling] = (old[0] + count, old[1] + size)

  def add(self, other: "Account", times: float = 1.0) -> None:
    """Adds another account, several times."""
    for part, size in other.traffic.items():
      self.traffic[part] += times * size
    self.flops += times * other.flops
    self.cycles += times * other.cycles
    for (kind, sampling), (count, size) in other.collectives.items():
      self.talk(kind, sampling, times * count, times * size)

  def cost(self) -> tuple[float, float, float]:
    """What makes one branch dearer than another."""
    said = sum(size for _, size in self.collectives.values())
    return (self.traffic_bytes + said, self.flops, len(self.collectives))


@dataclasses.dataclass(frozen=True)
class _Value:
  """Of a buffer: whose it is, and the number in it where that is known."""

  part: str = OTHER
  number: int | None = None


def account(
  program: Program,
  *,
  parts: Callable[[str], str],
  trips: Trips,
  shares: Shares = lambda scopes: None,
  kernels: Kernels = lambda scopes, operands: None,
) -> Account:
  """The account of a program.

  Args:
    program: optimised, of one chip.
    parts: the name of an argument, as jit gives it ("params.target[0]"), ->
      the part it belongs to.
    trips: how often loops run whose condition does not say; see `Trips`.
    shares: how often branches of conditions run; see `Shares`. The dearest one
      always does, where it says None.
    kernels: what kernels take of their operands; see `Kernels`.

  Raises:
    ValueError: nobody says how often a loop runs; names it.
  """
  entry = program.entry
  args = [
    _fill(entry.instructions[name].shape, parts(entry.instructions[name].scope))
    for name in entry.parameters
  ]
  total, _ = _Walk(program, trips, shares, kernels).run(entry, args, "")
  return total


class _Walk:
  """Runs computations over values instead of numbers."""

  def __init__(self, program, trips: Trips, shares: Shares, kernels: Kernels):
    self.program, self.trips, self.shares = program, trips, shares
    self.kernels = kernels

  def run(
    self, computation: Computation, args: Sequence, scope: str
  ) -> tuple[Account, object]:
    """The account of a computation, and the value of its root."""
    total, env = Account(), {}
    for instruction in computation:
      if instruction.opcode == "parameter":
        env[instruction.name] = args[int(instruction.inner)]
        continue
      around = instruction.scope or self._near(computation, instruction, scope)
      env[instruction.name] = self._value(
        computation, instruction, env, around, total
      )
      self._count(computation, instruction, env, around, total)
    return total, env[computation.root.name]

  def _near(self, computation, instruction, scope):
    """The scope of one beside it, where the compiler has lost its own."""
    beside = [user for user, _ in computation.users[instruction.name]]
    beside += [computation.instructions[name] for name in instruction.operands]
    scopes = (one.scope for one in beside if one.scope.startswith("jit("))
    return next(scopes, scope)

  def _count(self, computation, instruction, env, scope, total):
    """Adds what the instruction itself moves, computes and says."""
    program = self.program
    total.cycles += instruction.cycles
    taken = self._taken(computation, instruction, scope)
    total.flops += taken.flops if taken else 0.0
    for index, size in traffic.reads(program, computation, instruction):
      size *= taken.shares[index] if taken else 1.0
      total.traffic[_part(env[instruction.operands[index]])] += size
    written = traffic.writes(program, computation, instruction)
    if written:
      total.traffic[_part(env[instruction.name])] += written
    for inner, one in _within(program, computation, instruction):
      total.flops += products.flops(inner, one)
      kind = one.opcode.removesuffix("-start")
      if kind in COLLECTIVES:
        given = sum(
          leaf.logical_bytes
          for index in range(len(one.operands))
          for leaf in leaves(inner.operand(one, index).shape)
        )
        made = sum(out.logical_bytes for out in traffic.results(one))
        sampling = bool(SAMPLING & {*(one.scope or scope).split("/")})
        total.talk(kind, sampling, 1.0, max(given, made))

  def _taken(self, computation, instruction, scope):
    """What it takes of its operands, if it is a kernel that is known."""
    if not traffic.is_kernel(instruction):
      return None
    indices = range(len(instruction.operands))
    shapes = [computation.operand(instruction, at).shape for at in indices]
    return self.kernels(tuple(scope.split("/")), shapes)

  def _value(self, computation, instruction, env, scope, total):
    """What it makes; walks the computations of loops and conditions."""
    opcode, shape = instruction.opcode, instruction.shape
    values = [env[name] for name in instruction.operands]
    if opcode == "while":
      return self._loop(instruction, values[0], scope, total)
    if opcode == "conditional":
      branches = [
        self.run(self.program.computations[name], [value], scope)
        for name, value in zip(instruction.called, values[1:], strict=True)
      ]
      dearest, value = max(branches, key=lambda branch: branch[0].cost())
      shares = self.shares(tuple(scope.split("/")))
      if shares is None:
        total.add(dearest)
      else:
        for (inside, _), share in zip(branches, shares, strict=True):
          total.add(inside, share)
      return value
    if opcode in ("call", "async-start"):
      called = self.program.computations[instruction.called[0]]
      inside, value = self.run(called, values, scope)
      total.add(inside)
      return value
    if opcode == "tuple":
      return tuple(values)
    if opcode == "get-tuple-element":
      index = int(instruction.attribute("index"))
      return values[0][index] if isinstance(values[0], tuple) else values[0]
    if opcode.endswith(("-done", "-update")):
      return values[0]
    if opcode == "fusion":
      called = self.program.computations[instruction.called[0]]
      return self._fused(called, values, shape)
    if opcode == "constant":
      return _Value(number=_integer(instruction))
    if opcode in _MOVES:
      return _Value(_part(values[0]), _number(values[0]))
    return _fill(shape, OTHER)

  def _fused(self, called, values, shape):
    """What a fusion makes: its operands' part where data only moves."""

    def part(made):
      if made.opcode == "parameter":
        return _part(values[int(made.inner)])
      if made.opcode == "fusion":
        inner = self.program.computations[made.called[0]]
        found = [part(called.instructions[name]) for name in made.operands]
        value = self._fused(inner, [_Value(one) for one in found], made.shape)
        return _part(value)
      if made.opcode in _MOVES:
        return part(called.operand(made, 0))
      return OTHER

    if isinstance(shape, Array):
      return _Value(part(called.root))
    return tuple(
      _Value(part(traffic.part_of(called, called.root, index)))
      for index in range(len(shape))
    )

  def _loop(self, instruction, init, scope, total):
    """Walks a loop's body once and counts it as often as it runs."""
    called = {
      name: self.program.computations[instruction.attribute(name).lstrip("%")]
      for name in ("condition", "body")
    }
    body = called["body"]
    times = instruction.attribute("known_trip_count")
    if times is None:
      times = self._written(called["condition"], body, init)
    if times is None:
      # Loops may carry a scope of their own, in the metadata alone.
      times = self.trips(tuple(scope.removesuffix("/while").split("/")))
    if times is None:
      raise ValueError(
        f"nobody says how often the loop {scope or instruction.name!r} runs;"
        " put it into a named scope that the lab knows"
      )
    inside, _ = self.run(body, [_carried(body, init)], scope)
    total.add(inside, float(times))
    return _carried(body, init)

  def _written(self, condition, body, init):
    """How often a loop runs, where its text says so: i < constant, i += 1."""
    if not isinstance(init, tuple):
      return None
    env = self._values(condition, [init])
    computation, root = condition, condition.root
    if root.opcode == "fusion":
      computation = self.program.computations[root.called[0]]
      env = self._values(computation, [env[name] for name in root.operands])
      root = computation.root
    if root.opcode != "compare" or "direction=LT" not in root.text:
      return None
    index = _carried_index(computation, root, condition)
    start, end = (_number(env[name]) for name in root.operands)
    if start is None or end is None or index is None:
      return None
    if _number(_carried(body, init)[index]) is not None:
      return None  # It does not move.
    return max(end - start, 0) if _counts_by_one(body, index) else None

  def _values(self, computation, args):
    """Every value of a computation, without what it costs."""
    env = {}
    for one in computation:
      if one.opcode == "parameter":
        env[one.name] = args[int(one.inner)]
      else:
        env[one.name] = self._value(computation, one, env, "", Account())
    return env


def _carried_index(computation, root, condition) -> int | None:
  """Which element of the loop's tuple the condition compares."""
  one = computation.operand(root, 0)
  if one.opcode == "parameter" and computation is not condition:
    # Of a fused comparison: look at what it is given.
    given = condition.root.operands[int(one.inner)]
    one = condition.instructions[given]
  if one.opcode != "get-tuple-element":
    return None
  return int(one.attribute("index"))


def _counts_by_one(body: Computation, index: int) -> bool:
  """Whether an element of a body's tuple is what it was, and one."""
  if body.root.opcode != "tuple":
    return False
  made = body.operand(body.root, index)
  while made.opcode in ("copy", "bitcast"):
    made = body.operand(made, 0)
  if made.opcode == "fusion":
    return True  # Nothing but a counter is scalar and compared with a constant.
  if made.opcode != "add":
    return False
  numbers = [body.instructions[name] for name in made.operands]
  return any(_integer(one) == 1 for one in numbers) or any(
    one.opcode == "get-tuple-element" and one.attribute("index") != str(index)
    for one in numbers
  )


def _carried(body: Computation, init):
  """What a loop's body starts from: numbers only where they stay."""
  if not isinstance(init, tuple):
    return _Value(_part(init))
  if body.root.opcode != "tuple":
    return tuple(_forget(value) for value in init)
  values = []
  for index, value in enumerate(init):
    made = body.operand(body.root, index)
    stays = (
      made.opcode == "get-tuple-element"
      and made.attribute("index") == str(index)
      and body.operand(made, 0).opcode == "parameter"
    )
    values.append(value if stays else _forget(value))
  return tuple(values)


def _forget(value):
  if isinstance(value, tuple):
    return tuple(_forget(one) for one in value)
  return _Value(value.part)


def _within(program, computation: Computation, instruction: Instruction):
  """An instruction, or all in a fusion: (computation, instruction)."""
  if instruction.opcode != "fusion":
    yield computation, instruction
    return
  called = program.computations[instruction.called[0]]
  for one in called:
    yield from _within(program, called, one)


def _integer(instruction: Instruction) -> int | None:
  text = instruction.inner.strip("{} ")
  if instruction.opcode != "constant" or not text.lstrip("-").isdigit():
    return None
  return int(text)


def _fill(shape, part):
  if isinstance(shape, Array):
    return _Value(part)
  return tuple(_fill(one, part) for one in shape)


def _part(value) -> str:
  """Whose a value is; of a tuple, the first that is anybody's."""
  if isinstance(value, _Value):
    return value.part
  named = [part for one in value if (part := _part(one)) != OTHER]
  return named[0] if named else OTHER


def _number(value) -> int | None:
  return value.number if isinstance(value, _Value) else None
