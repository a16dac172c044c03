"""From what a user asks for to the proposer that drafts."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from specjax.heads import Head, load_draft
from specjax.models.int8 import quantised
from specjax.pretrained import Pretrained
from specjax.proposers import kinds
from specjax.proposers.base import Proposer
from specjax.proposers.draft_model import DraftModel
from specjax.proposers.eagle import Eagle
from specjax.proposers.layer_skip import LayerSkip
from specjax.proposers.medusa import Medusa
from specjax.proposers.mtp import Mtp
from specjax.proposers.ngram import Ngram
from specjax.proposers.none import NoProposer
from specjax.types import Params

PROPOSERS = tuple(kinds.KINDS)
DEFAULT_LOOKAHEAD = 4

Draft = Pretrained | Head
_HEADS = {"eagle": Eagle, "medusa": Medusa, "mtp": Mtp}


def draft_of(
  kind: str | Proposer, target: Pretrained, draft: Draft | None
) -> Draft | None:
  """What a proposer drafts with: what is given, or what the target carries.

  Raises:
    ValueError: it is not what this kind drafts with, or was made for another
      target; names both and the fix.
  """
  if not isinstance(kind, str):
    return draft
  if kind not in kinds.KINDS:
    raise ValueError(
      f"proposer is {kind!r}; give one of {', '.join(PROPOSERS)}"
    )
  known = kinds.KINDS[kind]
  if draft is None:
    if known.optional:
      return load_draft(kind, None, target)
    if known.reads:
      raise ValueError(f"proposer {kind!r} needs a draft: {known.reads}")
    return None
  if not known.reads:
    raise ValueError(f"proposer {kind!r} takes no draft; {_fitting(draft)}")
  own = draft.kind if isinstance(draft, Head) else "draft_model"
  if own != kind:
    raise ValueError(
      f"proposer {kind!r} does not draft with {draft.name!r}; {_fitting(draft)}"
    )
  if isinstance(draft, Pretrained):
    if target.tokenizer.fingerprint() != draft.tokenizer.fingerprint():
      raise ValueError(
        f"the draft {draft.name!r} and the target {target.name!r} have "
        "different tokenizers; a draft must share its target's"
      )
    if target.model.reads_source != draft.model.reads_source:
      names = (target.name, draft.name)
      one, other = names if target.model.reads_source else names[::-1]
      raise ValueError(
        f"draft_model: {one!r} has an encoder that reads the prompt and "
        f"{other!r} has none; give a draft of the target's kind"
      )
  elif draft.target is not target:
    raise ValueError(
      f"the head {draft.name!r} was opened for the target "
      f"{draft.target.name!r}, not for this {target.name!r}; give "
      "specjax.load_head(name, target)"
    )
  return draft


def _fitting(draft: Draft) -> str:
  if isinstance(draft, Head):
    return f"give proposer {draft.kind!r}, which drafts with {draft.name!r}"
  return (
    f"{draft.name!r} is a whole model, for 'draft_model'; a head is opened by "
    "specjax.load_head"
  )


def make(
  kind: str | Proposer,
  target: Pretrained,
  draft: Draft | None = None,
  *,
  lookahead: int | None = None,
  siblings: int = 0,
  ngram: Mapping[str, int] | None = None,
  layers: int | Sequence[int] | None = None,
) -> Proposer:
  """The proposer; its parameters are the draft's, `()` without one.

  Args:
    kind: one of PROPOSERS, or a proposer as it is.
    target: whom it drafts for.
    draft: from `draft_of`.
    lookahead: C; by default 4, or as many as there are Medusa heads.
    siblings: M, second guesses that the target reads beside the drafts; 0 for
      none.
    ngram: fields of `Ngram` beside.
    layers: of layer_skip: how many of the first, or which.

  Raises:
    ValueError: names the argument, its value and the fix.
  """
  if kind is None:
    raise ValueError("proposer is None; 'none' decodes plainly")
  if not isinstance(kind, str):
    given = (draft is not None, lookahead is not None, ngram, siblings, layers)
    if any(given):
      raise ValueError(
        f"the proposer {kind!r} takes no draft, lookahead, siblings, layers or "
        "n-gram sizes; make it with what it needs"
      )
    return kind
  if ngram and kind != "ngram":
    raise ValueError(f"proposer {kind!r} takes no n-gram sizes, only 'ngram'")
  if (layers is None) != (kind != "layer_skip"):
    raise ValueError(
      f"proposer {kind!r} takes no draft_layers, only 'layer_skip'"
      if layers is not None
      else "proposer 'layer_skip' needs draft_layers: how many of the first, "
      "as 8, or which, as (0, 1, 5)"
    )
  if siblings and not kinds.KINDS[kind].ranks:
    raise ValueError(
      f"siblings is {siblings}, but proposer {kind!r} has no second guesses; "
      "leave it out or choose a proposer that asks a model"
    )
  if not 0 <= siblings <= kinds.MOST_SIBLINGS:
    raise ValueError(f"siblings is {siblings}; give 0 to {kinds.MOST_SIBLINGS}")
  if kind == "none":
    if lookahead is not None:
      raise ValueError(
        f"lookahead is {lookahead}, but proposer 'none' drafts nothing; leave "
        "it out or choose a proposer"
      )
    return NoProposer()
  if lookahead is None:
    lookahead = DEFAULT_LOOKAHEAD
    if kind == "medusa":
      lookahead = min(lookahead, draft.model.config.heads)
  if lookahead < 1:
    raise ValueError(
      f"lookahead is {lookahead}; give >= 1, or proposer='none' to decode "
      "plainly"
    )
  vocab_size = target.model.vocab_size
  if kind == "ngram":
    source = target.model.reads_source
    return Ngram(lookahead=lookahead, reads_source=source, **(ngram or {}))
  if kind == "layer_skip":
    return LayerSkip(
      model=target.model,
      layers=_numbers(layers),
      lookahead=lookahead,
      vocab_size=vocab_size,
      siblings=siblings,
    )
  if kind == "draft_model":
    return DraftModel(
      model=draft.model,
      lookahead=lookahead,
      vocab_size=vocab_size,
      siblings=siblings,
    )
  return _HEADS[kind](model=draft.model, lookahead=lookahead, siblings=siblings)


def check_weights(
  kind: str | Proposer, target: Pretrained, weights: str | None
) -> None:
  """Refuses weights that a draft cannot have.

  Raises:
    ValueError: names the value and the fix.
  """
  if weights is None:
    return
  if weights not in kinds.WEIGHTS:
    raise ValueError(
      f"draft_weights is {weights!r}; give {', '.join(kinds.WEIGHTS)}, or leave"
      " it out for weights as they are"
    )
  if not isinstance(kind, str) or not kinds.KINDS[kind].reads:
    raise ValueError(
      f"draft_weights is {weights!r}, but proposer {kind!r} has no weights of"
      " its own; leave it out"
    )
  if target.model.placement is not None:
    raise ValueError(
      f"draft_weights {weights!r} are for one device; leave it out with a mesh"
    )


def shapes_of(model: Any, weights: str | None) -> tuple:
  """Shapes of what `params_of` gives for a draft's model; nothing is read."""
  if weights is None:
    return model.shapes
  one = lambda params: quantised(model.paths, params)
  return jax.eval_shape(one, tuple(model.shapes))


def params_of(draft: Draft, weights: str | None) -> Params:
  """A draft's parameters, as they are or rounded to one of `kinds.WEIGHTS`."""
  if weights is None:
    return draft.params
  return quantised(draft.model.paths, draft.params)


def _numbers(layers: int | Sequence[int]) -> tuple[int, ...]:
  """The numbers of the layers that draft."""
  if isinstance(layers, str):
    raise ValueError(
      f"draft_layers is {layers!r}; give a number, or numbers as (0, 1, 5)"
    )
  if isinstance(layers, int):
    return tuple(range(layers))
  return tuple(layers)
