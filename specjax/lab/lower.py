"""The product's own step, lowered for a slice from shapes alone.

Nothing here is a copy: the models, the engine's programs and where it places
what they take come from where an engine takes them.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from specjax.cache import KVCache, caches, stacks
from specjax.engine import filling, placing, programs
from specjax.lab import kernels as kernels_lib
from specjax.lab.drafting import PROPOSERS, Drafting, Walk, reads, walk
from specjax.lab.strategy import Strategy
from specjax.lab.topology import Topology, devices
from specjax.models import decoder, padding, tpu_attention
from specjax.models.attend import block_size
from specjax.models.config import DecoderConfig
from specjax.proposers import kinds
from specjax.sharding import axes
from specjax.sharding import mesh as mesh_lib
from specjax.sharding import rules as rules_lib
from specjax.sharding.placement import Placement
from specjax.step import StepParams
from specjax.verifiers.base import Verifier
from specjax.verifiers.rejection import Rejection

# How the name of a program's argument begins -> the part it belongs to.
_PARTS = {
  re.compile(r"params\.target"): "target_weights",
  re.compile(r"params\.proposer"): "draft_weights",
  re.compile(r"state\.cache\.(own\.|source\.)?[kv]"): "target_cache",
  re.compile(
    r"state\.draft\.caches?(\[\d+\])?\.(own\.|source\.)?[kv]"
  ): "draft_cache",
}
PARTS = (
  "target_weights", "draft_weights", "target_cache", "draft_cache", "other"
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
  """A target and what may draft for it, before anything is split.

  Attributes:
    target: its sizes. draft: those of its draft model, if it has one.
    ngram: the shortest and the longest match of `Ngram`.
    draft_layers: of the target, for layer_skip: how many of the first, or
      which, ascending.
    eagle: 1 or 3, for EAGLE-1 or EAGLE-3.
    heads: how many Medusa heads or modules of mtp; None for 4 and 1.
    vocabulary: how many ids a head can draft; 0 for all.
    dtype: of weights and caches.
    scan_layers, pad_heads: as `specjax.load` takes them.
    verifier: of the drafts.
    stop_ids: how many ids may end a row.
  """

  target: DecoderConfig
  draft: DecoderConfig | None = None
  ngram: tuple[int, int] = (2, 4)
  draft_layers: int | tuple[int, ...] | None = None
  eagle: int = 1
  heads: int | None = None
  vocabulary: int = 0
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
    siblings: M, second guesses that the target reads beside the drafts.
    context: the most tokens a row may have.
    live: how many of them rows have now.

  Raises:
    ValueError: there are siblings, but nobody who makes any.
  """

  topology: Topology
  strategy: Strategy
  proposer: str
  batch: int
  lookahead: int
  context: int
  live: int
  siblings: int = 0

  def __post_init__(self):
    if self.siblings and not (self.lookahead and self.ranks):
      raise ValueError(
        f"siblings is {self.siblings}, but {self.proposer} at lookahead"
        f" {self.lookahead} has no second guesses; give 0"
      )

  @property
  def ranks(self) -> bool:
    """Whether its proposer has second guesses."""
    return kinds.KINDS[self.proposer].ranks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
  """A step that is ready to be compiled, and what an account of it needs.

  Attributes:
    lowered: jax's.
    variant: what was chosen of the proposer; see `Drafting`.
    held: bytes of arguments a chip by part, without what layouts add.
    resting: of them those that only the reading of a source takes, and no step:
      an encoder's. They lie in the memory all the same.
    ideal: bytes a chip must move at least, by part: weights as often as
      passes go over them, live keys and values once a pass. What drafts read of
      the target's counts as the target's.
    blocks: by model ("draft", "verify"), how many blocks of the cache a pass
      attends to, the mean over layers.
    drafts: how often the drafting loop runs.
    depths: of these trips, how many take each branch of the modules' switch.
  """

  lowered: Any
  variant: str
  held: dict[str, int]
  resting: int
  ideal: dict[str, float]
  blocks: dict[str, float]
  drafts: int
  depths: tuple[float, ...]

  def trips(self, scopes: tuple[str, ...]) -> float | None:
    """How often a loop runs, by the scopes around it."""
    match scopes[-1]:
      case "draft":
        return self.drafts
      case "attention_blocks":
        return self.blocks["draft" if "draft" in scopes else "verify"]
    return None

  def kernels(
    self, scopes: tuple[str, ...], operands
  ) -> kernels_lib.Taken | None:
    """What a kernel takes of its operands, by the scopes around it."""
    if tpu_attention.NAME not in scopes:
      return None
    model = "draft" if "draft" in scopes else "verify"
    return kernels_lib.attention(operands, self.blocks[model])

  def shares(self, scopes: tuple[str, ...]) -> Sequence[float] | None:
    """How often each branch of a condition runs, of 1; by the scopes."""
    is_depths = self.depths and scopes[-2:-1] == ("depths",)
    return self.depths if is_depths else None


def part(name: str) -> str:
  """The part that an argument of the step belongs to."""
  for begins, found in _PARTS.items():
    if begins.match(name):
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
      target, case.context, proposer, filling.chunks("tpu")
    ),
    stop_ids=tuple(range(pair.stop_ids)),
  )
  places = placing.find(target, params, proposer, make_state)
  state = jax.eval_shape(make_state)
  made = programs.compile_programs(
    target,
    proposer,
    pair.verifier,
    widths=filling.chunks("tpu"),
    whole_batch=False,
    top_logprobs=0,
    places=places,
  )
  run = made.speculate if case.lookahead else made.plain
  return Step(
    lowered=run.lower(params, state),
    variant=drafting.variant,
    held=_held(params, state, places),
    resting=_resting(target, drafting, places),
    ideal=_ideal(target, drafting, params, state, places, case),
    blocks=_blocks(target, drafting, state, case),
    drafts=drafting.trips,
    depths=drafting.shares,
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


def _seen(part: Walk, cache: KVCache, placement, case: Case) -> list[int]:
  """Positions that each layer attends to, on the chip with most of them."""
  parts = placement.ways(axes.CACHE_POSITIONS, "caches")
  most = min(case.live, cache.capacity // parts)
  return [min(most, window) if window else most for window in part.windows]


def _blocks(
  target: decoder.Model, drafting: Drafting, state, case: Case
) -> dict[str, float]:
  """Blocks that a pass of each model attends to, the mean over layers."""

  def mean(part: Walk, cache, placement) -> float:
    seen = _seen(part, cache, placement, case)
    counts = [
      # A window rarely begins where a block does.
      math.ceil(one / block_size("tpu")) + (0 < window <= one < case.live)
      for one, window in zip(seen, part.windows, strict=True)
    ]
    return sum(counts) / len(counts)

  whole = walk(target.config, 1)
  found = {"verify": mean(whole, state.cache, target.placement)}
  if drafting.shared is not None:
    found["draft"] = mean(drafting.shared, state.cache, target.placement)
  elif drafting.walks:
    # Layers of several caches are alike.
    cache, *_ = caches(state.draft)
    found["draft"] = mean(drafting.walks[0], cache, drafting.proposer.placement)
  return found


def _held(params, state, places) -> dict[str, int]:
  """Bytes of the arguments a chip, by part."""
  size = placing.part_bytes
  pairs = zip(caches(state.draft), caches(places.state.draft), strict=True)
  held = {
    "target_weights": size(params.target, places.params.target),
    "draft_weights": size(params.proposer, places.params.proposer),
    "target_cache": _stacks(state.cache, places.state.cache),
    "draft_cache": sum(_stacks(*pair) for pair in pairs),
  }
  both = held["target_cache"] + held["draft_cache"]
  return held | {"other": size(state, places.state) - both}


def _resting(target: decoder.Model, drafting: Drafting, places) -> int:
  """See `Step`."""
  models = [(target, places.params.target)]
  own = getattr(drafting.proposer, "model", None)
  if drafting.shapes and isinstance(own, decoder.Model):
    models.append((own, places.params.proposer))
  return sum(
    placing.part_bytes(shape, place)
    for model, laid in models
    for path, shape, place in zip(model.paths, model.shapes, laid, strict=True)
    if decoder.is_of_source(path)
  )


def _stacks(cache, place) -> int:
  return placing.part_bytes(stacks(cache), stacks(place))


def _ideal(
  target, drafting: Drafting, params, state, places, case: Case
) -> dict[str, float]:
  """See `Step`; tables that are looked up, not read, do not count.

  Nor does what only an encoder reads; a source is as long as what is live.
  """

  def weights(shapes, shardings, times) -> float:
    return sum(
      often * placing.part_bytes(shape, place)
      for shape, place, often in zip(shapes, shardings, times, strict=True)
    )

  def live(part: Walk, cache, place, placement) -> float:
    layers = cache.k.shape[0]
    capacity = cache.capacity // placement.ways(axes.CACHE_POSITIONS, "caches")
    seen = sum(_seen(part, cache, placement, case))
    share = seen / (layers * capacity)
    return part.passes * share * _stacks(cache, place)

  again = drafting.borrows
  once = [
    often + again.get(place, 0.0) for place, often in enumerate(reads(target))
  ]
  shared = [walk(target.config, 1)]
  if drafting.shared is not None:
    shared.append(drafting.shared)
  own = zip(
    drafting.walks,
    caches(state.draft),
    caches(places.state.draft),
    strict=True,
  )
  return {
    "target_weights": weights(params.target, places.params.target, once),
    "target_cache": sum(
      live(one, cache, place, target.placement)
      for one in shared
      for cache, place in zip(
        caches(state.cache), caches(places.state.cache), strict=True
      )
    ),
    "draft_weights": weights(
      params.proposer, places.params.proposer, drafting.reads
    ),
    "draft_cache": sum(live(*one, drafting.proposer.placement) for one in own),
    "other": 0.0,
  }
