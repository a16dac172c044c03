"""Who drafts, as the lab accounts for it: one entry a kind of proposer."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from specjax.models import decoder
from specjax.models.config import DecoderConfig
from specjax.proposers.base import Proposer
from specjax.proposers.draft_model import DraftModel
from specjax.proposers.ngram import Ngram
from specjax.proposers.none import NoProposer
from specjax.types import Params

if TYPE_CHECKING:
  from specjax.lab.lower import Case, Pair

# A model of a config, split as the case's draft is.
Build = Callable[[DecoderConfig], decoder.Model]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drafting:
  """A proposer, and what an account of its step must know of it.

  Attributes:
    proposer: as an engine runs it.
    shapes: of its parameters.
    model: whose parameters and cache a draft passes over; None where a
      proposer has neither.
    passes: how often a step passes over them.
    trips: how often the loop in the scope "draft" runs.
  """

  proposer: Proposer
  shapes: Params = ()
  model: Any = None
  passes: int = 0
  trips: int = 0


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
      model=model, lookahead=_width(case), vocab_size=target.vocab_size
    ),
    shapes=model.shapes,
    model=model,
    passes=case.lookahead,
    # The first draft is drawn from what the committed block's pass predicted.
    trips=max(case.lookahead - 1, 0),
  )


def _width(case: "Case") -> int:
  """Of the engine's proposals: one that decodes plainly now may draft later."""
  return max(case.lookahead, 1)


# The names are those of --proposer. To add one: say how it is built from shapes
# and what it passes over; the step and the account need nothing else of it.
PROPOSERS: Mapping[
  str, Callable[["Pair", "Case", decoder.Model, Build], Drafting]
] = {"none": _none, "ngram": _ngram, "draft_model": _draft_model}
