"""Beginnings by least squares, which data give at once.

EAGLE-1's first product regresses the state that comes on the pair that the head
reads: the embedding of the token that came, and the state before it. A draft
model's head regresses the target's state on the draft's own: it begins as the
target's rows of what that gives. Either is the best that a head without
training of its layers can do, and where training starts.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.models.heads.eagle import EagleModel
from specjax.training import packing
from specjax.training.objective import Law, ahead
from specjax.types import Array

ENOUGH = 200_000  # pairs; an output has at most 2 D unknowns
_RIDGE = 1e-4  # of the mean square of an input
_BATCH = 8
# Of arrays and a batch, inputs [B, T, n], outputs [B, T, m], weights [B, T].
Pairs = Callable[[Any, Mapping[str, Array]], tuple[Array, Array, Array]]


def solve(
  pairs: Pairs, arrays: Any, rows: packing.Rows, *, seed: int
) -> np.ndarray:
  """The weight [m, n] that gives outputs of inputs, in float32.

  Args:
    pairs: what is regressed on what.
    arrays: its first argument: what it reads beside a batch.
    rows: of which as many are read as `ENOUGH` asks for, drawn by the seed.
    seed: see `rows`.
  """

  @jax.jit
  def sums(arrays, batch):
    x, y, weight = pairs(arrays, batch)
    x = x.astype(jnp.float32) * weight[..., None]
    x, y = (each.reshape(-1, each.shape[-1]) for each in (x, y))
    return x.T @ x, x.T @ y.astype(jnp.float32), jnp.sum(weight)

  total: Any = (0.0, 0.0, 0.0)
  order = np.random.default_rng(seed).permutation(len(rows))
  for start in range(0, len(order), _BATCH):
    some = [rows[index] for index in order[start : start + _BATCH]]
    batch = {name: np.stack([row[name] for row in some]) for name in some[0]}
    # In float32, sums of all batches would lose what is small.
    found = [np.asarray(x, np.float64) for x in sums(arrays, batch)]
    total = [a + b for a, b in zip(total, found, strict=True)]
    if total[2] >= ENOUGH:
      break
  inputs, both, _ = total
  ridge = _RIDGE * np.diag(np.diag(inputs)) + 1e-9 * np.eye(len(inputs))
  return np.linalg.solve(inputs + ridge, both).T.astype(np.float32)


def of_eagle(model: EagleModel, law: Law) -> Pairs:
  """What EAGLE-1 reads of a batch, and the state that comes.

  Args:
    model: an EAGLE-1 head.
    law: the target's, of whose `frozen` arrays are pairs made.
  """
  assert not model.config.fuses, "EAGLE-3 predicts no states"

  def pairs(frozen, batch):
    positions = batch["positions"]
    states = law.states(frozen, batch)[:, :, -1:]
    normed = model.fuse((), frozen["target"], states)
    token, _ = ahead(batch["tokens"], positions, 1)
    embedded = model.ends.embed(frozen["target"], token).astype(model.dtype)
    coming, _ = ahead(normed, positions, 1)
    # The last token of a distilled row has no state: two have to follow.
    _, later = ahead(token, positions, 2)
    return jnp.concatenate([embedded, normed], axis=-1), coming, later

  return pairs


def of_draft(read: Callable[..., Array], law: Law) -> Pairs:
  """What a draft's head reads of a batch, and what the target's reads.

  Args:
    read: (params, frozen, batch) to the draft's states, normed [B, T, D]; pairs
      are made of its first two arguments.
    law: the target's.
  """

  def pairs(arrays, batch):
    params, frozen = arrays
    own = law.target.merge(frozen["target"])
    coming = own.norm(law.states(frozen, batch)[:, :, -1])
    _, later = ahead(batch["tokens"], batch["positions"], 1)
    return read(params, frozen, batch), coming, later

  return pairs
