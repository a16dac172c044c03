"""A draft model of its own: a few layers, alone or between the target's ends.

With the target's ends ("thin"), embedding and head are the target's own, are
not trained and are not written: a small draft is mostly embedding otherwise.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import folders, head_configs, heads, hf, shards
from specjax.models import decoder
from specjax.models.heads import thin
from specjax.pretrained import Pretrained
from specjax.sharding.placement import Placement
from specjax.training import losses, starts
from specjax.training.objective import (
  Law,
  Metrics,
  judged,
  logits_over,
  metric,
  read,
)
from specjax.types import Array

_EMBED, _HEAD = "embed.weight", "head.weight"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Draft:
  """Trains a draft model; see `training.objective.Objective`.

  Attributes:
    model: the draft, in the dtype of the arithmetic.
    config: the content of its config.json.
    law: the target's.
    weights: of the losses.
    thin: whether its embedding is the target's, and so its head.
    own_head: whether a thin one's head is its own nevertheless; it begins as
      the target's rows of the kept ids.
    first: parameters at the beginning, by name; random where there are none.
    target: the checkpoint, for what goes with the draft.
    frozen: see `Law.frozen`.
    dtype: of the file.
  """

  model: decoder.Model
  config: Mapping[str, Any]
  law: Law
  weights: dict[str, float]
  thin: bool
  target: Pretrained
  frozen: dict[str, Any]
  dtype: str = "float32"
  first: Mapping[str, np.ndarray] | None = None
  own_head: bool = False

  @property
  def scales(self) -> dict[str, np.ndarray]:
    """Norms stand before all products: all weights are of one size."""
    return {}

  @property
  def placement(self) -> Placement | None:
    """The draft's."""
    return self.model.placement

  @property
  def axes(self) -> dict[str, Sequence[str]]:
    """Logical axes of what is trained."""
    pairs = zip(self.model.paths, self.model.axes, strict=True)
    return {path: names for path, names in pairs if self._is_trained(path)}

  def init(self, seed: int) -> dict[str, np.ndarray]:
    """See the Protocol."""
    found: Mapping[str, np.ndarray]
    if self.first is not None:
      found = self.first
    else:
      found = self._drawn(seed)
    if self.own_head:
      rows = self.frozen.get("rows", self.frozen["target"][self.law.head])
      found = {_HEAD: shards.gathered(rows).astype(np.float32)} | dict(found)
    return {name: np.asarray(found[name]) for name in self.axes}

  def _drawn(self, seed: int) -> dict[str, np.ndarray]:
    """Random parameters, in float32; none of what begins as the target's."""
    shapes = {
      path: jax.ShapeDtypeStruct(spec.shape, jnp.float32)
      for path, spec in zip(self.model.paths, self.model.shapes, strict=True)
      if not (self.thin and path in (_EMBED, _HEAD))
    }
    drawing = dataclasses.replace(
      self.model,
      placement=None,
      paths=tuple(shapes),
      shapes=tuple(shapes.values()),
    )
    values = drawing.init(seed)
    found = dict(zip(shapes, map(np.asarray, values), strict=True))
    return starts.scaled(self.model.config, found)

  def read(
    self, params: dict[str, Array], frozen: Any, batch: dict[str, Array]
  ) -> Array:
    """What the draft's head reads at every position: [B, T, D], normed."""
    own = self._merged(params, frozen)
    return own.norm(self._last(own, batch))

  def _merged(self, params: dict[str, Array], frozen: Any) -> Any:
    """The draft with its own parameters and what it borrows."""
    model, target = self.model, frozen["target"]
    ends = {_EMBED: self.law.embedding, _HEAD: self.law.head}
    return model.merge(
      [
        params[path].astype(model.dtype)
        if path in params
        else target[ends[path]]
        for path in model.paths
      ]
    )

  def _last(self, own: Any, batch: dict[str, Array]) -> Array:
    """States of the last layer: [B, T, D]."""
    source = read(own, batch)
    x, positions, ropes = own.begin(batch["tokens"], source, batch["positions"])
    for number in range(self.model.config.layers):
      x, _ = own.layer(number, number, x, source, positions, ropes)
    return x

  def log_q(
    self, params: dict[str, Array], frozen: Any, batch: dict[str, Array]
  ) -> Array:
    """The draft's law of the token after each: float32 [B, T, Vd]."""
    model, target = self.model, frozen["target"]
    own = self._merged(params, frozen)
    x = self._last(own, batch)
    if self.law.kept is None and not self.thin:
      return jax.nn.log_softmax(own.logits(x), axis=-1)
    if self.own_head:
      rows = params[_HEAD].astype(model.dtype)
    elif self.thin:
      rows = frozen.get("rows", target[self.law.head])
    else:
      rows = own.embed["weight"] if model.config.tied else own.head.weight
      rows = jnp.take(rows[...], jnp.asarray(self.law.kept), axis=0)
    return jax.nn.log_softmax(logits_over(rows, own, model, x), axis=-1)

  def loss(
    self, params: dict[str, Array], frozen: Any, batch: dict[str, Array]
  ) -> tuple[Array, Metrics]:
    """See the Protocol."""
    log_q = self.log_q(params, frozen, batch)
    token, is_kept = self.law.token(frozen, batch["next"])
    weight = batch["weight"]
    log_p = None
    if "top" in batch or {"kl", "tv"} & set(self.weights):
      last = self.law.states(frozen, batch)[:, :, -1]
      log_p = self.law.log_p(frozen, last)
    each, parts = losses.weighted(
      self.weights, log_q=log_q, token=token, log_p=log_p, is_kept=is_kept
    )
    found = {"loss": metric(each, weight)}
    if len(parts) > 1:
      found |= {name: metric(part, weight) for name, part in parts.items()}
    if log_p is not None:
      top = batch.get("top")
      if top is not None:
        log_p = self.law.log_p(frozen, last, batch["normaliser"])
      accepted, same = judged(self.law, log_p, log_q, is_kept, top)
      weight = weight[: len(accepted)]
      found["acceptance"] = metric(accepted, weight)
      found["agreement"] = metric(same, weight)
    return found["loss"][0], found

  def exact(self, frozen: Any, batch: dict[str, Array]) -> dict[str, Array]:
    """See the Protocol."""
    return self.law.exact(frozen, batch)

  def save(self, params: dict[str, Array], folder: str | os.PathLike) -> None:
    """See the Protocol: a model's folder, or what borrows from the target."""
    config = dict(self.config)
    how = dict(
      dtype=self.dtype,
      others=folders.companions(pathlib.Path(self.target.folder)),
      overwrite=True,
    )
    kept = self.law.kept
    if not self.thin and kept is None:
      own = [params[path] for path in self.model.paths]
      hf.save_params(folder, self.model, own, config=config, **how)
      return
    if self.thin:
      config[head_configs.EMBEDDINGS] = "target"
    if self.own_head:
      config["tie_word_embeddings"] = False
    borrowing = thin.build(
      thin.ThinConfig(
        decoder=self.model.config,
        is_thin=self.thin,
        draft_vocab=None if kept is None else len(kept),
        own_head=self.own_head,
      ),
      self.law.target,
    )
    heads.save_head(
      folder,
      "draft_model",
      borrowing,
      [params[path] for path in borrowing.head.paths],
      target=self.law.target.config,
      tokenizer=self.target.tokenizer.fingerprint(),
      kept=kept,
      content=config,
      **how,
    )

  def _is_trained(self, path: str) -> bool:
    if path == _HEAD and self.own_head:
      return True
    return not (self.thin and path in (_EMBED, _HEAD))
