"""Training that goes on from what was trained before, on other data or longer.

Only the weights are taken over: the optimizer begins anew, so the learning rate
should be lower than a first training's. A run that was ended goes on by itself
(`trainer`), to the very same weights.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from specjax.checkpoints import shards
from specjax.heads import Head, load_draft
from specjax.pretrained import Pretrained
from specjax.training.chain import Chain
from specjax.training.draft import Draft


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begun:
  """What was trained before.

  Attributes:
    name: as it was asked for.
    kept: int32 [Vd], the target's ids that it drafts; None for all.
    params: float32, by name.
  """

  name: str
  kept: np.ndarray | None
  params: Mapping[str, np.ndarray]


def read(name: str, kind: str, target: Pretrained) -> Begun:
  """Opens a folder and reads its weights.

  Args:
    name: as `heads.load_draft` takes it.
    kind: the proposer that it drafts with.
    target: whom it drafts for.

  Raises:
    As `heads.load_draft`.
  """
  try:
    found = load_draft(kind, name, target)
  except (ValueError, OSError) as error:
    raise type(error)(f"--start_from={name}: {error}") from None
  is_head = isinstance(found, Head)
  paths = found.model.head.paths if is_head else found.model.paths
  values = [
    shards.gathered(value).astype(np.float32)
    for value in found.params[: len(paths)]
  ]
  return Begun(
    name=name,
    kept=found.opened.kept if is_head else None,
    params=dict(zip(paths, values, strict=True)),
  )


def check_vocabulary(before: Begun, count: int) -> np.ndarray | None:
  """Its list of ids, which stays: int32 [Vd], or None for all.

  Raises:
    ValueError: another number of them is asked for.
  """
  own = 0 if before.kept is None else len(before.kept)
  if count not in (0, own):
    raise ValueError(
      f"--vocabulary={count}: --start_from={before.name} drafts"
      f" {own or 'all'} ids, and its list stays; leave it out"
    )
  return before.kept


def chain(made: Chain, before: Begun) -> Chain:
  """A head's training, begun with these weights.

  Raises:
    ValueError: it has another form; names what differs.
  """
  shapes = [spec.shape for spec in made.model.head.shapes]
  found = _taken(before, made.model.head.paths, shapes)
  return dataclasses.replace(made, first=found)


def draft(made: Draft, before: Begun) -> Draft:
  """A draft model's training, begun with these weights; errors as `chain`."""
  own = made.init(0)
  shapes = [value.shape for value in own.values()]
  found = _taken(before, tuple(own), shapes)
  return dataclasses.replace(made, first=dict(zip(own, found, strict=True)))


def _taken(
  before: Begun, paths: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
  wanted = dict(zip(paths, shapes, strict=True))
  theirs = {path: value.shape for path, value in before.params.items()}
  for path in (*wanted, *theirs):
    if wanted.get(path) != theirs.get(path):
      sizes = [x.get(path, "not there") for x in (theirs, wanted)]
      raise ValueError(
        f"--start_from={before.name}: its {path} is {sizes[0]}, and in what is"
        f" to be trained {sizes[1]}; give the settings that it was trained with"
      )
  return [before.params[path] for path in paths]
