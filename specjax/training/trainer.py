"""The loop: steps, held-out figures, checkpoints, and a log of it all."""

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from specjax.sharding import axes
from specjax.sharding.placement import put
from specjax.training import checkpoint, optimizer, packing, shard_writer
from specjax.training.objective import Objective, means
from specjax.types import Array

LOG = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
State = dict[str, Any]
Tell = Callable[[Mapping[str, Any]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """How long a run is and what it keeps of itself.

  Attributes:
    optimizer: with the number of steps.
    batch: B of a pass.
    accumulate: passes of a step, whose gradients are summed.
    seed: of the parameters at the beginning and of the data's order.
    log_every: steps of a line of the log.
    evaluate_every: steps between held-out figures, which the first step and
      the last have too.
    save_every: steps between checkpoints; the last step has one too.
    keep: checkpoints that stay.
  """

  optimizer: optimizer.Options
  batch: int
  accumulate: int = 1
  seed: int = 0
  log_every: int = 10
  evaluate_every: int = 100
  save_every: int = 100
  keep: int = 2


class Trainer:
  """An objective, an optimizer, and the compiled step of both."""

  def __init__(self, objective: Objective, options: Options):
    """Compiles nothing yet."""
    self.objective = objective
    self.options = options
    self._first = objective.init(options.seed)
    self._tx = optimizer.make(
      options.optimizer, objective.axes, objective.scales
    )
    self._rate = optimizer.schedule(options.optimizer)
    self._places = self._shardings()
    self.step = jax.jit(
      self._step, donate_argnums=0, out_shardings=(self._places, None)
    )
    self.exact = jax.jit(objective.exact)
    self._make = jax.jit(self._state, out_shardings=self._places)
    self.evaluate = jax.jit(
      lambda params, frozen, batch: objective.loss(params, frozen, batch)[1]
    )

  def begin(self) -> State:
    """The state before the first step."""
    if self._places is None:
      return self._make(jax.tree.map(jnp.asarray, self._first))
    return self._make(put(self._first, self._places["params"]))

  @property
  def size(self) -> int:
    """How many numbers are trained."""
    return sum(value.size for value in self._first.values())

  def place(self, batch: packing.Batch, *, passes: bool) -> dict[str, Array]:
    """A batch on its devices: by rows, as the objective's placement has it.

    Args:
      batch: of each field [B, T, …], or with `passes` [n, B, T, …].
      passes: see `batch`.
    """
    placement = self.objective.placement
    if placement is None:
      return {name: jnp.asarray(value) for name, value in batch.items()}
    front = (None, axes.ROWS) if passes else (axes.ROWS,)
    places = {
      name: placement.sharding((*front, *(None,) * (x.ndim - len(front))))
      for name, x in batch.items()
    }
    return put(batch, places)

  def learning_rate(self, step: int) -> float:
    """Of a step, which counts from 0."""
    return float(self._rate(step))

  def _state(self, params) -> State:
    return {
      "params": params,
      "optimizer": self._tx.init(params),
      "step": jnp.int32(0),
    }

  def _shardings(self) -> State | None:
    """Where each array of a state lies: its moments beside a parameter."""
    placement = self.objective.placement
    if placement is None:
      return None
    params = {
      name: placement.sharding(names, parameter=True)
      for name, names in self.objective.axes.items()
    }
    shapes = jax.eval_shape(self._state, self._first)

    def place(path, leaf):
      # An optimiser's state has dicts of the parameters' names.
      name = getattr(path[-1], "key", None)
      same = name in params and leaf.shape == self._first[name].shape
      return params[name] if same else placement.whole

    moments = jax.tree_util.tree_map_with_path(place, shapes["optimizer"])
    return {"params": params, "optimizer": moments, "step": placement.whole}

  def _step(self, state: State, frozen: Any, batch: dict[str, Array]):
    params = state["params"]
    grad = jax.grad(self.objective.loss, has_aux=True)

    def one(carry, batch):
      return jax.tree.map(jnp.add, carry, grad(params, frozen, batch)), None

    first = jax.tree.map(lambda x: x[0], batch)
    found = grad(params, frozen, first)
    if self.options.accumulate > 1:
      rest = jax.tree.map(lambda x: x[1:], batch)
      found, _ = jax.lax.scan(one, found, rest)
    grads, metrics = found
    # By the positions of all passes: those of one may be few.
    weight = jnp.maximum(metrics["loss"][1], 1.0)
    grads = jax.tree.map(lambda g: g / weight, grads)
    updates, moments = self._tx.update(grads, state["optimizer"], params)
    new = {
      "params": optax.apply_updates(params, updates),
      "optimizer": moments,
      "step": state["step"] + 1,
    }
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    return new, metrics | {"gradient_norm": jnp.stack([norm, 1.0])}


def run(
  trainer: Trainer,
  rows: packing.Rows,
  held_out: packing.Rows,
  folder: str | os.PathLike,
  *,
  evaluate_batches: int = 8,
  stop: Callable[[], bool] = lambda: False,
  tell: Tell = lambda row: None,
) -> tuple[State, bool]:
  """Trains from the folder's newest checkpoint, or from the beginning.

  Args:
    trainer: what and how.
    rows: to train on.
    held_out: to look at.
    folder: of checkpoints and log.
    evaluate_batches: how many held-out batches are looked at, at most.
    stop: asked after every step; a run that it ends is saved first.
    tell: gets each row of the log as it is written, and {"step": n} in the
      beginning and after every step.

  Returns:
    The state, and whether it is that of the last step.

  Raises:
    ValueError: a checkpoint is damaged; names it.
    RuntimeError: the loss is no number any more.
  """
  options, objective = trainer.options, trainer.objective
  folder = pathlib.Path(folder)
  last = options.optimizer.steps
  batches = packing.Batches(
    rows,
    batch=options.batch,
    accumulate=options.accumulate,
    seed=options.seed,
  )
  state = trainer.begin()
  kept = checkpoint.Checkpoints(folder / CHECKPOINTS, keep=options.keep)
  with kept, batches:
    if kept.latest is not None:
      state = kept.restore(state)
    step = int(state["step"])
    log = _Log(folder / LOG, step, tell)
    tell({"step": step})
    looked = _held_out(trainer, held_out, evaluate_batches)
    if step == 0:
      log.write({"step": 0, **_figures(trainer, state, looked)})
    waiting: list[Any] = []
    since = time.perf_counter()
    while step < last and not stop():
      batch = trainer.place(batches[step], passes=True)
      state, metrics = trainer.step(state, objective.frozen, batch)
      # On a CPU steps that overlap only wait for each other.
      waiting.append(jax.block_until_ready(metrics))
      step += 1
      if not np.isfinite(np.asarray(metrics["loss"])).all():
        raise RuntimeError(
          f"the loss of step {step} is no number any more; lower"
          " --learning_rate, or lengthen --warmup"
        )
      tell({"step": step})
      if step % options.log_every == 0 or step == last:
        seconds, since = time.perf_counter() - since, time.perf_counter()
        log.write(_line(trainer, step, waiting, seconds, rows))
        waiting = []
      if step % options.evaluate_every == 0 or step == last:
        log.write({"step": step, **_figures(trainer, state, looked)})
        since = time.perf_counter()
      if step % options.save_every == 0 or step == last:
        kept.save(step, state)
    if step:
      kept.save(step, state)
    kept.wait()
  return state, step == last


def _line(trainer, step, waiting, seconds, rows) -> dict[str, Any]:
  """The log's line: acceptance and agreement are of first rows; `judged`."""
  options = trainer.options
  found = means(jax.tree.map(lambda *x: np.sum(x, axis=0), *waiting))
  passes = len(waiting) * options.batch * options.accumulate
  return {
    "step": step,
    **found,
    "learning_rate": trainer.learning_rate(step - 1),
    "epoch": step * options.batch * options.accumulate / len(rows),
    "tokens_per_s": passes * rows.tokens / len(rows) / seconds,
    "seconds": seconds,
  }


def _held_out(trainer, rows, most) -> list[dict[str, Array]]:
  """Held-out batches, with what only they have."""
  found = []
  for batch in packing.in_order(rows, trainer.options.batch, most):
    placed = trainer.place(batch, passes=False)
    found.append(placed | trainer.exact(trainer.objective.frozen, placed))
  return found


def _figures(trainer, state, batches) -> dict[str, float]:
  total: dict[str, Any] = {}
  for batch in batches:
    one = trainer.evaluate(state["params"], trainer.objective.frozen, batch)
    one = {name: np.asarray(value, np.float64) for name, value in one.items()}
    total = {name: total.get(name, 0.0) + value for name, value in one.items()}
  return {f"held_out_{name}": x for name, x in means(total).items()}


def has_begun(folder: str | os.PathLike) -> bool:
  """Whether a run in this folder has a checkpoint to go on from."""
  folder = pathlib.Path(folder) / CHECKPOINTS
  if not folder.is_dir():
    return False
  with checkpoint.Checkpoints(folder) as kept:
    return kept.latest is not None


class _Log:
  """Rows of JSON; those after the step that a run begins at are dropped."""

  def __init__(self, path: pathlib.Path, step: int, tell: Tell):
    self._path, self._tell = path, tell
    self._writes = jax.process_index() == 0
    if not self._writes:
      return
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [row for row in read_log(path) if row["step"] <= step and step]
    lines = [json.dumps(row) + "\n" for row in kept]
    shard_writer.write(path, "".join(lines).encode())

  def write(self, row: dict[str, Any]) -> None:
    if self._writes:
      with self._path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    self._tell(row)


def read_log(path: str | os.PathLike) -> list[dict[str, Any]]:
  """The rows of a run's log, without a half-written last one."""
  path = pathlib.Path(path)
  found = []
  for line in path.read_text().splitlines() if path.is_file() else ():
    try:
      row = json.loads(line)
    except ValueError:
      continue
    if isinstance(row, dict) and isinstance(row.get("step"), int):
      found.append(row)
  return found
