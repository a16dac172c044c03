"""Folders of what drafts with a target: heads of every kind, both ways.

A folder has config.json and model.safetensors in the layout that is published
for its kind, and, where the vocabulary is reduced, the tensor `d2t`. All is
checked against the target before any weight is read.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import (
  fits,
  folders,
  head_configs,
  head_layouts,
  hf,
  keymaps,
  regions,
  shards,
  tensor_files,
)
from specjax.checkpoints.head_layouts import OFFSETS, HeadLayout
from specjax.checkpoints.tensor_files import CheckpointError
from specjax.models import decoder
from specjax.models.config import DecoderConfig
from specjax.models.heads import eagle, medusa, mtp, thin
from specjax.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
  """One kind of head.

  A head's model has `config`, `dtype`, `head` (the `models.heads.module.Head`
  of what is in the file), `draft_vocab`, `is_reduced`, `shapes`, `shardings`
  and `complete(head_params, target_params, kept)`.

  Attributes:
    read: (content of config.json, shapes of the tensors, the target's config)
      to the head's config.
    build: (config, target, dtype=) to the head's model.
    layout: of a head's config.
    content: what `read` reads, of a head's config.
  """

  read: Callable[[Mapping[str, Any], head_configs.Shapes, DecoderConfig], Any]
  build: Callable[..., Any]
  layout: Callable[[Any], HeadLayout]
  content: Callable[[Any], dict[str, Any]]


def _eagle_layout(config: eagle.EagleConfig) -> HeadLayout:
  return head_layouts.EAGLE3 if config.fuses else head_layouts.EAGLE


def _medusa_layout(config: medusa.MedusaConfig) -> HeadLayout:
  return head_layouts.medusa(config.blocks, config.prefix)


def _mtp_layout(config: mtp.MtpConfig) -> HeadLayout:
  return head_layouts.MTP_WITHIN if config.is_within else head_layouts.MTP


KINDS: dict[str, Kind] = {
  "eagle": Kind(
    read=head_configs.read_eagle,
    build=eagle.build,
    layout=_eagle_layout,
    content=head_configs.eagle_content,
  ),
  "medusa": Kind(
    read=head_configs.read_medusa,
    build=medusa.build,
    layout=_medusa_layout,
    content=head_configs.medusa_content,
  ),
  "mtp": Kind(
    read=head_configs.read_mtp,
    build=mtp.build,
    layout=_mtp_layout,
    content=head_configs.mtp_content,
  ),
  # A draft model that takes its ends from the target, or a reduced vocabulary.
  "draft_model": Kind(
    read=head_configs.read_draft,
    build=thin.build,
    layout=lambda config: head_layouts.of_model(config.decoder),
    content=head_configs.draft_content,
  ),
}


def needs_target(folder: os.PathLike | str) -> bool:
  """Whether a draft model's folder is one that `open_head` opens.

  Others are whole models.

  Raises:
    FileNotFoundError, ValueError: there is no config.json that can be read.
  """
  content = hf.read_config(folder)
  keys = (head_configs.PROPOSER, head_configs.EMBEDDINGS)
  return any(key in content for key in keys)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadFolder:
  """A head's folder, opened and found to fit; its weights are not read yet.

  Attributes:
    name: what errors call it.
    folder: where it lies.
    url: where its weights lie, if not in the folder.
    kind: one of KINDS.
    model: the head's model; see `Kind`.
    kept: int64 [Vd], ascending: the target's ids that it can draft; None where
      it can all.
  """

  name: str
  folder: str
  url: str | None
  kind: str
  model: Any = dataclasses.field(repr=False)
  kept: np.ndarray | None = dataclasses.field(repr=False)

  def params(self, target_params: Params) -> Params:
    """Reads the weights; all that the proposer needs, see `complete`."""
    sources = _sources(self.kind, self.model)
    places = shards.shardings_of(self.model.head)
    with contextlib.ExitStack() as stack:
      files = tensor_files.open_folder(
        pathlib.Path(self.folder), stack, url=self.url
      )
      read = lambda source: functools.partial(
        _read, files[source.names[0]], source, self.model.dtype
      )
      found = tuple(
        shards.load(source.shape, place, read(source))
        for source, place in zip(sources, places, strict=True)
      )
    kept = None
    if self.kept is not None:
      kept = jnp.asarray(self.kept.astype(np.int32))
    return self.model.complete(found, target_params, kept)


def open_head(
  folder: os.PathLike | str,
  target: decoder.Model,
  *,
  kind: str,
  tokenizer: str | None = None,
  dtype: Any = None,
  url: str | None = None,
  name: str | None = None,
) -> HeadFolder:
  """Opens a head's folder and checks it against the target.

  Args:
    folder: with config.json and model.safetensors (or shards and an index).
    target: what it is to draft for.
    kind: one of KINDS.
    tokenizer: the target's `Tokenizer.fingerprint()`.
    dtype: of the parameters; the target's unless given.
    url: where the weights lie, if not in the folder.
    name: what errors call it; the folder unless given.

  Raises:
    FileNotFoundError, ConnectionError: it cannot be had.
    ValueError: its config cannot be followed, or it was made for another kind
      of proposer or another target; names the key and both values.
    CheckpointError: tensors are missing, unexpected, or of another shape or
      type, all of them listed in one message; or d2t is no such list of ids.
  """
  folder = pathlib.Path(folder)
  name = str(folder if name is None else name)
  content = hf.read_config(folder)
  known = KINDS[kind]
  with contextlib.ExitStack() as stack:
    files = tensor_files.open_folder(folder, stack, url=url)
    shapes = {entry.name: entry.shape for entry in files.values()}
    try:
      head_configs.check_target(content, kind, target.config, tokenizer)
      config = known.read(content, shapes, target.config)
      model = known.build(config, target, dtype=dtype)
    except ValueError as error:
      raise ValueError(f"{name}: {error}") from None
    _require(name, kind, model, target, files)
    kept = _kept(name, model, files.get(OFFSETS))
  return HeadFolder(
    name=name, folder=str(folder), url=url, kind=kind, model=model, kept=kept
  )


def save_head(
  folder: os.PathLike | str,
  kind: str,
  model: Any,
  head_params: Sequence[jax.Array],
  *,
  target: DecoderConfig,
  tokenizer: str | None = None,
  kept: np.ndarray | None = None,
  content: Mapping[str, Any] | None = None,
  dtype: Any = None,
  others: Mapping[str, bytes] | None = None,
  overwrite: bool = False,
) -> None:
  """Writes a head's folder, which `open_head` opens.

  Args:
    folder: made if it is not there.
    kind: one of KINDS.
    model: the head's model.
    head_params: in the order of `model.head.paths`; extras behind them are
      left out, since they are the target's.
    target: the config of the target that it was made for.
    tokenizer: that one's `Tokenizer.fingerprint()`.
    kept: int [Vd], ascending; None where the vocabulary is not reduced.
    content: of config.json, made from the model's config unless given; what
      it was made for is added.
    dtype: of the file; the model's own unless given.
    others, overwrite: as in `folders.write`, whose errors these are.
  """
  known = KINDS[kind]
  assert (kept is not None) == model.is_reduced
  found = _sources(kind, model)
  pieces = keymaps.pieces(found)
  shapes = {source.names[0]: source.file_shape for source in found}
  types = {} if kept is None else {OFFSETS: np.int64}
  if kept is not None:
    shapes[OFFSETS] = (len(kept),)

  def tensors():
    for name, parts in pieces.items():
      whole = [shards.gathered(head_params[number]) for number, _ in parts]
      yield name, found[parts[0][0]].transform.to_file(whole)
    if kept is not None:
      yield OFFSETS, np.asarray(kept, np.int64) - np.arange(len(kept))

  about = {
    "kind": kind,
    "target": head_configs.target_content(target, tokenizer),
  }
  own = known.content(model.config) if content is None else content
  content = {**own, head_configs.PROPOSER: about}
  shards.write_once(
    tensors(),
    lambda stream: folders.write(
      folder,
      shapes,
      stream,
      config=content,
      dtype=np.dtype(model.dtype if dtype is None else dtype),
      others=others,
      overwrite=overwrite,
      types=types,
    ),
  )


def _sources(kind: str, model: Any) -> list[keymaps.Source]:
  head, layout = model.head, KINDS[kind].layout(model.config)
  shapes = [spec.shape for spec in head.shapes]
  return keymaps.sources(head.paths, shapes, table=layout.table)


def _require(
  name: str,
  kind: str,
  model: Any,
  target: decoder.Model,
  files: Mapping[str, tensor_files.Entry],
) -> None:
  """Checks that the tensors are exactly the head's."""
  layout = KINDS[kind].layout(model.config)
  wanted = {s.names[0]: s.file_shape for s in _sources(kind, model)}
  specs = dict(zip(target.paths, target.shapes, strict=True))
  for repeat, path in layout.repeats.items():
    if repeat in files and path in specs and repeat not in wanted:
      wanted[repeat] = specs[path].shape
  there = {
    entry.name: entry
    for entry in files.values()
    if entry.name in wanted or not layout.says_nothing(entry.name)
  }
  there.pop(OFFSETS, None)  # see `_kept`
  shapes = {entry.name: entry.shape for entry in there.values()}
  codes = {entry.name: entry.code for entry in there.values()}
  fits.require(name, wanted, shapes, codes, tuple(tensor_files.DTYPES))


def _kept(
  name: str, model: Any, entry: tensor_files.Entry | None
) -> np.ndarray | None:
  """The ids that can be drafted, from their offsets."""
  size, vocab = model.draft_vocab, model.vocab_size
  if entry is None:
    if model.is_reduced:
      raise CheckpointError(
        f"{name} does not fit the model: 1 missing: {OFFSETS}, which says "
        f"which {size} of the target's {vocab} ids are drafted"
      )
    return None
  types = {"I64": np.int64, "I32": np.int32}
  if entry.code not in types or entry.shape != (size,):
    raise CheckpointError(
      f"{name}: tensor {OFFSETS} is {entry.code} {tuple(entry.shape)}; "
      f"expected I64 ({size},)"
    )
  raw = np.empty(entry.nbytes, np.uint8)
  entry.fill(raw, 0)
  ids = raw.view(types[entry.code]).astype(np.int64) + np.arange(size)
  if ids[0] < 0 or ids[-1] >= vocab or (np.diff(ids) <= 0).any():
    raise CheckpointError(
      f"{name}: tensor {OFFSETS} does not give {size} ids in rising order "
      f"below {vocab}"
    )
  return ids if model.is_reduced else None


def _read(
  entry: tensor_files.Entry,
  source: keymaps.Source,
  dtype: Any,
  part: shards.Part,
) -> np.ndarray:
  out = tensor_files.empty([axis.stop - axis.start for axis in part], dtype)
  regions.read(entry, source, part, out)
  return out
