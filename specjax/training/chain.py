"""Heads on a target's states: EAGLE, Medusa and multi-token prediction.

All guess a chain of tokens from one position: step s of them, from position i,
the token i + 2 + s of the text, where the target's own head has guessed token
i + 1. What differs is how a step comes from the one before it; losses and
figures are the same.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import folders, heads
from specjax.models.heads.eagle import EagleModel
from specjax.models.heads.medusa import MedusaModel
from specjax.models.heads.mtp import MtpModel
from specjax.pretrained import Pretrained
from specjax.sharding.placement import Placement
from specjax.training import losses
from specjax.training.objective import Law, Metrics, ahead, judged, metric
from specjax.types import Array, Params


class Steps(Protocol):
  """What a kind of head makes of a batch, step by step."""

  def __call__(
    self,
    params: Params,
    target: Params,
    batch: dict[str, Array],
    states: Array,
  ) -> Iterator[tuple[Array, Array | None]]:
    """Guesses from every position at once.

    Args:
      params: of the head's model, complete.
      target: the target's.
      batch: see `packing.Rows`.
      states: [B, T, n, D], that the head reads, after each token.

    Yields:
      Of each step its logits, float32 [B, T, Vd]; and where states are
      predicted, the one after token i + 1 + s [B, T, D], else None.
    """


def eagle(model: EagleModel, steps: int) -> Steps:
  """EAGLE's: each step reads the token that came and its own last output."""

  def run(params, target, batch, states):
    tokens, positions = batch["tokens"], batch["positions"]
    hidden = model.fuse(params, target, states)
    keys = ()
    for step in range(steps):
      # Pair i is the state after token i, and token i + 1.
      token, _ = ahead(tokens, positions, step + 1)
      hidden, keys = model.unroll(
        *(params, target, token, hidden, keys), positions
      )
      yield model.logits(params, target, hidden), hidden

  return run


def medusa(model: MedusaModel) -> Steps:
  """Medusa's: all steps from one state."""

  def run(params, target, batch, states):
    del batch
    hidden = model.fuse(params, target, states)
    logits = model(params, target, hidden)
    for step in range(model.config.heads):
      yield logits[:, :, step], None

  return run


def mtp(model: MtpModel) -> Steps:
  """Multi-token prediction's: a module a step, each on the one before."""

  def run(params, target, batch, states):
    tokens, positions = batch["tokens"], batch["positions"]
    hidden = model.fuse(params, target, states)
    for depth in range(model.config.depths):
      token, _ = ahead(tokens, positions, depth + 1)
      hidden, _ = model.read(
        *(params, target, token, hidden, None, positions), depth=depth
      )
      yield model.logits(params, target, hidden, depth=depth), None

  return run


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
  """Trains a head; see `training.objective.Objective`.

  Attributes:
    kind: one of `checkpoints.heads.KINDS`.
    model: the head's.
    steps: what it makes of a batch.
    law: the target's; its layers are those that the head reads, and the last.
    weights: of the losses.
    decay: the weight of each further step, as a share of the one before.
    target: the checkpoint that the head is for.
    first: parameters at the beginning, in the order of `model.head.paths`.
    frozen: `Law.frozen`, and the head's own extras.
    dtype: of the file.
    scales: see `optimizer.make`.
  """

  kind: str
  model: Any
  steps: Steps
  law: Law
  weights: Mapping[str, float]
  decay: float
  target: Pretrained
  first: Sequence[np.ndarray]
  frozen: dict[str, Any]
  dtype: str = "float32"
  scales: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @property
  def placement(self) -> Placement | None:
    """The head's; see `heads.module.beside`."""
    return self.model.placement

  @property
  def axes(self) -> dict[str, Sequence[str]]:
    """Logical axes of what is trained."""
    head = self.model.head
    return dict(zip(head.paths, head.axes, strict=True))

  def init(self, seed: int) -> dict[str, np.ndarray]:
    """See the Protocol. The seed has been used for `first`."""
    del seed
    pairs = zip(self.model.head.paths, self.first, strict=True)
    return {path: np.asarray(value, np.float32) for path, value in pairs}

  def loss(
    self, params: dict[str, Array], frozen: Any, batch: dict[str, Array]
  ) -> tuple[Array, Metrics]:
    """See the Protocol."""
    law, positions = self.law, batch["positions"]
    own = tuple(
      params[path].astype(self.model.dtype) for path in self.model.head.paths
    )
    own = (*own, *frozen["extras"])
    states = law.states(frozen, batch)
    read = states[:, :, : len(self.features)]
    log_p = law.log_p(frozen, states[:, :, -1])
    exact = None
    if "top" in batch:
      exact = law.log_p(frozen, states[:, :, -1], batch["normaliser"])
    token, is_kept = law.token(frozen, batch["next"])
    normed = None
    if "feature" in self.weights:
      normed = self.model.fuse(own, frozen["target"], read)

    found: Metrics = {}
    total, first = 0.0, None
    run = {"acceptance": 1.0, "agreement": 1.0}
    length = {"acceptance": 1.0, "agreement": 1.0}
    guesses = self.steps(own, frozen["target"], batch, read)
    for step, (logits, predicted) in enumerate(guesses):
      move = lambda x, by=step + 1: ahead(x, positions, by)[0]
      moved, same = ahead(batch["weight"], positions, step + 1)
      weight = moved * same
      log_q = jax.nn.log_softmax(logits, axis=-1)
      feature = None
      if normed is not None:
        feature = losses.smooth_l1(predicted, move(normed))
      each, parts = losses.weighted(
        dict(self.weights),
        log_q=log_q,
        token=move(token),
        is_kept=move(is_kept),
        log_p=move(log_p),
        feature=feature,
      )
      total += self.decay**step * jnp.sum(each * weight)
      first = jnp.sum(weight) if first is None else first
      if len(parts) > 1:
        for name, part in parts.items():
          found[f"{name}_{step + 1}"] = metric(part, weight)
      top = None if exact is None else move(batch["top"])
      judges = judged(
        law,
        move(log_p if exact is None else exact),
        log_q,
        move(is_kept),
        top,
      )
      weight = weight[: len(judges[0])]
      for name, value in zip(run, judges, strict=True):
        found[f"{name}_{step + 1}"] = metric(value, weight)
        run[name] = run[name] * value
        length[name] = length[name] + run[name]
    # Of positions that all steps have a token for: what a step would give.
    found["tokens_per_step"] = metric(length["acceptance"], weight)
    found["tokens_per_step_greedy"] = metric(length["agreement"], weight)
    found["loss"] = jnp.stack([total, first])
    return total, found

  @property
  def features(self) -> tuple[int, ...]:
    """Layers of the target that the head reads."""
    return self.model.features

  def exact(self, frozen: Any, batch: dict[str, Array]) -> dict[str, Array]:
    """See the Protocol."""
    return self.law.exact(frozen, batch)

  def save(self, params: dict[str, Array], folder: str | os.PathLike) -> None:
    """See the Protocol: the layout that is published for the kind."""
    heads.save_head(
      folder,
      self.kind,
      self.model,
      [params[path] for path in self.model.head.paths],
      target=self.law.target.config,
      tokenizer=self.target.tokenizer.fingerprint(),
      kept=self.law.kept,
      dtype=self.dtype,
      others=folders.companions(pathlib.Path(self.target.folder)),
      overwrite=True,
    )
