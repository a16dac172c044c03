"""TPU chips and slices, and devices of slices that are not there.

The compiler for them is in `libtpu` (extra `lab`); it needs no TPU. Chips and
names of slices need no jax.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import math
import os
import re
import threading
from collections.abc import Iterator
from typing import Any

_LOCK = threading.Lock()
_GIB = 2**30
_GB = 1e9

# What keeps the compiler from asking a machine that has no TPU about its TPU,
# and two processes from excluding each other.
_QUIET = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-8",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
  """One chip, as its maker describes it.

  Attributes:
    kind: as topologies name it.
    flops: bfloat16 products a second.
    hbm_bytes: its main memory.
    usable_bytes: what of it a program may have.
    bandwidth: of that memory, bytes a second.
    slices: the sizes of slices to look for, smallest first.
  """

  kind: str
  flops: float
  hbm_bytes: float
  usable_bytes: float
  bandwidth: float
  slices: tuple[str, ...]

  @property
  def dimensions(self) -> int:
    """How many numbers a slice's size has."""
    return self.slices[0].count("x") + 1


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8")

CHIPS = {
  chip.kind: chip
  for chip in (
    Chip(
      kind="v4", flops=275e12, hbm_bytes=32 * _GIB, usable_bytes=30.75 * _GIB,
      bandwidth=1200e9, slices=_CUBES,
    ),
    Chip(
      kind="v5e", flops=197e12, hbm_bytes=16 * _GB, usable_bytes=15.75 * _GIB,
      bandwidth=819e9, slices=_FLAT,
    ),
    Chip(
      kind="v5p", flops=459e12, hbm_bytes=95 * _GB, usable_bytes=95.73 * _GIB,
      bandwidth=2765e9, slices=_CUBES,
    ),
    Chip(
      kind="v6e", flops=918e12, hbm_bytes=32 * _GB, usable_bytes=31.24 * _GIB,
      bandwidth=1638e9, slices=_FLAT,
    ),
  )
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
  """A slice: a kind of chip and how many of them along each side."""

  chip: Chip
  sides: tuple[int, ...]

  def __str__(self):
    return f"{self.chip.kind}:{'x'.join(map(str, self.sides))}"

  @property
  def chips(self) -> int:
    """How many there are."""
    return math.prod(self.sides)


def parse(text: str) -> Topology:
  """A slice by its name, such as "v4:2x2x4".

  Raises:
    ValueError: names --topology, what is wrong and what would be right.
  """
  found = re.fullmatch(r"\s*([a-z0-9]+):(\d{1,3}(?:x\d{1,3}){1,2})\s*", text)
  known = ", ".join(CHIPS)
  if found is None:
    raise ValueError(
      f"--topology={text}: give KIND:SIDES, as in v4:2x2x4 or v5e:4x4; kinds"
      f" are {known}"
    )
  kind, sides = found.groups()
  if kind not in CHIPS:
    raise ValueError(
      f"--topology={text}: there is no kind {kind!r}; there are {known}"
    )
  chip = CHIPS[kind]
  if sides.count("x") + 1 != chip.dimensions:
    raise ValueError(
      f"--topology={text}: slices of {kind} have {chip.dimensions} sides, as"
      f" {kind}:{chip.slices[2]}"
    )
  return Topology(chip=chip, sides=tuple(map(int, sides.split("x"))))


def is_installed() -> bool:
  """Whether the TPU compiler is there."""
  return importlib.util.find_spec("libtpu") is not None


def devices(topology: Topology) -> tuple[Any, ...]:
  """The devices of a slice, in the order in which a TPU's would be; one a chip.

  Raises:
    ImportError: the TPU compiler is not installed; says how it is.
    ValueError: there is no such slice; in the compiler's words.
  """
  if not is_installed():
    raise ImportError(
      "the lab needs the TPU compiler: pip install 'specjax[lab]' (it needs no"
      " TPU)"
    )
  with _LOCK:  # The compiler starts but once.
    return _devices(topology)


@functools.cache
def _devices(topology: Topology) -> tuple[Any, ...]:
  from jax.experimental import topologies

  for name, value in _QUIET.items():
    os.environ.setdefault(name, value)
  how = {}
  if topology.chip.kind == "v4":
    how["chip_config_name"] = "megacore"  # Two cores make one device.
  if topology.chips == 1:
    how["chips_per_host_bounds"] = (1, 1, 1)
  try:
    found = topologies.get_topology_desc(
      topology_name=str(topology), platform="tpu", **how
    ).devices
  except RuntimeError as error:
    raise ValueError(
      f"--topology={topology}: {' '.join(str(error).split())}"
    ) from None
  assert len(found) == topology.chips, (topology, len(found))
  return tuple(found)


_uncached = {"inside": 0, "before": True}


@contextlib.contextmanager
def uncached() -> Iterator[None]:
  """No persistent compilation cache inside: times of compiling are real.

  Threads may be inside together.
  """
  import jax

  with _LOCK:
    if not _uncached["inside"]:
      _uncached["before"] = jax.config.jax_enable_compilation_cache
      jax.config.update("jax_enable_compilation_cache", False)
    _uncached["inside"] += 1
  try:
    yield
  finally:
    with _LOCK:
      _uncached["inside"] -= 1
      if not _uncached["inside"]:
        jax.config.update("jax_enable_compilation_cache", _uncached["before"])
