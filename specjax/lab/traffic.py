"""What one instruction moves between HBM and the chip, in bytes.

The rules, each held against a hand count by a test. A slice reads what it
takes, an update in place writes what it puts, a fusion reads of each operand
what its own slices take of it, and what lies in memory on the chip is free.
What a fusion reads twice is counted once.
"""

from specjax.lab.program import (
  Array,
  Computation,
  Instruction,
  Program,
  leaves,
)

# They name or arrange buffers; nothing moves.
FREE = frozenset({
  "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all",
  "partition-id", "replica-id", "opt-barrier", "add-dependency", "domain",
  "copy-done", "slice-done", "async-done", "async-update", "all-gather-done",
  "all-reduce-done", "collective-permute-done", "send-done", "recv-done",
})  # fmt: skip
# Their bodies are walked by the account.
NESTED = frozenset({"while", "conditional", "call", "async-start"})
_FREE_CALLS = (
  "AllocateBuffer", "ConcatBitcast", "Sharding", "AssumeGatherIndicesInBound",
)  # fmt: skip
_SLICES = frozenset({"slice", "dynamic-slice", "gather", "slice-start"})
# Opcode -> which operand is what they put.
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
_RENAMES = frozenset({"bitcast", "reshape", "copy", "convert", "transpose"})


def reads(
  program: Program, computation: Computation, instruction: Instruction
) -> list[tuple[int, float]]:
  """(operand, bytes read of it from HBM) of an instruction."""
  opcode = instruction.opcode
  if opcode in FREE or opcode in NESTED or _is_free_call(instruction):
    return []
  found = []
  for index in range(len(instruction.operands)):
    shape = computation.operand(instruction, index).shape
    if not isinstance(shape, Array) or not shape.in_hbm:
      continue
    if opcode == "fusion":
      called = program.computations[instruction.called[0]]
      taken = _taken(program, called, called.parameters[index], shape)
    else:
      taken = _taken_by(instruction, index, shape)
    if taken:
      found.append((index, taken))
  return found


def writes(
  program: Program, computation: Computation, instruction: Instruction
) -> float:
  """Bytes that an instruction writes to HBM."""
  opcode = instruction.opcode
  if opcode in FREE or opcode in NESTED or _is_free_call(instruction):
    return 0.0
  if opcode == "fusion":
    called = program.computations[instruction.called[0]]
    return sum(
      _put(program, called, part_of(called, called.root, index), out)
      for index, out in enumerate(leaves(instruction.shape))
      if out.in_hbm
    )
  if opcode in _UPDATES:
    out = instruction.shape
    return _put(program, computation, instruction, out) if out.in_hbm else 0.0
  return sum(out.bytes for out in results(instruction) if out.in_hbm)


def results(instruction: Instruction) -> list[Array]:
  """What an instruction makes, without what an asynchronous one carries."""
  outputs = leaves(instruction.shape)
  if instruction.opcode == "copy-start":
    return outputs[:1]  # then the source and a flag
  if instruction.opcode == "slice-start":
    count = len(instruction.operands)
    return outputs[count : count + 1]
  if instruction.opcode in ("all-gather-start", "collective-permute-start"):
    count = len(instruction.operands)
    return outputs[count : 2 * count]
  return outputs


def part_of(
  computation: Computation, root: Instruction, index: int
) -> Instruction:
  """The instruction that makes an output of a computation."""
  if root.opcode == "tuple":
    return computation.operand(root, index)
  return root


def is_kernel(instruction: Instruction) -> bool:
  """Whether it calls a kernel of Pallas."""
  return _target(instruction) == "tpu_custom_call"


def _is_free_call(instruction: Instruction) -> bool:
  return _target(instruction) in _FREE_CALLS


def _target(instruction: Instruction) -> str | None:
  if instruction.opcode != "custom-call":
    return None
  return (instruction.attribute("custom_call_target") or "").strip('"')


def _taken(program, computation, name, source: Array) -> float:
  """Bytes that a fused computation takes of a parameter."""
  total = 0.0
  for user, index in computation.users[name]:
    if user.opcode == "fusion":
      called = program.computations[user.called[0]]
      total += _taken(program, called, called.parameters[index], source)
    elif user.opcode in _RENAMES and user is not computation.root:
      # Rearranged, maybe on its way into a slice.
      total += _taken(program, computation, user.name, source)
    else:
      total += _taken_by(user, index, source)
  return min(total, source.bytes)


def _taken_by(user, index, source: Array) -> float:
  """Bytes that one instruction takes of an operand."""
  if user.opcode in _SLICES and index == 0:
    taken = sum(out.logical_bytes for out in results(user))
    return min(taken * source.padding, source.bytes)
  if user.opcode in _UPDATES and index == 0:
    return 0.0  # In place: the rest stays as it is.
  return source.bytes


def _put(program, computation, made: Instruction, out: Array) -> float:
  """Bytes that a fused computation writes of one of its outputs."""
  while made.opcode in ("bitcast", "reshape"):
    made = computation.operand(made, 0)
  if made.opcode == "fusion":
    called = program.computations[made.called[0]]
    return _put(program, called, called.root, out)
  if made.opcode in _UPDATES:
    update = computation.operand(made, _UPDATES[made.opcode]).shape
    return min(update.logical_bytes * out.padding, out.bytes)
  return out.bytes
