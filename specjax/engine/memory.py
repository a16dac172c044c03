"""How much memory an engine will take, before anything of it is loaded.

All that stays for an engine's life is counted from shapes alone, by the very
functions that will allocate it, so the two cannot drift apart. What a call
needs on top of it is counted by its widest arrays. On a mesh it is what one
device will hold; where devices share the host's memory (simulated ones), all of
this process.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Sequence
from typing import Protocol

import jax

from specjax.cache import is_cache
from specjax.engine import filling, placing, programs, sizes
from specjax.models.base import Model
from specjax.proposers.base import Proposer, pass_width, placement_of
from specjax.sharding import axes
from specjax.step import StepParams

# Float32 arrays [B, 1 + C + M, V] of a step that are alive at once: the logits
# with and without penalties, p, and the residuals.
_WIDE_ARRAYS = 4
# What a process takes beside its arrays, where both share the host's memory:
# Python and its libraries 240 MB, compiling and compiled programs the rest
# (SmolLM2-135M on CPU, 30 unrolled layers: 560 MB plain, 800 MB with ngram).
RUNTIME_BYTES = 500_000_000
_F32 = 4
_UNLIMITED = 2**60  # how version 1 of cgroups spells that there is no limit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
  """Bytes by what takes them; every field is a part of the total.

  Attributes:
    target_weights: the target's parameters.
    draft_weights: the parameters of what drafts, if they are not the target's.
    target_cache: the target's keys and values, headroom included.
    draft_state: the proposer's state: keys and values of its own.
    step_state: what rows carry beside: history, penalties, settings.
    verify: logits and probabilities of a pass over 1 + C + M tokens, and q.
    prefill: a prompt chunk's logits, or what an encoder makes of a source, and
      the row that it is written to.
    runtime: Python, its libraries and compiled programs, on the host.
  """

  target_weights: int
  draft_weights: int
  target_cache: int
  draft_state: int
  step_state: int
  verify: int
  prefill: int
  runtime: int

  @property
  def held(self) -> int:
    """What stays allocated for an engine's life."""
    caches = self.target_cache + self.draft_state + self.step_state
    return self.target_weights + self.draft_weights + caches

  @property
  def total(self) -> int:
    """All parts together."""
    return sum(dataclasses.asdict(self).values())

  def parts(self) -> str:
    """Every part that is not nothing, with its size."""
    return ", ".join(
      f"{name.replace('_', ' ')} {sizes.shown(size)}"
      for name, size in dataclasses.asdict(self).items()
      if size
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
  """What there is.

  Attributes:
    size: bytes; None where nobody says.
    source: what the limit is.
  """

  size: int | None
  source: str


def estimate(
  target: Model,
  proposer: Proposer,
  draft_shapes: Sequence[jax.ShapeDtypeStruct] = (),
  *,
  slots: int,
  capacity: int,
  prefill_widths: Sequence[int],
  whole_batch_prefill: bool = False,
  on_host: bool = True,
) -> Estimate:
  """What an engine of these parts will take.

  Args:
    target: its shapes; nothing is allocated.
    proposer: its state is made by its `init`, of shapes only.
    draft_shapes: the proposer's parameters; none if they are the target's.
    slots, capacity, prefill_widths, whole_batch_prefill: see `loop.Engine`.
    on_host: whether arrays share their memory with Python and the compiler.
  """
  make_state = functools.partial(
    programs.initial_state,
    target,
    target.shapes,
    proposer,
    rows=slots,
    capacity=programs.positions(target, capacity, proposer, prefill_widths),
    stop_ids=(),
  )
  state = jax.eval_shape(make_state)
  params = StepParams(target=target.shapes, proposer=tuple(draft_shapes))
  places = placing.find(target, params, proposer, make_state)
  copies = 1
  if places is not None and on_host:
    copies = jax.local_device_count()

  def part(wanted) -> int:
    """Bytes here of a part of state or parameters, `wanted(them)`."""
    tree = wanted(params, state)
    own = places and wanted(places.params, places.state)
    return copies * placing.part_bytes(tree, own)

  cache, draft = part(lambda _, s: s.cache), part(lambda _, s: s.draft)
  step = part(lambda _, s: s) - cache - draft
  row, groups, ways = target.vocab_size * _F32, 1, 1
  if places is not None:
    placement = placement_of(target)
    row = copies * -(-row // placement.ways(axes.VOCAB))
    groups, ways = places.groups, placement.ways(axes.ROWS)
  rows = -(-slots // ways)  # of one device
  wide = _WIDE_ARRAYS * pass_width(proposer) + proposer.lookahead
  drafted = proposer.lookahead * _reduced(proposer) * _F32 * copies
  # The chunk of whoever has keys and values of its own has logits, too.
  nodes = jax.tree.leaves(state.draft, is_leaf=is_cache)
  chunks = 2 if any(map(is_cache, nodes)) else 1
  filled = rows if whole_batch_prefill else -(-groups // ways)
  logits = chunks * filled * max(prefill_widths) * row
  if filling.reads_source(target):  # An encoder has none.
    longest = filling.widths(target, prefill_widths, capacity)[-1]
    logits = copies * filled * target.encoding_bytes(longest)
  # A chunk of one row takes the row out of the batch and puts it back.
  taken = 0
  if not whole_batch_prefill:
    taken = (cache + draft + step) * groups // slots
  return Estimate(
    target_weights=part(lambda p, _: p.target),
    draft_weights=part(lambda p, _: p.proposer) if draft_shapes else 0,
    target_cache=cache,
    draft_state=draft,
    step_state=step,
    verify=rows * (wide * row + drafted) + copies * _gathered(target),
    prefill=logits + taken,
    runtime=RUNTIME_BYTES if on_host else 0,
  )


def _reduced(proposer: Proposer) -> int:
  """Vd of a proposer that drafts some of the ids alone, else 0.

  Its q is drawn on them before it is spread over the target's.
  """
  model = getattr(proposer, "model", None)
  return model.draft_vocab if getattr(model, "is_reduced", False) else 0


def _gathered(model: Model) -> int:
  """Bytes of the largest weight that is gathered before it is used, or 0."""
  placement = placement_of(model)
  if placement is None:
    return 0
  most = 0
  for names, shape, rest in zip(
    model.axes, model.shapes, model.shardings, strict=True
  ):
    used = placement.sharding(names)
    used, rest = (placing.part_bytes(shape, at) for at in (used, rest))
    stacked = shape.shape[0] if axes.LAYERS in names else 1
    most = max(most, used // stacked if used > rest else 0)
  return most


class Need(Protocol):
  """Gives the estimate for other sizes than those asked for."""

  def __call__(
    self, *, slots: int, capacity: int, dtype: str, lookahead: int | None
  ) -> Estimate:
    """See `estimate`; without a lookahead, the proposer has one of its own."""


def require(
  need: Need,
  limit: Limit,
  *,
  slots: int,
  capacity: int,
  dtype: str,
  lookahead: int | None = None,
) -> Estimate:
  """Refuses what does not fit, with the numbers and what would.

  Args:
    need: the estimate as a function of the four.
    limit: what there is.
    slots, capacity, dtype, lookahead: what is asked for.

  Returns:
    The estimate of what is asked for.

  Raises:
    ValueError: it does not fit.
  """
  asked = dict(slots=slots, capacity=capacity, dtype=dtype, lookahead=lookahead)
  wanted = need(**asked)
  if limit.size is None or wanted.total <= limit.size:
    return wanted
  fits = lambda **other: need(**asked | other).total <= limit.size

  def largest(least: int, **other: int) -> int | None:
    """The largest value of the one setting in `other` that fits."""
    ((name, most),) = other.items()
    if most <= least or not fits(**{name: least}):
      return None
    low, high = least, most  # low fits, high does not
    while high - low > 1:
      middle = (low + high) // 2
      low, high = (middle, high) if fits(**{name: middle}) else (low, middle)
    return low

  least = {"capacity": 2, "slots": 1, "lookahead": 1}
  remedies = [
    f"{name} {found}"
    for name, few in least.items()
    if asked[name] is not None
    and (found := largest(few, **{name: asked[name]})) is not None
  ]
  if dtype == "float32" and fits(dtype="bfloat16"):
    remedies.append("dtype bfloat16")
  smallest = asked | dict(slots=1, capacity=2, dtype="bfloat16")
  if lookahead is not None:
    smallest["lookahead"] = 1
  if remedies:
    advice = f"it fits with {', or with '.join(remedies)}"
  elif fits(**smallest):
    spelled = ", ".join(
      f"{name} {value}"
      for name, value in smallest.items()
      if value is not None and value != asked[name]
    )
    advice = f"only all of these together fit: {spelled}"
  else:
    at_least = sizes.shown(need(**smallest).total)
    advice = f"at its smallest it needs {at_least}: take a smaller model"
  raise ValueError(
    f"memory: {sizes.shown(wanted.total)} needed ({wanted.parts()}), "
    f"{sizes.shown(limit.size)} {limit.source}; {advice}"
  )


def line(found: Estimate, limit: Limit) -> str:
  """The estimate in one line, for whoever starts a run."""
  weights = found.target_weights + found.draft_weights
  caches = found.target_cache + found.draft_state
  rest = found.step_state + found.verify + found.prefill
  parts = {"weights": weights, "caches": caches, "steps": rest}
  if found.runtime:
    parts["runtime"] = found.runtime
  spelled = " + ".join(f"{sizes.shown(n)} {name}" for name, n in parts.items())
  there = ""
  if limit.size is not None:
    there = f" of {sizes.shown(limit.size)} {limit.source}"
  return f"memory: {spelled} = {sizes.shown(found.total)}{there}"


def limit_of(max_memory: str | int | None, held: int = 0) -> Limit:
  """The memory that an engine may take.

  Args:
    max_memory: an upper bound that wins, as `sizes.parse` takes it.
    held: bytes of the engine that are allocated already.

  Raises:
    ValueError: max_memory is no size.
  """
  if max_memory is not None:
    return Limit(size=sizes.parse(max_memory), source="allowed by max_memory")
  stats = None if on_host() else jax.local_devices()[0].memory_stats()
  if stats and "bytes_limit" in stats:
    free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    held //= jax.local_device_count()
    return Limit(size=free + held, source="free on the device")
  free = host_available()
  return Limit(size=None if free is None else free + held, source="available")


def on_host() -> bool:
  """Whether arrays lie in the host's own memory."""
  return jax.local_devices()[0].platform == "cpu"


def host_available(root: str = "/") -> int | None:
  """Bytes that this process may still take without anything being swapped.

  What the kernel calls available, or less where a cgroup (a container) has a
  limit. None where there is no /proc.

  Args:
    root: the file system's root, another one in tests.
  """
  base = pathlib.Path(root)
  free = _read_field(base / "proc/meminfo", "MemAvailable:")
  limits = [] if free is None else [free * 1024]
  return min([*limits, *_cgroup_limits(base)], default=None)


def _cgroup_limits(base: pathlib.Path) -> Iterable[int]:
  """What each cgroup around this process leaves of its limit."""
  try:
    lines = (base / "proc/self/cgroup").read_text().splitlines()
  except OSError:
    return
  for entry in lines:
    _, controllers, path = entry.split(":", 2)
    mount = base / "sys/fs/cgroup"
    names = ("memory.max", "memory.current", "inactive_file")
    if "memory" in controllers.split(","):
      mount /= "memory"
      names = (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
      )
    elif controllers:
      continue
    folder = mount / path.lstrip("/")
    # Seen from within a container, its own group may be the mount itself.
    for group in (folder, *folder.parents):
      limit, used = (_read_field(group / name) for name in names[:2])
      if limit is not None and limit < _UNLIMITED:
        # Cached files count as used, but give way.
        cached = _read_field(group / "memory.stat", names[2]) or 0
        yield max(limit - max((used or 0) - cached, 0), 0)
      if group == mount:
        break


def _read_field(path: pathlib.Path, name: str = "") -> int | None:
  """The number behind `name` in a file of the kernel's, or None."""
  try:
    lines = path.read_text().splitlines()
  except OSError:
    return None
  for words in map(str.split, lines):
    if name in ("", *words[:1]):
      value = words[len(words) > 1] if words else ""
      return int(value) if value.isdecimal() else None
  return None
