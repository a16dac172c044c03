"""What the trainer needs of a kind of proposer: a Protocol; and a target's law.

An objective is what differs between kinds: which parameters are trained, how
they begin, what a batch costs, and how they are written.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from specjax.cache import Encoded
from specjax.models import decoder
from specjax.models.heads import module
from specjax.models.module import capped
from specjax.sharding.placement import Placement
from specjax.training import losses
from specjax.types import Array, Params

# Of each metric its sum over positions, and the sum of their weights.
Metrics = dict[str, Array]


class Objective(Protocol):
  """See the module's docstring.

  Attributes:
    axes: logical axes of every trained parameter, by name.
    frozen: arrays that `loss` reads and nothing trains.
    law: the target's.
    placement: how the parameters are split over a mesh, or None.
    scales: of some parameters how large they usually are; see
      `optimizer.make`.
  """

  axes: Mapping[str, Sequence[str]]
  scales: Mapping[str, np.ndarray]
  frozen: Any
  law: "Law"
  placement: Placement | None

  def init(self, seed: int) -> dict[str, np.ndarray]:
    """The parameters at the beginning, by name, in float32."""

  def loss(
    self, params: dict[str, Array], frozen: Any, batch: dict[str, Array]
  ) -> tuple[Array, Metrics]:
    """What a batch costs, as sums, so that passes add up.

    Args:
      params: float32, by name.
      frozen: the attribute of that name.
      batch: [B, T] of each field; see `packing.Rows`. Held-out ones may have
        what `Law.exact` gives, too.

    Returns:
      The sum of the losses of all positions, and the metrics. Of these "loss"
      says by what the sum is to be divided.
    """

  def exact(self, frozen: Any, batch: dict[str, Array]) -> dict[str, Array]:
    """What held-out batches have beside their rows; see `Law.exact`."""

  def save(self, params: dict[str, Array], folder: str | os.PathLike) -> None:
    """Writes the folder that a proposer is loaded from."""


def metric(value: Array, weight: Array) -> Array:
  """[sum, weight], of values and weights of the same shape."""
  return jnp.stack([jnp.sum(value * weight), jnp.sum(weight)])


def means(metrics: Mapping[str, Any]) -> dict[str, float]:
  """Each metric's mean over its positions; those without any are left out."""
  sums = {name: np.asarray(x, np.float64) for name, x in metrics.items()}
  return {name: float(s / w) for name, (s, w) in sums.items() if w > 0}


def ahead(x: Array, positions: Array, steps: int) -> tuple[Array, Array]:
  """What stands `steps` tokens further in the same text.

  Args:
    x: [B, T, …].
    positions: int32 [B, T], in each text.
    steps: at least 0.

  Returns:
    x moved left, and float32 [B, T], 0 where the text is over before.
  """
  if not steps:
    return x, jnp.ones(positions.shape, jnp.float32)
  move = lambda x: jnp.concatenate(
    [x[:, steps:], jnp.zeros_like(x[:, :steps])], axis=1
  )
  same = move(positions) == positions + steps
  return move(x), same.astype(jnp.float32)


def read(own: Any, batch: dict[str, Array]) -> Encoded | None:
  """What a batch's outputs are read beside: their sources, if there are any.

  Args:
    own: a model, merged with its parameters.
    batch: see `packing.Pairs`, or `packing.Rows`, which have no sources.
  """
  if "source" not in batch:
    return None
  return own.read(batch["source"], batch["source_text"], batch["text"])


def logits_over(rows: Array, own: Any, model: decoder.Model, x: Array) -> Array:
  """Logits over some ids alone: float32 [B, T, Vd].

  Args:
    rows: [Vd, D], of a head.
    own: the model, merged with its parameters.
    model: says how it bounds logits.
    x: [B, T, D], states of its last layer.
  """
  logits = module.product(model.placement, own.norm(x), rows)
  return capped(model.config, logits)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Law:
  """What the target says at every position, over the kept ids.

  Its states come from the data, where these have the layers that are asked
  for, and else from a pass of the target.

  Attributes:
    target: the model.
    kept: int32 [Vd], ascending: ids that can be drafted; None for all.
    layers: of the target, whose states are asked for; the last is its last.
    stored: of which layers the data have states; () for none.
  """

  target: decoder.Model
  kept: np.ndarray | None
  layers: tuple[int, ...]
  stored: tuple[int, ...] = ()

  def __post_init__(self):
    assert self.layers[-1] == self.target.config.layers

  @property
  def is_stored(self) -> bool:
    """Whether training needs no pass of the target."""
    return set(self.layers) <= set(self.stored)

  @functools.cached_property
  def places(self) -> np.ndarray | None:
    """int32 [V]: of each id its place among the kept ones, or -1."""
    if self.kept is None:
      return None
    places = np.full(self.target.vocab_size, -1, np.int32)
    places[self.kept] = np.arange(len(self.kept))
    return places

  def frozen(self, target_params: Params) -> dict[str, Any]:
    """What its methods read: the target's parameters, and its head's rows."""
    found: dict[str, Any] = {"target": tuple(target_params)}
    if self.kept is not None:
      place = None if self.placement is None else self.placement.whole
      take = lambda table, kept: jnp.take(table, kept, axis=0)
      kept = jnp.asarray(self.kept)
      found["rows"] = jax.jit(take, out_shardings=place)(
        target_params[self.head], kept
      )
      found["places"] = jnp.asarray(self.places)
    return found

  @property
  def placement(self) -> Placement | None:
    """The target's."""
    return self.target.placement

  @property
  def embedding(self) -> int:
    """The embedding's place in the target's parameters."""
    return self.target.paths.index("embed.weight")

  @property
  def head(self) -> int:
    """The head's place in the target's parameters."""
    if self.target.config.tied:
      return self.embedding
    return self.target.paths.index("head.weight")

  def token(self, frozen: dict[str, Any], ids: Array) -> tuple[Array, Array]:
    """Places of ids [B, T] among the kept ones, and 1.0 where they are kept."""
    if self.kept is None:
      return ids, jnp.ones(ids.shape, jnp.float32)
    places = frozen["places"][ids]
    return jnp.maximum(places, 0), (places >= 0).astype(jnp.float32)

  def states(self, frozen: dict[str, Any], batch: dict[str, Array]) -> Array:
    """States of `layers` after each token: [B, T, n, D]."""
    if "states" in batch:  # See `exact`.
      return batch["states"]
    if self.is_stored:
      pick = np.asarray([self.stored.index(n) for n in self.layers])
      states = batch["hidden"]
      if len(pick) < states.shape[2] or (pick != np.arange(len(pick))).any():
        states = states[:, :, pick]
      return states.astype(self.target.dtype)
    out = self.target(
      frozen["target"],
      batch["tokens"],
      read(self.target.merge(frozen["target"]), batch),
      self.layers,
      batch["positions"],
    )
    return jax.lax.stop_gradient(out.features)

  def log_p(
    self,
    frozen: dict[str, Any],
    last: Array,
    normaliser: Array | None = None,
  ) -> Array:
    """The law of the token after each: float32 [B, T, Vd].

    Args:
      frozen: see `frozen`.
      last: [B, T, D], states of the last layer.
      normaliser: float32 [B, T], of `exact`. Without it the law is renormalised
        over the kept ids; see `losses`.
    """
    logits = self._logits(frozen, last, frozen.get("rows"))
    if normaliser is None:
      return jax.nn.log_softmax(logits, axis=-1)
    return logits - normaliser[..., None]

  def exact(
    self, frozen: dict[str, Any], batch: dict[str, Array]
  ) -> dict[str, Array]:
    """What the law over all V needs beside that over the kept ids.

    It is as dear as the whole head: for held-out batches, once.

    Returns:
      normaliser: float32 [B, T], log Σ exp of all logits; top: int32 [B, T],
      the arg-max; and states, where they are not stored, so that a batch needs
      one pass of the target.
    """
    states = self.states(frozen, batch)

    def row(last):  # A row at a time: all logits at once would be large.
      logits = self._logits(frozen, last[None], None)[0]
      top = jnp.argmax(logits, axis=-1).astype(jnp.int32)
      return jax.nn.logsumexp(logits, axis=-1), top

    normaliser, top = jax.lax.map(row, states[:, :, -1])
    found = {"normaliser": normaliser, "top": top}
    return found if self.is_stored else found | {"states": states}

  def _logits(self, frozen, last, rows: Array | None) -> Array:
    own = self.target.merge(frozen["target"])
    if rows is None:
      return own.logits(last)
    return logits_over(rows, own, self.target, last)


def judged(
  law: Law,
  log_p: Array,
  log_q: Array,
  is_kept: Array,
  top: Array | None,
) -> tuple[Array, Array]:
  """Acceptance and agreement of drafts at every position.

  Args:
    law: see the class.
    log_p, log_q: [B, T, Vd].
    is_kept: [B, T], 1 where the token that comes is. Without `top` the law is
      renormalised, and a position whose token is not kept counts as one whose
      draft is not; `losses` says when that is right on average.
    top: int32 [B, T], the target's arg-max over all V, or None.

  Returns:
    Both [B, T], in [0, 1]. While training, of the first row alone, [1, T]: on
    a CPU they would take a tenth of a step.
  """
  if top is None:
    log_p, log_q, is_kept = log_p[:1], log_q[:1], is_kept[:1]
  accepted = losses.acceptance(log_p, log_q)
  if top is None:
    return accepted * is_kept, losses.agreement(log_p, log_q) * is_kept
  ours = jnp.argmax(log_q, axis=-1).astype(jnp.int32)
  if law.kept is not None:
    ours = jnp.asarray(law.kept)[ours]
  return accepted, (ours == top).astype(jnp.float32)
