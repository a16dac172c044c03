"""The product's own step, lowered for a slice from shapes alone.

Nothing here is a copy: the models, the engine's programs and where it places
what they take come from where an engine takes them.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from specjax.cache import stacks
from specjax.engine import loop, placing, programs
from specjax.lab.drafting import PROPOSERS, Drafting
from specjax.lab.strategy import Strategy
from specjax.lab.topology import Topology, devices
from specjax.models import decoder, padding
from specjax.models.attend import block_size
from specjax.models.config import DecoderConfig
from specjax.sharding import axes
from specjax.sharding import mesh as mesh_lib
from specjax.sharding import rules as rules_lib
from specjax.sharding.placement import Placement
from specjax.step import StepParams
from specjax.verifiers.base import Verifier
from specjax.verifiers.rejection import Rejection

# The name of a program's argument begins with … -> the part it belongs to.
_PARTS = {
  "params.target": "target_weights",
  "params.proposer": "draft_weights",
  **{
    f"state.{where}cache.{of}{what}": part
    for where, part in (("", "target_cache"), ("draft.", "draft_cache"))
    for of in ("", "own.", "source.")
    for what in "kv"
  },
}
PARTS = (
  "target_weights", "draft_weights", "target_cache", "draft_cache", "other"
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
  """A target and its draft, before anything is split.

  Attributes:
    target: its sizes. draft: those of its draft model, if it has one.
    ngram: the shortest and the longest match of `Ngram`.
    dtype: of weights and caches.
    scan_layers, pad_heads: as `specjax.load` takes them.
    verifier: of the drafts.
    stop_ids: how many ids may end a row.
  """

  target: DecoderConfig
  draft: DecoderConfig | None = None
  ngram: tuple[int, int] = (2, 4)
  dtype: str = "bfloat16"
  scan_layers: bool = True
  pad_heads: bool = False
  verifier: Verifier = Rejection()
  stop_ids: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """One row of the lab's table.

  Attributes:
    topology: the slice. strategy: how the pair is split over it.
    proposer: who drafts; one of `drafting.PROPOSERS`.
    batch: B, rows at once.
    lookahead: C; 0 decodes plainly.
    context: the most tokens a row may have.
    live: how many of them rows have now.
  """

  topology: Topology
  strategy: Strategy
  proposer: str
  batch: int
  lookahead: int
  context: int
  live: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
  """A step that is ready to be compiled, and what an account of it needs.

  Attributes:
    lowered: jax's.
    held: bytes of arguments a chip by part, without what layouts add.
    ideal: bytes a chip must move at least, by part: weights as often as a
      model passes over them, live keys and values once a pass.
    blocks: by model ("draft", "verify"), how many blocks of the cache a pass
      attends to, the mean over layers.
    drafts: how often the drafting loop runs.
  """

  lowered: Any
  held: dict[str, int]
  ideal: dict[str, float]
  blocks: dict[str, float]
  drafts: int

  def trips(self, scopes: tuple[str, ...]) -> float | None:
    """How often a loop runs, by the scopes around it."""
    match scopes[-1]:
      case "draft":
        return self.drafts
      case "attention_blocks":
        return self.blocks["draft" if "draft" in scopes else "verify"]
    return None


def part(name: str) -> str:
  """The part that an argument of the step belongs to."""
  for begins, found in _PARTS.items():
    if name.startswith(begins):
      return found
  return "other"


def step(pair: Pair, case: Case) -> Step:
  """Lowers the step of a pair for a case.

  Raises:
    ValueError: the pair cannot be split so; says what does not divide.
    ImportError: the TPU compiler is not installed.
  """
  mesh = _mesh(case)
  target = _model(
    pair,
    pair.target,
    who="target",
    strategy=case.strategy.target,
    case=case,
    mesh=mesh,
  )
  build = functools.partial(
    _model,
    pair,
    who="draft",
    strategy=case.strategy.draft,
    case=case,
    mesh=mesh,
  )
  drafting = PROPOSERS[case.proposer](pair, case, target, build)
  proposer = drafting.proposer
  placing.check(target, proposer, case.batch)
  params = StepParams(target=target.shapes, proposer=drafting.shapes)
  make_state = functools.partial(
    programs.initial_state,
    target,
    target.shapes,
    proposer,
    rows=case.batch,
    capacity=programs.positions(
      target, case.context, proposer, loop.PREFILL_WIDTHS
    ),
    stop_ids=tuple(range(pair.stop_ids)),
  )
  places = placing.find(target, params, proposer, make_state)
  state = jax.eval_shape(make_state)
  made = programs.compile_programs(
    target,
    proposer,
    pair.verifier,
    widths=loop.PREFILL_WIDTHS,
    whole_batch=False,
    top_logprobs=0,
    places=places,
  )
  blocks = {"verify": _blocks(target, state.cache, case)}
  if hasattr(state.draft, "cache"):
    blocks["draft"] = _blocks(drafting.model, state.draft.cache, case)
  run = made.speculate if case.lookahead else made.plain
  return Step(
    lowered=run.lower(params, state),
    held=_held(params, state, places),
    ideal=_ideal(target, drafting, params, state, places, case),
    blocks=blocks,
    drafts=drafting.trips,
  )


def _mesh(case: Case) -> jax.sharding.Mesh:
  shape = case.strategy.shape(case.topology.sides)
  try:
    return mesh_lib.make(shape, devices(case.topology))
  except NotImplementedError:  # jax's word for it
    sizes = " x ".join(map(str, shape.values()))
    raise ValueError(
      f"strategy {case.strategy}: a mesh of {sizes} has axes that are no whole"
      f" sides of {case.topology}; give sizes that are products of its sides"
    ) from None


def _model(pair, config, *, who, strategy, case, mesh) -> decoder.Model:
  rules = rules_lib.find(strategy).with_caches(case.strategy.caches)
  placement = Placement(mesh, rules)
  if pair.pad_heads:
    ways = [
      placement.ways(axis, kind)
      for axis in (axes.HEADS, axes.KV_HEADS)
      for kind in ("parameters", "arrays")
    ]
    config = padding.padded(config, math.lcm(*ways))
  return decoder.build(
    config,
    dtype=jnp.dtype(pair.dtype),
    scan_layers=pair.scan_layers,
    placement=placement,
    name=who,
  )


def _seen(model: decoder.Model, cache, case: Case) -> list[int]:
  """Positions that each layer attends to, on the chip with most of them."""
  parts = model.placement.ways(axes.CACHE_POSITIONS, "caches")
  most = min(case.live, cache.capacity // parts)
  windows = model.config.windows or (0,)
  return [min(most, window) if window else most for window in windows]


def _blocks(model: decoder.Model, cache, case: Case) -> float:
  """Blocks that a pass attends to, the mean over layers."""
  windows = model.config.windows or (0,)
  counts = [
    # A window rarely begins where a block does.
    math.ceil(seen / block_size("tpu")) + (0 < window <= seen < case.live)
    for seen, window in zip(_seen(model, cache, case), windows, strict=True)
  ]
  return sum(counts) / len(counts)


def _held(params, state, places) -> dict[str, int]:
  """Bytes of the arguments a chip, by part."""
  size = placing.part_bytes
  held = {
    "target_weights": size(params.target, places.params.target),
    "draft_weights": size(params.proposer, places.params.proposer),
    "target_cache": _stacks(state.cache, places.state.cache),
    "draft_cache": 0,
  }
  if hasattr(state.draft, "cache"):
    held["draft_cache"] = _stacks(state.draft.cache, places.state.draft.cache)
  caches = held["target_cache"] + held["draft_cache"]
  return held | {"other": size(state, places.state) - caches}


def _stacks(cache, place) -> int:
  return placing.part_bytes(stacks(cache), stacks(place))


def _ideal(
  target, drafting: Drafting, params, state, places, case: Case
) -> dict[str, float]:
  """See `Step`; tables that are looked up, not read, do not count.

  Nor does what only an encoder reads; a source is as long as what is live.
  """

  def weights(model, shapes, shardings):
    skipped = {"position.weight"}
    if not model.config.tied:
      skipped.add("embed.weight")
    kept = [
      (shape, place)
      for path, shape, place in zip(model.paths, shapes, shardings, strict=True)
      if path not in skipped and not decoder.is_of_source(path)
    ]
    return placing.part_bytes(*map(tuple, zip(*kept, strict=True)))

  def live(model, cache, place):
    parts = model.placement.ways(axes.CACHE_POSITIONS, "caches")
    seen = _seen(model, cache, case)
    share = sum(seen) / len(seen) / (cache.capacity // parts)
    return _stacks(cache, place) * share

  found = {
    "target_weights": weights(target, params.target, places.params.target),
    "target_cache": live(target, state.cache, places.state.cache),
    "draft_weights": 0.0,
    "draft_cache": 0.0,
    "other": 0.0,
  }
  if drafting.model is not None:
    draft, passes = drafting.model, drafting.passes
    found["draft_weights"] = passes * weights(
      draft, params.proposer, places.params.proposer
    )
    if hasattr(state.draft, "cache"):
      found["draft_cache"] = passes * live(
        draft, state.draft.cache, places.state.draft.cache
      )
  return found
