"""Who drafts, as the lab accounts for it: one entry a kind of proposer.

Sizes of heads are those that `specjax-train` makes for the target.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from specjax.models import decoder
from specjax.models.config import DecoderConfig
from specjax.models.heads import eagle, medusa, mtp
from specjax.models.heads.borrowed import HeadModel
from specjax.proposers import kinds
from specjax.proposers.base import Proposer
from specjax.proposers.draft_model import DraftModel
from specjax.proposers.eagle import Eagle
from specjax.proposers.layer_skip import LayerSkip
from specjax.proposers.medusa import Medusa
from specjax.proposers.mtp import Mtp
from specjax.proposers.ngram import Ngram
from specjax.proposers.none import NoProposer
from specjax.sharding import axes
from specjax.types import Params

if TYPE_CHECKING:
  from specjax.lab.lower import Case, Pair

# A model of a config, split as the case's draft is.
Build = Callable[[DecoderConfig], decoder.Model]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Walk:
  """Passes over a cache.

  Attributes:
    windows: of each layer that a pass runs, 0 where it sees all.
    passes: of a step.
  """

  windows: tuple[int, ...]
  passes: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drafting:
  """A proposer, and what an account of its step must know of it.

  Attributes:
    proposer: as an engine runs it.
    variant: what was chosen of it, "" where there is nothing to choose.
    shapes: of its parameters.
    reads: how often the drafts of a step read each of them; what is looked up
      in, not read, counts 0.
    borrows: the same of the target's parameters, by their place there, beside
      the target's own pass; of a stack of layers a part may be read.
    walks: over each of the caches in the proposer's state, in order.
    shared: over the target's cache, beside its own pass; None for none.
    trips: how often the loop in the scope "draft" runs.
    shares: of these trips, how many take each branch of the switch in the scope
      "depths", of 1; () where there is none.
  """

  proposer: Proposer
  variant: str = ""
  shapes: Params = ()
  reads: tuple[float, ...] = ()
  borrows: Mapping[int, float] = dataclasses.field(default_factory=dict)
  walks: tuple[Walk, ...] = ()
  shared: Walk | None = None
  trips: int = 0
  shares: tuple[float, ...] = ()


def reads(
  model: decoder.Model, layers: Sequence[int] | None = None
) -> tuple[float, ...]:
  """How often one pass reads each of a model's parameters; see `Drafting`.

  Args:
    model: whose.
    layers: those that run, None for all.
  """
  count = model.config.layers
  numbers = range(count) if layers is None else layers

  def one(path: str, names: tuple[str, ...]) -> float:
    if path == "position.weight" or decoder.is_of_source(path):
      return 0.0
    if path == "embed.weight":
      return float(model.config.tied)
    if not path.startswith("layers."):
      return 1.0
    if names[0] == axes.LAYERS:
      return len(numbers) / count
    return float(int(path.split(".")[1]) in numbers)

  return tuple(map(one, model.paths, model.axes))


def walk(
  config: DecoderConfig, passes: float, layers: Sequence[int] | None = None
) -> Walk:
  """Passes of a model, or of some of its layers, over its cache."""
  windows = config.windows or (0,) * config.layers
  if layers is not None:
    windows = tuple(windows[number] for number in layers)
  return Walk(windows=windows, passes=passes)


def _none(pair: "Pair", case: "Case", target, build: Build) -> Drafting:
  del pair, case, target, build
  return Drafting(proposer=NoProposer())


def _ngram(pair: "Pair", case: "Case", target, build: Build) -> Drafting:
  del build
  shortest, longest = pair.ngram
  return Drafting(
    proposer=Ngram(
      lookahead=_width(case),
      shortest=shortest,
      longest=longest,
      reads_source=target.reads_source,
    )
  )


def _draft_model(pair: "Pair", case: "Case", target, build: Build) -> Drafting:
  if pair.draft is None:
    raise ValueError("the pair has no draft model")
  model = build(pair.draft)
  return Drafting(
    proposer=DraftModel(
      model=model,
      lookahead=_width(case),
      vocab_size=target.vocab_size,
      siblings=case.siblings,
    ),
    shapes=model.shapes,
    reads=tuple(case.lookahead * one for one in reads(model)),
    walks=_each(model, walk(model.config, case.lookahead)),
    trips=_trips(case),
  )


def _each(model: decoder.Model, own: Walk) -> tuple[Walk, ...]:
  """A walk over each cache of a model's state: of the source, too."""
  return (own, own) if model.reads_source else (own,)


def _layer_skip(pair: "Pair", case: "Case", target, build: Build) -> Drafting:
  del build
  if pair.draft_layers is None:
    raise ValueError("the pair does not say which layers draft")
  chosen = pair.draft_layers
  layers = range(chosen) if isinstance(chosen, int) else chosen
  proposer = LayerSkip(
    model=target,
    layers=tuple(layers),
    lookahead=_width(case),
    vocab_size=target.vocab_size,
    siblings=case.siblings,
  )
  own = walk(target.config, case.lookahead, layers)
  again = {
    place: case.lookahead * one
    for place, one in enumerate(reads(target, layers))
  }
  return Drafting(
    proposer=proposer,
    variant=str(chosen) if isinstance(chosen, int) else _spelled(chosen),
    borrows=again,
    walks=() if proposer.is_prefix else _each(target, own),
    shared=own if proposer.is_prefix else None,
    trips=_trips(case),
  )


def _eagle(pair: "Pair", case: "Case", target, build: Build) -> Drafting:
  del build
  config = eagle.small(
    pair.target, fuses=pair.eagle == 3, draft_vocab=_drafted(pair)
  )
  model = eagle.build(config, target)
  passes = case.lookahead
  # EAGLE-3 fuses the target's states, which only the committed block has.
  own = [
    min(passes, 1) if config.fuses and path.startswith("fc.") else passes
    for path in model.head.paths
  ]
  return Drafting(
    proposer=Eagle(model=model, lookahead=_width(case), siblings=case.siblings),
    variant=_variant(pair, pair.eagle),
    walks=(walk(config.layer, passes),),
    trips=_trips(case),
    **_weights(model, own, passes),
  )


def _medusa(pair: "Pair", case: "Case", target, build: Build) -> Drafting:
  del build
  config = medusa.MedusaConfig(
    d_model=pair.target.d_model,
    vocab_size=pair.target.vocab_size,
    heads=pair.heads or kinds.MEDUSA_HEADS,
    shares=True,
    draft_vocab=_drafted(pair),
  )
  model = medusa.build(config, target)
  # heads.N.…: as many run as draft, and the table is read once for all.
  own = [
    float(int(path.split(".")[1]) < case.lookahead) for path in model.head.paths
  ]
  return Drafting(
    proposer=Medusa(
      model=model, lookahead=_width(case), siblings=case.siblings
    ),
    variant=_variant(pair, config.heads),
    trips=_trips(case),
    **_weights(model, own, min(case.lookahead, 1)),
  )


def _mtp(pair: "Pair", case: "Case", target, build: Build) -> Drafting:
  del build
  config = mtp.small(
    pair.target,
    depths=pair.heads or kinds.MTP_MODULES,
    draft_vocab=_drafted(pair),
  )
  model, depths = mtp.build(config, target), config.depths
  trips = _trips(case)
  # The draft of trip i is read by the modules from the (i+1)-th on, or by the
  # last: which of them a trip begins with.
  begins = [min(trip, depths - 1) for trip in range(1, trips + 1)]
  # The committed block is read by all.
  passes = [
    bool(case.lookahead) + sum(begin <= depth for begin in begins)
    for depth in range(depths)
  ]
  own = [passes[int(path.split(".")[1])] for path in model.head.paths]
  branches = [min(trip, depths) - 1 for trip in range(1, trips + 1)]
  shares = tuple(branches.count(n) / max(trips, 1) for n in range(depths))
  return Drafting(
    proposer=Mtp(model=model, lookahead=_width(case), siblings=case.siblings),
    variant=_variant(pair, depths),
    walks=tuple(walk(config.layer, one) for one in passes),
    trips=trips,
    shares=shares,
    **_weights(model, own, case.lookahead),
  )


def _weights(
  model: HeadModel, own: Sequence[float], guesses: float
) -> dict[str, object]:
  """Fields of `Drafting`: a head's parameters, and what it takes besides.

  Args:
    model: the head.
    own: how often the parameters of `model.head` are read.
    guesses: how often a table of ids is, which is not the head's own.
  """
  found = (*own, 0.0, float(guesses))[: len(model.shapes)]  # kept ids, and rows
  takes = not (model.is_reduced or getattr(model, "has_table", False))
  return dict(
    shapes=model.shapes,
    reads=tuple(map(float, found)),
    borrows={model.ends.head: float(guesses)} if takes else {},
  )


def _drafted(pair: "Pair") -> int | None:
  """Vd; None for all of the target's ids."""
  every = pair.vocabulary in (0, pair.target.vocab_size)
  return None if every else pair.vocabulary


def _variant(pair: "Pair", which: int) -> str:
  ids = _drafted(pair)
  return f"{which}" if ids is None else f"{which}, {ids} ids"


def _spelled(layers: Sequence[int]) -> str:
  return ",".join(map(str, layers))


def _width(case: "Case") -> int:
  """Of the engine's proposals: one that decodes plainly now may draft later."""
  return max(case.lookahead, 1)


def _trips(case: "Case") -> int:
  """Of the drafting loop: the first draft is known before it."""
  return max(case.lookahead - 1, 0)


# The names are those of --proposer. To add one: say how it is built from shapes
# and what it passes over; the step and the account need nothing else of it.
PROPOSERS: Mapping[
  str, Callable[["Pair", "Case", decoder.Model, Build], Drafting]
] = {
  "none": _none,
  "ngram": _ngram,
  "draft_model": _draft_model,
  "medusa": _medusa,
  "eagle": _eagle,
  "mtp": _mtp,
  "layer_skip": _layer_skip,
}
