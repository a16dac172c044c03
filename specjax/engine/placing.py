"""Where an engine's arrays lie, where its models are split over a mesh."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding

from specjax import layout
from specjax.models.base import Model
from specjax.proposers.base import Proposer, placement_of
from specjax.sharding import axes
from specjax.sharding.placement import Placement
from specjax.state import State
from specjax.step import StepParams
from specjax.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
  """Shardings of all that an engine's programs take and give.

  Attributes:
    params, state: trees of them.
    whole: of what the host sends and reads: every device has all of it.
    groups: rows of different groups lie on different devices, so that one of
      each is prefilled at once.
  """

  params: StepParams
  state: State
  whole: NamedSharding
  groups: int

  def initial(self, make_state: Callable[[], State]) -> State:
    """Runs it, each device making its own part."""
    return jax.jit(make_state, out_shardings=self.state)()


def find(
  target: Model,
  params: StepParams,
  proposer: Proposer,
  make_state: Callable[[], State],
) -> Places | None:
  """The places of an engine's arrays; None where the target has no placement.

  Args:
    target: may have a `placement`.
    params: arrays or their shapes.
    proposer: may have a `placement`, and `shardings` of its own.
    make_state: gives the state of idle rows; only its shapes are looked at.

  Raises:
    ValueError: see `check`.
  """
  check(target, proposer)
  placement, draft = placement_of(target), placement_of(proposer)
  if placement is None:
    return None
  state = jax.eval_shape(make_state)
  if hasattr(proposer, "shardings"):
    drafted = proposer.shardings(state.draft, draft or placement)
  else:
    drafted = layout.by_rows(state.draft, draft or placement)
  places = dataclasses.replace(
    layout.by_rows(dataclasses.replace(state, draft=()), placement),
    draft=drafted,
    penalties=_penalties(state.penalties, placement),
    stop_ids=placement.whole,
  )
  rows = [dataclasses.replace(one, stop_ids=()) for one in (state, places)]
  return Places(
    params=StepParams(
      target=tuple(target.shardings),
      proposer=_proposer_params(proposer, params.proposer, placement.whole),
    ),
    state=places,
    whole=placement.whole,
    groups=layout.row_ways(*rows),
  )


def check(target: Model, proposer: Proposer, slots: int | None = None) -> None:
  """Refuses what cannot be on a mesh together.

  Raises:
    ValueError: target and proposer are on different meshes, one of them on
      none, or the slots do not divide; says what would do.
  """
  placement, draft = placement_of(target), placement_of(proposer)
  meshes = [None if one is None else one.mesh for one in (placement, draft)]
  if hasattr(proposer, "placement") and meshes[0] != meshes[1]:
    raise ValueError(
      f"the target's mesh is {placement} and the draft's is {draft}; give both "
      "the same"
    )
  if placement is None:
    return
  used = placement.used | (draft.used if draft is not None else set())
  for axis, size in placement.mesh.shape.items():
    if size > 1 and axis not in used:
      raise ValueError(
        f"--mesh={placement}: nothing is split over {axis!r} (strategy "
        f"{placement.rules.name!r}), so its devices would all do the same; "
        f"leave the axis out, or split something over it"
      )
  for who, place in (("target", placement), ("draft", draft)):
    if place is not None and slots is not None:
      place.check({axes.ROWS: slots}, who, ("arrays", "caches"))


def part_bytes(tree: Any, shardings: Any = None) -> int:
  """Bytes of a tree's arrays on one device, as far as they are split.

  Args:
    tree: arrays or their shapes.
    shardings: a tree of them; None where every array is whole.
  """
  leaves = jax.tree.leaves(tree)
  places = jax.tree.leaves(shardings) or [None] * len(leaves)
  total = 0
  for leaf, place in zip(leaves, places, strict=True):
    spec = () if place is None else place.spec
    ways = [
      math.prod(place.mesh.shape[axis] for axis in _axes(part)) for part in spec
    ]
    ways += [1] * (len(leaf.shape) - len(ways))
    sizes = [-(-n // way) for n, way in zip(leaf.shape, ways, strict=True)]
    total += math.prod(sizes) * leaf.dtype.itemsize
  return total


def _axes(part) -> tuple[str, ...]:
  return (part,) if isinstance(part, str) else tuple(part or ())


def _penalties(penalties, placement: Placement):
  by_vocab = placement.sharding((axes.ROWS, axes.VOCAB))
  return dataclasses.replace(
    layout.by_rows(penalties, placement),
    bias=by_vocab,
    prompt=by_vocab,
    output=by_vocab,
  )


def _proposer_params(proposer, params, whole) -> Any:
  model = getattr(proposer, "model", None)
  # One that drafts with the target's own parameters has none.
  if params and placement_of(model) is not None:
    return tuple(model.shardings)
  return jax.tree.map(lambda _: whole, params)


def turns(slots: Iterable[int], size: int) -> Iterator[list[int]]:
  """Slots in turns: of each group, which has `size` slots, one at a time."""
  queues: dict[int, list[int]] = {}
  for slot in slots:
    queues.setdefault(slot // size, []).append(slot)
  for turn in itertools.zip_longest(*queues.values()):
    yield [slot for slot in turn if slot is not None]


def settle(params: Params, shardings: Any) -> Params:
  """Parameters where they belong; those that are there already as they are."""

  def one(value, sharding):
    there = getattr(value, "sharding", None)
    if there is not None and there.is_equivalent_to(sharding, value.ndim):
      return value
    return jax.device_put(value, sharding)

  return jax.tree.map(one, params, shardings)
