"""The engine's compiled programs. All of them take and return the state.

Their number is fixed when the engine is made and every argument is an array of
fixed shape and dtype, so nothing compiles after warm-up.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from specjax import layout
from specjax.cache import put_row, reset_rows, take_row
from specjax.engine import filling
from specjax.engine.placing import Places
from specjax.models.base import Model
from specjax.penalties import Penalties, PenaltyRequest
from specjax.proposers.base import Proposer, pass_width
from specjax.proposers.none import NoProposer
from specjax.sampling import RowSettings
from specjax.state import State
from specjax.step import context, propose_verify
from specjax.types import Array, Block, Params, struct
from specjax.verifiers.base import Verifier

_COMPILERS = 4  # each takes memory of its own


@struct
class Admission:
  """Rows to empty and to fill; every leaf has its rows on axis 0.

  Attributes:
    release: bool [B], rows to stop and empty.
    admit: bool [B], rows that take a new request (implies release).
    history: int32 [B, S], the prompts.
    size: int32 [B], tokens of each prompt.
    last_token: int32 [B], the last token of each prompt.
    ready: bool [B], rows whose prompt is that one token: nothing to prefill.
    sampling, scored, lookahead, budget: see `State`.
    penalties: what the rows ask for.
  """

  release: Array
  admit: Array
  history: Array
  size: Array
  last_token: Array
  ready: Array
  sampling: RowSettings
  penalties: PenaltyRequest
  scored: Array
  lookahead: Array
  budget: Array


def positions(
  target: Model, capacity: int, proposer: Proposer, widths: Sequence[int]
) -> int:
  """What caches must hold for rows of `capacity` tokens: headroom beside.

  A pass may start at any length up to the capacity; see `KVCache.write`. A
  source is always written from its beginning.
  """
  widths = () if filling.reads_source(target) else widths
  return capacity + max((pass_width(proposer), *widths))


def initial_state(
  target: Model,
  target_params: Params,
  proposer: Proposer,
  *,
  rows: int,
  capacity: int,
  stop_ids: tuple[int, ...],
) -> State:
  """Idle rows whose caches hold `capacity` positions, headroom included."""
  cache = target.init_cache(rows, capacity)
  width = proposer.lookahead + 1
  features = None
  if proposer.features:
    one = jax.ShapeDtypeStruct((rows, width), jnp.int32)
    run = lambda params, tokens, cache: target(
      params, tokens, cache, proposer.features
    )
    spec = jax.eval_shape(run, target_params, one, cache).features
    features = jnp.zeros(spec.shape, spec.dtype)
  return State(
    cache=cache,
    draft=proposer.init(rows, capacity),
    last_token=jnp.zeros((rows,), jnp.int32),
    history=_history(target, rows, capacity),
    committed=Block(
      tokens=jnp.zeros((rows, width), jnp.int32),
      count=jnp.zeros((rows,), jnp.int32),
      features=features,
    ),
    sampling=RowSettings.greedy(rows),
    penalties=Penalties.none(rows, target.vocab_size),
    scored=jnp.zeros((rows,), bool),
    lookahead=jnp.zeros((rows,), jnp.int32),
    budget=jnp.zeros((rows,), jnp.int32),
    active=jnp.zeros((rows,), bool),
    stop_ids=jnp.asarray(stop_ids or (-1,), jnp.int32),
  )


def _history(target: Model, rows: int, capacity: int) -> Array:
  """See `State`."""
  history = jnp.zeros((rows, capacity), jnp.int32)
  if not filling.reads_source(target):
    return history
  return jnp.concatenate([history, history - 1], axis=1)


def admit(state: State, new: Admission) -> State:
  """Empties rows and puts new requests into some of them."""
  cache, draft = reset_rows((state.cache, state.draft), new.release | new.admit)

  def pick(fresh, old):
    mask = new.admit.reshape(-1, *[1] * (old.ndim - 1))
    return jnp.where(mask, fresh, old)

  old = state.committed
  features = old.features
  if features is not None:
    features = pick(jnp.zeros((), features.dtype), features)
  first = old.tokens.at[:, 0].set(new.last_token)  # of rows that are ready
  stopped = new.release & ~new.admit
  return State(
    cache=cache,
    draft=draft,
    last_token=pick(new.last_token, state.last_token),
    history=pick(new.history, state.history),
    committed=Block(
      tokens=pick(first, old.tokens),
      count=jnp.where(stopped, 0, pick(new.ready.astype(jnp.int32), old.count)),
      features=features,
    ),
    sampling=jax.tree.map(pick, new.sampling, state.sampling),
    penalties=state.penalties.admit(
      new.admit, stopped, new.penalties, new.history, new.size
    ),
    scored=pick(new.scored, state.scored & ~stopped),
    lookahead=pick(new.lookahead, state.lookahead),
    budget=pick(new.budget, state.budget),
    active=pick(new.ready, state.active & ~stopped),
    stop_ids=state.stop_ids,
  )


def prefill(
  target: Model, proposer: Proposer, width: int, params, state: State, count,
  finish,
) -> State:  # fmt: skip
  """One prompt chunk: the next `count` tokens of each row's history.

  The prompt's last token is never prefilled: it is the first committed block,
  which the first step reads.

  Args:
    target, proposer, width: static; `width` is the chunk's compiled size.
    params: StepParams.
    state: B rows.
    count: int32 [B], valid tokens of the chunk; 0 leaves a row alone.
    finish: bool [B], rows whose prompt ends with this chunk.
  """
  ctx = context(params, state, proposer.lookahead)
  chunk = jax.vmap(lambda row, at: lax.dynamic_slice_in_dim(row, at, width))(
    state.history, state.cache.length
  )
  out = target(params.target, chunk, state.cache, proposer.features)
  committed = state.committed
  features, carried = None, committed.features
  if carried is not None:
    # What predicted a chunk's first token belongs to the chunk before.
    shifted = (carried[:, :1], out.features[:, :-1])
    features = jnp.concatenate(shifted, axis=1)
    last = jnp.maximum(count - 1, 0).reshape(-1, *[1] * (carried.ndim - 1))
    last = jnp.take_along_axis(out.features, last, axis=1)
    some = (count > 0).reshape(last.shape[0], *[1] * (carried.ndim - 1))
    carried = carried.at[:, :1].set(jnp.where(some, last, carried[:, :1]))
  block = Block(tokens=chunk, count=count, features=features)
  return dataclasses.replace(
    state,
    cache=out.cache.commit(count),
    draft=proposer.ingest(params.proposer, state.draft, block, ctx),
    committed=Block(
      tokens=committed.tokens.at[:, 0].set(
        jnp.where(finish, state.last_token, committed.tokens[:, 0])
      ),
      count=jnp.where(finish, 1, committed.count),
      features=carried,
    ),
    active=state.active | finish,
  )


def encode(
  target: Model, proposer: Proposer, width: int, params, state: State, count,
  finish,
) -> State:  # fmt: skip
  """A whole source: the last `count` tokens of each row's history.

  The first committed block is the token that every output begins with.

  Args: as `prefill`.
  """
  source = filling.sources(state.history, count, width)
  cache = target.encode(params.target, source, count, state.cache)
  draft = state.draft
  if hasattr(proposer, "read"):
    ctx = context(params, state, proposer.lookahead)
    draft = proposer.read(params.proposer, draft, source, count, ctx)
  old = state.committed
  first = jnp.where(finish, state.last_token, old.tokens[:, 0])
  return dataclasses.replace(
    state,
    cache=cache,
    draft=draft,
    committed=dataclasses.replace(
      old,
      tokens=old.tokens.at[:, 0].set(first),
      count=jnp.where(finish, 1, old.count),
    ),
    active=state.active | finish,
  )


def _fill(target: Model):
  """How a prompt is read."""
  return encode if filling.reads_source(target) else prefill


def prefill_row(
  target, proposer, width, params, state: State, row, count, finish
) -> State:
  """`prefill`, or `encode`, of one row, beside which the others rest.

  `row` is an int32 scalar.
  """
  shared = state.stop_ids
  rows = dataclasses.replace(state, stop_ids=())
  one = dataclasses.replace(take_row(rows, row), stop_ids=shared)
  one = _fill(target)(target, proposer, width, params, one, count, finish)
  one = dataclasses.replace(one, stop_ids=())
  return dataclasses.replace(put_row(rows, row, one), stop_ids=shared)


def copy_row(state: State, source, target) -> State:
  """Row `target` becomes as row `source`, both int32 scalars, but for its seed.

  For samples of one prompt, which is prefilled once: the source has just been.
  """
  rows = dataclasses.replace(state, stop_ids=())
  rows = put_row(rows, target, take_row(rows, source))
  sampling = dataclasses.replace(rows.sampling, seed=state.sampling.seed)
  return dataclasses.replace(rows, stop_ids=state.stop_ids, sampling=sampling)


def prefill_groups(
  places, target, proposer, width, params, state: State, row, count, finish
) -> State:
  """`prefill`, or `encode`, of one row of each group; the others rest.

  Args:
    places, target, proposer, width: static.
    params, state: see `prefill`.
    row: int32 [groups], which row of its group.
    count, finish: [groups], as `prefill` takes them; a group whose count is 0
      is left alone.
  """
  shared, shardings = state.stop_ids, _rows_of(places.state)
  rows = _rows_of(state)
  some = layout.take_rows(rows, row, shardings)
  some = dataclasses.replace(some, stop_ids=shared)
  some = _fill(target)(target, proposer, width, params, some, count, finish)
  rows = layout.put_rows(rows, row, _rows_of(some), shardings)
  return dataclasses.replace(rows, stop_ids=shared)


def copy_placed(places, state: State, source, target) -> State:
  """`copy_row` on a mesh."""
  shardings = _rows_of(places.state)
  rows = layout.copy_row(_rows_of(state), source, target, shardings)
  sampling = dataclasses.replace(rows.sampling, seed=state.sampling.seed)
  return dataclasses.replace(rows, stop_ids=state.stop_ids, sampling=sampling)


def _rows_of(state: State) -> State:
  """What of a state, or of its shardings, has rows."""
  return dataclasses.replace(state, stop_ids=())


@dataclasses.dataclass(frozen=True)
class Programs:
  """Every program of one engine, jitted, with the state donated.

  Attributes:
    admit: (state, Admission) -> state.
    copy: (state, source, target) -> state.
    prefill: width -> (params, state, [row,] count, finish) -> state.
    speculate, plain: (params, state) -> (state, Emitted).
  """

  admit: Any
  copy: Any
  prefill: dict[int, Any]
  speculate: Any
  plain: Any


def compile_programs(
  target: Model,
  proposer: Proposer,
  verifier: Verifier,
  *,
  widths: tuple[int, ...],
  whole_batch: bool,
  top_logprobs: int,
  places: Places | None = None,
) -> Programs:
  """Jits the programs; each compiles at its first call (see Engine.warmup).

  Args:
    target, proposer, verifier, widths, whole_batch, top_logprobs: see
      `loop.Engine`.
    places: where what they take and give lies, None for the default device.
  """

  def jit(run, *takes, gives="state"):
    """The state is donated; `takes` and `gives` name fields of `places`."""
    how = {}
    if places is not None:
      name = lambda one: getattr(places, one)
      outs = name(gives) if isinstance(gives, str) else tuple(map(name, gives))
      how = dict(in_shardings=tuple(map(name, takes)), out_shardings=outs)
    return jax.jit(run, donate_argnums=takes.index("state"), **how)

  step = lambda proposer: jit(
    propose_verify(target, proposer, verifier, top_logprobs),
    *("params", "state"),
    gives=("state", "whole"),
  )
  fill, copy, rest = prefill_row, copy_row, ("whole",) * 3
  if places is not None:
    fill = functools.partial(prefill_groups, places)
    copy = functools.partial(copy_placed, places)
  if whole_batch:
    fill, rest = _fill(target), ("whole",) * 2
  one = lambda width: jit(
    functools.partial(fill, target, proposer, width), "params", "state", *rest
  )
  return Programs(
    admit=jit(admit, "state", "whole"),
    copy=jit(copy, "state", "whole", "whole"),
    prefill={width: one(width) for width in widths},
    speculate=step(proposer),
    # One that never drafts may still look at what is committed.
    plain=step(NoProposer(proposer) if proposer.lookahead else proposer),
  )


def compile_ahead(calls: Sequence[tuple[Any, tuple[Any, ...]]]) -> None:
  """Compiles jitted programs for the arguments they will be called with.

  Several at once: reading one from the compilation cache, or compiling it,
  leaves Python free to trace the next. Nothing runs and nothing is donated;
  the call that follows finds its program.

  Args:
    calls: programs and arguments, the slowest to compile first.
  """
  workers = min(len(calls), os.cpu_count() or 1, _COMPILERS)
  pool = futures.ThreadPoolExecutor(workers, "compile")
  try:
    waiting = [
      pool.submit(lambda run, args: run.lower(*args).compile(), *call)
      for call in calls
    ]
    for one in waiting:
      one.result()
  finally:
    # Whoever interrupts does not wait for what is under way.
    pool.shutdown(wait=False, cancel_futures=True)
