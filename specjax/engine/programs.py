"""The engine's compiled programs. All of them take and return the state.

Their number is fixed when the engine is made and every argument is an array of
fixed shape and dtype, so nothing compiles after warm-up.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from specjax.cache import put_row, reset_rows, take_row
from specjax.models.base import Model
from specjax.proposers.base import Proposer
from specjax.proposers.none import NoProposer
from specjax.sampling import RowSettings
from specjax.state import State
from specjax.step import context, propose_verify
from specjax.types import Array, Block, Params, struct
from specjax.verifiers.base import Verifier


@struct
class Admission:
  """Rows to empty and to fill; every leaf has its rows on axis 0.

  Attributes:
    release: bool [B], rows to stop and empty.
    admit: bool [B], rows that take a new request (implies release).
    history: int32 [B, S], the prompts.
    last_token: int32 [B], the last token of each prompt.
    ready: bool [B], rows whose prompt is that one token: nothing to prefill.
    sampling, lookahead, budget: see `State`.
  """

  release: Array
  admit: Array
  history: Array
  last_token: Array
  ready: Array
  sampling: RowSettings
  lookahead: Array
  budget: Array


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
    history=jnp.zeros((rows, capacity), jnp.int32),
    committed=Block(
      tokens=jnp.zeros((rows, width), jnp.int32),
      count=jnp.zeros((rows,), jnp.int32),
      features=features,
    ),
    sampling=RowSettings.greedy(rows),
    lookahead=jnp.zeros((rows,), jnp.int32),
    budget=jnp.zeros((rows,), jnp.int32),
    active=jnp.zeros((rows,), bool),
    stop_ids=jnp.asarray(stop_ids or (-1,), jnp.int32),
  )


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


def prefill_row(
  target, proposer, width, params, state: State, row, count, finish
) -> State:
  """`prefill` of one row, int32 scalar, beside which the others rest."""
  shared = state.stop_ids
  rows = dataclasses.replace(state, stop_ids=())
  one = dataclasses.replace(take_row(rows, row), stop_ids=shared)
  one = prefill(target, proposer, width, params, one, count, finish)
  one = dataclasses.replace(one, stop_ids=())
  return dataclasses.replace(put_row(rows, row, one), stop_ids=shared)


@dataclasses.dataclass(frozen=True)
class Programs:
  """Every program of one engine, jitted, with the state donated.

  Attributes:
    admit: (state, Admission) -> state.
    prefill: width -> (params, state, [row,] count, finish) -> state.
    speculate, plain: (params, state) -> (state, Emitted).
  """

  admit: Any
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
) -> Programs:
  """Jits the programs; each compiles at its first call (see Engine.warmup)."""
  fill = prefill if whole_batch else prefill_row
  plain = propose_verify(target, NoProposer(proposer), verifier)
  one = lambda width: jax.jit(
    functools.partial(fill, target, proposer, width), donate_argnums=1
  )
  return Programs(
    admit=jax.jit(admit, donate_argnums=0),
    prefill={width: one(width) for width in widths},
    speculate=jax.jit(
      propose_verify(target, proposer, verifier), donate_argnums=1
    ),
    plain=jax.jit(plain, donate_argnums=1),
  )
