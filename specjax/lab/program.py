"""A compiled program as data: the optimised HLO text, parsed.

Only what the account needs: computations, their instructions in order, what
each reads, and the shape, layout and memory space of what it makes.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

_BITS = {
  "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16,
  "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64, "f16": 16, "bf16": 16,
  "f32": 32, "f64": 64, "c64": 64, "c128": 128, "f4e2m1fn": 4,
}  # fmt: skip
_HBM = 0

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,<=]*)\](?:\{([^{}]*)\})?")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_LINE = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
  r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)"
  r"=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TEXT = re.compile(r'\bop_name="([^"]*)"')
_ALIAS = re.compile(r"\{[0-9, ]*\}: \((\d+), \{[0-9, ]*\}")


@dataclasses.dataclass(frozen=True)
class Array:
  """One buffer: what is in it, how it lies and where.

  Attributes:
    dtype: as HLO writes it.
    dims: its logical sizes.
    order: dimensions from the one that varies fastest, () if not said.
    tile: the sizes that its last dimensions are rounded up to, () for none.
    space: 0 is HBM; all others are on the chip (or, 5, on the host).
  """

  dtype: str
  dims: tuple[int, ...]
  order: tuple[int, ...] = ()
  tile: tuple[int, ...] = ()
  space: int = _HBM

  @property
  def in_hbm(self) -> bool:
    """Whether it lies in the chip's main memory."""
    return self.space == _HBM

  @property
  def logical_bytes(self) -> float:
    """Without what layout adds."""
    return math.prod(self.dims) * self._item

  @property
  def bytes(self) -> float:
    """With the padding of tiles."""
    return self.logical_bytes * self.padding

  @functools.cached_property
  def padding(self) -> float:
    """How many times its logical bytes it takes."""
    if not self.tile or not self.order or 0 in self.dims:
      return 1.0
    ratio = 1.0
    # A tile's last size belongs to the dimension that varies fastest.
    for size, dim in zip(reversed(self.tile), self.order, strict=False):
      ratio *= -(-self.dims[dim] // size) * size / self.dims[dim]
    # A tile may be of more dimensions than the array has.
    for size in self.tile[: max(len(self.tile) - len(self.order), 0)]:
      ratio *= size
    return ratio

  @property
  def _item(self) -> float:
    if self.dtype.startswith("f8"):
      return 1.0
    return _BITS.get(self.dtype, 0) / 8  # tokens and the like have no bytes


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line.

  Attributes:
    name, opcode: as written.
    shape: an Array, or nested tuples of them.
    operands: names, of the same computation.
    called: names of computations, in the order of the text.
    scope: op_name of the metadata, "" where there is none.
    text: all that follows the operands.
    inner: what is between the operands' brackets.
    cycles: what the compiler thinks it takes, 0 where it says nothing.
  """

  name: str
  opcode: str
  shape: "Array | tuple"
  operands: tuple[str, ...]
  called: tuple[str, ...]
  scope: str
  text: str
  inner: str
  cycles: int = 0

  def attribute(self, name: str) -> str | None:
    """The value of an attribute as text, up to the next comma or space."""
    found = re.search(rf"\b{name}=([^,\s]+)", self.text)
    return None if found is None else found.group(1)


@dataclasses.dataclass(frozen=True)
class Computation:
  """Instructions in order, by name; the parameters by their number."""

  name: str
  instructions: Mapping[str, Instruction]
  root: Instruction
  parameters: tuple[str, ...]

  def __iter__(self) -> Iterator[Instruction]:
    return iter(self.instructions.values())

  def operand(self, instruction: Instruction, index: int) -> Instruction:
    """What an instruction reads."""
    return self.instructions[instruction.operands[index]]

  @functools.cached_property
  def users(self) -> Mapping[str, list[tuple[Instruction, int]]]:
    """Who reads each value, and as which operand."""
    found: dict[str, list] = {name: [] for name in self.instructions}
    for instruction in self:
      for index, name in enumerate(instruction.operands):
        found[name].append((instruction, index))
    return found


@dataclasses.dataclass(frozen=True)
class Program:
  """All computations of a module.

  Attributes:
    computations: by name.
    entry: the one that runs.
    aliased: numbers of the entry's parameters whose buffers are given back as
      outputs (donated).
  """

  computations: Mapping[str, Computation]
  entry: Computation
  aliased: frozenset[int]


def leaves(shape: Array | tuple) -> list[Array]:
  """The arrays of a shape, in order."""
  if isinstance(shape, Array):
    return [shape]
  return [leaf for part in shape for leaf in leaves(part)]


def parse(text: str) -> Program:
  """Parses the text of an optimised module.

  Raises:
    ValueError: it has no entry, or a line cannot be read; quotes it.
  """
  computations, entry, lines, name = {}, None, [], None
  header = text.partition("\n")[0]
  for line in text.splitlines():
    if name is None:
      found = _HEADER.match(line)
      if found and "->" in line:
        name, lines = found.group(2), []
        entry = name if found.group(1) else entry
    elif line.startswith("}"):
      computations[name], name = _computation(name, lines), None
    elif line.strip():
      lines.append(line)
  if entry is None:
    raise ValueError("this is no HLO module: it has no ENTRY")
  return Program(
    computations=computations,
    entry=computations[entry],
    aliased=frozenset(map(int, _ALIAS.findall(_braces(header)))),
  )


def _braces(header: str) -> str:
  """The content of input_output_alias={…} in a module's header."""
  start = header.find("input_output_alias={")
  if start < 0:
    return ""
  start = header.index("{", start)
  return header[start + 1 : _closing(header, start)]


def _computation(name: str, lines: Sequence[str]) -> Computation:
  made, root, parameters = {}, None, {}
  for line in lines:
    instruction = _instruction(line)
    made[instruction.name] = instruction
    if line.lstrip().startswith("ROOT "):
      root = instruction
    if instruction.opcode == "parameter":
      parameters[int(instruction.inner)] = instruction.name
  root = root or instruction
  order = tuple(parameters[number] for number in sorted(parameters))
  return Computation(name, made, root, order)


def _instruction(line: str) -> Instruction:
  found = _LINE.match(line)
  if found is None:
    raise ValueError(f"cannot read the HLO line {line.strip()[:200]!r}")
  at = found.end()
  end = _closing(line, at) + 1 if line[at] == "(" else line.index(" ", at)
  shape = line[at:end]
  opened = line.index("(", end)
  closed = _closing(line, opened)
  opcode, inner = line[end:opened].strip(), line[opened + 1 : closed]
  rest = line[closed + 1 :]
  # The backend's own words come last, and quote anything.
  text, _, backend = rest.partition(", backend_config=")
  called = _CALLED.findall(text)
  for group in _BRANCHES.findall(text):
    called += [one.strip().lstrip("%") for one in group.split(",")]
  scope = _TEXT.search(text)
  trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', backend)
  if trips:
    text += f", known_trip_count={trips.group(1)}"
  cycles = re.search(r'"estimated_cycles":"(\d+)"', backend)
  literal = opcode in ("constant", "parameter")
  return Instruction(
    name=found.group(2),
    opcode=opcode,
    shape=_shape(shape),
    operands=() if literal else tuple(_OPERAND.findall(inner)),
    called=tuple(called),
    scope=scope.group(1) if scope else "",
    text=text,
    inner=inner,
    cycles=int(cycles.group(1)) if cycles else 0,
  )


def _closing(text: str, start: int) -> int:
  """Where the bracket that opens at `start` closes."""
  pairs = {"(": ")", "{": "}"}
  opening, closing, depth = text[start], pairs[text[start]], 0
  for index in range(start, len(text)):
    if text[index] == opening:
      depth += 1
    elif text[index] == closing:
      depth -= 1
      if not depth:
        return index
  raise ValueError(f"cannot read the HLO line {text.strip()[:200]!r}")


def _shape(text: str) -> Array | tuple:
  if not text.startswith("("):
    return _array(text)
  parts, depth, start = [], 0, 1
  for index, char in enumerate(text):
    if char in "({[":
      depth += 1
    elif char in ")}]":
      depth -= 1
    if (char == "," and depth == 1) or (char == ")" and depth == 0):
      part = re.sub(r"/\*.*?\*/", "", text[start:index]).strip()
      if part:
        parts.append(_shape(part))
      start = index + 1
  return tuple(parts)


@functools.cache
def _array(text: str) -> Array:
  found = _ARRAY.match(text)
  if found is None:
    return Array("token", ())
  dtype, dims, layout = found.groups()
  sizes = tuple(int(size.lstrip("<=")) for size in dims.split(",") if size)
  order, _, rest = (layout or "").partition(":")
  tile = re.search(r"T\(([0-9,]*)\)", rest)
  space = re.search(r"S\((\d+)\)", rest)
  return Array(
    dtype=dtype,
    dims=sizes,
    order=tuple(int(dim) for dim in order.split(",") if dim.strip()),
    tile=tuple(map(int, tile.group(1).split(","))) if tile else (),
    space=int(space.group(1)) if space else _HBM,
  )
