"""Objectives of a target, each from the few choices that its kind leaves."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specjax.checkpoints import hf, shards
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.models.config import DecoderConfig
from specjax.models.families import FAMILIES
from specjax.models.heads import eagle, medusa, mtp
from specjax.pretrained import Pretrained
from specjax.sharding.placement import Placement
from specjax.training import chain, fitting, packing, starts
from specjax.training.data import Corpus
from specjax.training.draft import Draft
from specjax.training.objective import Law

_MODULES = "num_nextn_predict_layers"


# What a block's parts end in: with these weights 0, they add nothing.
_LAST_PRODUCTS = ("attention.o", "cross.o", "mlp.down")
_LAST_NORMS = ("attention_post_norm", "mlp_post_norm")


def kept_ids(
  corpus: Corpus, target: Pretrained, count: int, *, prompts: bool
) -> np.ndarray | None:
  """The ids to draft: the most frequent ones, and those that end a text.

  Args:
    corpus: where they are counted: of what is to be predicted.
    target: whose ids they are.
    count: Vd; 0 for all.
    prompts: whether prompts are to be predicted too.

  Returns:
    int32 [Vd], ascending; None for all.

  Raises:
    ValueError: the target has fewer.
  """
  size = target.model.config.vocab_size
  if count > size:
    raise ValueError(
      f"--vocabulary={count} is more than the {size} of {target.name}; give"
      " fewer, or 0"
    )
  if not count or count == size:
    return None
  counts = corpus.counts(size, prompts=prompts)
  ends = [i for i in target.tokenizer.eos_ids if i < size]
  counts[ends] = counts.max() + 1
  # Of equally many the lowest: byte-level vocabularies begin with the bytes.
  order = np.lexsort((np.arange(size), -counts))
  return np.sort(order[:count]).astype(np.int32)


def draft(
  target: Pretrained,
  law: Law,
  weights: dict[str, float],
  *,
  placement: Placement | None,
  layers: Sequence[int] | None = None,
  size: Mapping[str, int] | None = None,
  ends: str | None = None,
  dtype: str = "float32",
  seed: int = 0,
  fitted_to: packing.Rows | None = None,
) -> Draft:
  """A draft model: some of the target's layers, or one of another size.

  Args:
    target: whose drafts it will make.
    law: of the target, with the kept ids.
    weights: of the losses.
    placement: of the draft, or None.
    layers: of the target, ascending, that it begins as. One that is repeated
      is first itself and then adds nothing: a deeper model begins as the same
      function (block expansion; Wu et al. 2024, LLaMA Pro, section 3.1).
    size: or what changes the target's config.json, to begin at random.
    ends: "target" or "own" embedding and head, or "head": the target's
      embedding and a head of its own; the target's where the width is the same
      if None.
    dtype: of the file.
    seed: of what begins at random, and of what it is fitted to.
    fitted_to: what a head of its own begins with a least-squares fit to, or
      None.

  Raises:
    ValueError: names the setting that cannot be.
  """
  own = target.model.config
  content = hf.read_config(target.folder)
  if _MODULES in content:  # They stay with the target.
    content[_MODULES] = 0
  if layers is not None:
    content, config = _of_layers(target, content, layers)
  else:
    content, config = _of_size(target, content, size or {})
  same = config.d_model == own.d_model
  if ends in ("target", "head") and not same:
    raise ValueError(
      f"--ends={ends} needs the target's width, and the draft's is"
      f" {config.d_model} where that of {target.name} is {own.d_model}; give"
      " --ends=own"
    )
  own_head = ends == "head"
  if own_head:
    config = dataclasses.replace(config, tied=False)
  model = decoder.build(
    config, dtype=target.model.dtype, placement=placement, name="the draft"
  )
  first = None
  if layers is not None:
    first = _taken(target, model, layers)
    if own_head:
      first.pop("head.weight")
  made = Draft(
    model=model,
    config=content,
    law=law,
    weights=weights,
    thin=same if ends is None else ends != "own",
    target=target,
    frozen=law.frozen(target.params),
    dtype=dtype,
    first=first,
    own_head=own_head,
  )
  if fitted_to is None:
    return made
  first = made.init(seed)
  pairs = fitting.of_draft(made.read, law)
  first["head.weight"] @= fitting.solve(
    pairs, (first, made.frozen), fitted_to, seed=seed
  )
  return dataclasses.replace(made, first=first)


def head(
  kind: str,
  target: Pretrained,
  kept: np.ndarray | None,
  stored: tuple[int, ...],
  weights: Mapping[str, float],
  *,
  seed: int = 0,
  fuses: bool = False,
  steps: int = 1,
  start_layer: int | None = None,
  decay: float = 0.8,
  dtype: str = "float32",
  fitted_to: packing.Rows | None = None,
) -> chain.Chain:
  """A head on the target's states.

  Args:
    kind: "eagle", "medusa" or "mtp".
    target: whose states it reads.
    kept: int32 [Vd], ascending ids to draft; None for all.
    stored: layers whose states the data have.
    weights: of the losses.
    seed: of what begins at random.
    fuses: EAGLE-3 instead of EAGLE-1.
    steps: that are trained: EAGLE's own, Medusa's heads, or modules.
    start_layer: of the target, which a layer of EAGLE-3 or mtp begins as; None
      for a random one.
    decay: see `chain.Chain`.
    dtype: of the file.
    fitted_to: what EAGLE-1 begins with a least-squares fit to, or None.

  Raises:
    ValueError: names the setting that cannot be.
  """
  own = target.model.config
  size = None if kept is None else len(kept)
  if kind == "eagle":
    config = eagle.small(own, fuses=fuses, draft_vocab=size)
    model = eagle.build(config, target.model)
    run, layers = chain.eagle(model, steps), config.features
  elif kind == "mtp":
    config = mtp.small(own, depths=steps, draft_vocab=size)
    model = mtp.build(config, target.model)
    run, layers = chain.mtp(model), config.features
  else:
    # Tables of their own would be most of the file, and of the work.
    config = medusa.MedusaConfig(
      d_model=own.d_model,
      vocab_size=own.vocab_size,
      heads=steps,
      shares=True,
      draft_vocab=size,
    )
    model = medusa.build(config, target.model)
    run, layers = chain.medusa(model), model.features
  if layers[-1] != own.layers:
    layers = (*layers, own.layers)
  law = Law(target=target.model, kept=kept, layers=layers, stored=stored)
  frozen = law.frozen(target.params)
  if kind == "eagle":
    product = None
    if fitted_to is not None:
      pairs = fitting.of_eagle(model, law)
      product = fitting.solve(pairs, frozen, fitted_to, seed=seed)
    first = starts.eagle(model, target, law, seed, start_layer, product)
  elif kind == "mtp":
    first = starts.mtp(model, target, law, seed, start_layer)
  else:
    first = model.begin(target.params, kept)
  whole = model.complete(first, target.params, kept)
  extras = whole[len(model.head.paths) :]
  return chain.Chain(
    kind=kind,
    model=model,
    steps=run,
    law=law,
    weights=weights,
    decay=decay,
    target=target,
    first=[shards.gathered(value) for value in first],
    frozen=frozen | {"extras": extras},
    dtype=dtype,
    scales=starts.scales(model, target) if kind == "eagle" else {},
  )


def _of_layers(
  target: Pretrained, content: dict[str, Any], layers: Sequence[int]
) -> tuple[dict[str, Any], DecoderConfig]:
  """The config of some of a target's layers, as a file and as read."""
  own, numbers = target.model.config, list(layers)
  spelled = ",".join(map(str, numbers))
  if numbers != sorted(numbers) or numbers[-1] >= own.layers:
    raise ValueError(
      f"--layers={spelled}: {target.name} has {own.layers} layers; give"
      f" numbers from 0 to {own.layers - 1}, none less than the one before"
    )
  windows = tuple(own.windows[n] for n in numbers) if own.windows else ()
  wanted = dataclasses.replace(own, layers=len(numbers), windows=windows)
  if own.encoder_layers:  # Of the decoder: the encoder stays whole.
    key = "num_decoder_layers"
  else:
    key = FAMILIES[own.architecture].keys["layers"]
  changed = content | {key: len(numbers)}
  if isinstance(kinds := content.get("layer_types"), list):
    changed["layer_types"] = [kinds[n] for n in numbers]
  try:
    read = config_lib.from_hugging_face(changed)
  except ValueError:
    read = None
  if read != wanted:
    raise ValueError(
      f"--layers={spelled}: the config.json of a {own.architecture} cannot say"
      " that these are its layers; give --size"
    )
  return changed, wanted


def _of_size(
  target: Pretrained, content: dict[str, Any], size: Mapping[str, int]
) -> tuple[dict[str, Any], DecoderConfig]:
  """The target's config with other sizes, as a file and as read."""
  for key in size:
    if type(content.get(key)) is not int:
      raise ValueError(
        f"--size={key}:{size[key]}: {target.name} has no such size; its"
        " config.json has "
        + ", ".join(k for k, v in content.items() if type(v) is int)
      )
  changed = content | dict(size)
  # A head's size that is written down would outlive another width.
  if (
    "head_dim" in changed
    and "head_dim" not in size
    and ({"hidden_size", "num_attention_heads"} & set(size))
  ):
    changed["head_dim"] = (
      changed["hidden_size"] // changed["num_attention_heads"]
    )
  try:
    config = config_lib.from_hugging_face(changed)
  except ValueError as error:
    spelled = ",".join(f"{k}:{v}" for k, v in size.items())
    raise ValueError(f"--size={spelled}: {error}") from None
  if config.vocab_size != target.model.config.vocab_size:
    raise ValueError(
      f"--size=vocab_size:{config.vocab_size} is not the target's; leave it"
      " out, or give --vocabulary"
    )
  return changed, config


def _taken(
  target: Pretrained, model: decoder.Model, layers: Sequence[int]
) -> dict[str, np.ndarray]:
  """A draft's parameters out of the target's, in float32."""
  theirs = dict(zip(target.model.paths, target.params, strict=True))
  config = target.model.config
  # A norm behind a product of almost nothing would make it large.
  last = _LAST_NORMS if config.post_norms else _LAST_PRODUCTS
  silent = -1.0 if config.post_norms and config.norm == "rms_plus_one" else 0.0
  found = {}
  for path in model.paths:
    source, is_silent = path, False
    if path == "head.weight" and target.model.config.tied:
      source = "embed.weight"
    if path.startswith("layers."):
      _, number, rest = path.split(".", 2)
      source = f"layers.{layers[int(number)]}.{rest}"
      again = layers[int(number)] in layers[: int(number)]
      is_silent = again and rest.rpartition(".")[0] in last
    value = shards.gathered(theirs[source]).astype(np.float32)
    found[path] = np.full_like(value, silent) if is_silent else value
  return found
