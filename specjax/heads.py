"""What drafts for a target, opened: a head, or a draft that borrows from it."""

import dataclasses
import functools
import os
from typing import Any

import jax

from specjax.checkpoints import heads, hf, locate
from specjax.pretrained import Pretrained, load
from specjax.proposers import kinds
from specjax.types import Params


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
  """What a proposer drafts with beside a target; its weights when first asked.

  Attributes:
    name: as it was asked for.
    kind: the proposer that drafts with it, one of `proposers.kinds.KINDS`.
    target: whom it drafts for, and some of whose weights it uses.
    opened: its folder, checked against the target.
  """

  name: str
  kind: str
  target: Pretrained
  opened: heads.HeadFolder = dataclasses.field(repr=False)

  @property
  def folder(self) -> str:
    """Where it lies."""
    return self.opened.folder

  @property
  def model(self) -> Any:
    """Its shapes and pure functions."""
    return self.opened.model

  @functools.cached_property
  def params(self) -> Params:
    """The weights, and what it takes of the target's; read at first use."""
    return self.opened.params(self.target.params)

  @property
  def is_padded(self) -> bool:
    """Whether it has more heads than its folder: never."""
    return False

  @property
  def loaded_bytes(self) -> int:
    """Bytes of the weights in this process, if they have been read; else 0."""
    shards = (
      shard
      for param in jax.tree.leaves(vars(self).get("params", ()))
      for shard in param.addressable_shards
    )
    return sum(shard.data.nbytes for shard in shards)

  def of(self, target: Pretrained) -> "Head":
    """The same for its target in another dtype; itself where it is that one."""
    if target is self.target:
      return self
    build = heads.KINDS[self.kind].build
    model = build(self.model.config, target.model)
    opened = dataclasses.replace(self.opened, model=model)
    return dataclasses.replace(self, target=target, opened=opened)


def load_head(
  name: str | os.PathLike, target: Pretrained, *, kind: str | None = None
) -> Head:
  """Opens what drafts for a target: a head, or a draft that borrows from it.

  It runs in the target's dtype, and is split over the mesh as the target is.

  Args:
    name: a folder, a name of `specjax.shipped`, a hub id or a gs:// path.
    target: whom it is to draft for.
    kind: the proposer that is to draft with it; what the folder says itself
      unless given.

  Raises:
    ValueError: it is for another proposer or another target, or cannot be
      followed; names both, and no weights have been read.
    CheckpointError: its tensors are not those that its config speaks of.
    FileNotFoundError, ConnectionError: it cannot be had.
  """
  found = locate.find(name, ranged=target.model.placement is not None)
  own = os.path.realpath(found.folder) == os.path.realpath(target.folder)
  said = kinds.said(hf.read_config(found.folder))
  if said == "draft_model" and not heads.needs_target(found.folder):
    if kind in (None, "draft_model"):
      raise ValueError(
        f"{name}: a whole model; give specjax.load({str(name)!r}) as the draft "
        "of proposer 'draft_model'"
      )
  # Any whole model may carry the modules of mtp.
  fits = said in (None, kind) or (kind, said) == ("mtp", "draft_model")
  if kind is not None and not fits:
    raise ValueError(
      f"{name}: it is what proposer {said!r} drafts with, not {kind!r}; give "
      f"proposer {said!r}"
    )
  kind = kind or said
  if kind is None:
    raise ValueError(
      f"{name}: its config.json does not say which proposer drafts with it; "
      f"give kind, one of {', '.join(heads.KINDS)}"
    )
  if target.model.reads_source and kind in ("draft_model", "mtp"):
    raise ValueError(
      f"{name}: as {kind!r} it is for decoders alone, and {target.name} has an "
      "encoder; give proposer 'draft_model' with a whole encoder-decoder, "
      "'medusa' or 'eagle'"
    )
  try:
    opened = heads.open_head(
      found.folder,
      target.model,
      kind=kind,
      tokenizer=target.tokenizer.fingerprint(),
      url=found.url,
      name=str(name),
    )
  except ValueError as error:
    whose = "" if own else f" (the target is {target.name})"
    damaged = isinstance(error, heads.CheckpointError)
    raised = heads.CheckpointError if damaged else ValueError
    raise raised(f"{error}{whose}") from None
  return Head(name=str(name), kind=kind, target=target, opened=opened)


def load_draft(
  kind: str, name: str | os.PathLike | None, target: Pretrained, **options
) -> Pretrained | Head:
  """Opens whatever a kind of proposer drafts with.

  Args:
    kind: one of `proposers.kinds.KINDS` that reads a folder.
    name: as `load` and `load_head` take it; None for what the target's own
      folder has.
    target: whom it drafts for.
    **options: of `load`, for a whole draft model; a head follows the target.

  Raises:
    As `load` and `load_head`.
  """
  if kind == "draft_model":
    # As `load` will look for it, so that nothing is fetched twice.
    ranged = options.get("mesh") is not None
    folder = locate.find(name, ranged=ranged).folder
    if kinds.said(hf.read_config(folder)) in (None, kind):
      if not heads.needs_target(folder):
        return load(name, **options)
  return load_head(target.name if name is None else name, target, kind=kind)
