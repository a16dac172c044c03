"""Parts of an engine's step, each run alone at a chosen live length.

The one place of the benchmark that looks inside an engine: what is timed here
are the engine's own compiled programs on its own kind of state.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from specjax import api
from specjax.cache import SourceCache, is_cache
from specjax.engine.request import Chunk, Request
from specjax.proposers.base import pass_width
from specjax.state import read
from specjax.step import StepParams, context


@functools.lru_cache(maxsize=8)
def _forward(target, features):
  """The target's pass alone; jitted once for all probes of a model."""

  def run(params, tokens, cache):
    out = target(params, tokens, cache, features)
    return out.logits, out.features, out.cache

  return jax.jit(run, donate_argnums=2)


class Probe:
  """An engine's rows, all active at a live length that stays where it is.

  Attributes:
    lookahead: C of the engine.
    width: tokens of a row that its target reads in a drafting step.
    rows: B.
  """

  def __init__(
    self,
    engine: api.Engine,
    request: Request,
    *,
    live: int,
  ):
    """Fills every slot with a request and copies the state that results.

    Args:
      engine: idle; it is idle again afterwards.
      request: what every row runs; its sampling is the rows'.
      live: tokens in the cache of every row, from now on.

    Raises:
      ValueError: there is no room for `live` tokens and a step.
      RuntimeError: the request ends in an error.
    """
    loop = engine.loop
    width = pass_width(loop.proposer)
    room = engine.capacity - width
    if not 1 <= live <= room:
      raise ValueError(
        f"a live length of {live} does not fit; capacity {engine.capacity} has"
        f" room for {room} and a step"
      )
    self.lookahead, self.rows = engine.lookahead, loop.slots
    self.width = width
    self._live = live
    self._params: StepParams = loop.params
    self._programs = loop.programs
    self._proposer = loop.proposer
    # Looked up once: to hash a model takes as long as a quarter of its pass.
    self._run = _forward(engine.target.model, self._proposer.features)
    size = min(len(request.prompt), live)
    budget = engine.capacity - size
    requests = [
      dataclasses.replace(
        request,
        id=f"probe {row}",
        prompt=request.prompt[:size],
        max_new_tokens=budget,
        stop=(),
        lookahead=None,
      )
      for row in range(self.rows)
    ]
    events = engine.run(requests)
    started = 0
    for event in events:
      if not isinstance(event, Chunk) and event.error is not None:
        raise RuntimeError(event.error)
      started += isinstance(event, Chunk)
      if started == self.rows:
        break
    state = jax.tree.map(jnp.copy, loop.state)
    events.close()
    self._budget = budget
    self._state = self._primed(state)
    self._draft = jax.jit(self._propose, donate_argnums=1)

  def plain_step(self) -> None:
    """A step of the plain program, read by the host as the engine does."""
    self._step(self._programs.plain)

  def wide_step(self) -> None:
    """A step of the speculating program, read by the host."""
    self._step(self._programs.speculate)

  def forward(self, width: int) -> None:
    """The target's pass over `width` tokens, and nothing else."""
    state = self._state
    tokens = jnp.zeros((self.rows, width), jnp.int32)
    *out, cache = self._run(self._params.target, tokens, state.cache)
    jax.block_until_ready((out, cache))
    self._state = dataclasses.replace(state, cache=cache)

  def draft(self) -> None:
    """The proposer's ingest and draft, and nothing else."""
    proposal, state = self._draft(self._params, self._state)
    jax.block_until_ready((proposal, state))
    self._state = state

  def prime(self, live: int | None = None) -> None:
    """Makes the rows what they were at first: call it before timing a part.

    Args:
      live: their length from now on; as before if None.
    """
    if live is not None:
      self._live = live
    self._state = jax.block_until_ready(self._primed(self._state))

  def _step(self, program) -> None:
    self._state, emitted = program(self._params, self._state)
    read(emitted)

  def _propose(self, params, state):
    proposer = self._proposer
    ctx = context(params, state, self.lookahead)
    draft = proposer.ingest(params.proposer, state.draft, state.committed, ctx)
    proposal, draft, cache = proposer.draft(params.proposer, draft, ctx)
    return proposal, dataclasses.replace(state, draft=draft, cache=cache)

  def _primed(self, state):
    """The state with every row active, in the middle of its answer."""
    whole = lambda value: jnp.full((self.rows,), value, jnp.int32)
    return dataclasses.replace(
      with_lengths(state, self._live, self.rows),
      active=jnp.ones((self.rows,), bool),
      budget=whole(self._budget),
      lookahead=whole(self.lookahead),
      committed=dataclasses.replace(state.committed, count=whole(1)),
    )


def with_lengths(tree: Any, live: int, rows: int) -> Any:
  """The tree with every cache in it holding `live` tokens a row.

  With a source, they are its own and, at least one, the output's.
  """
  is_whole = lambda node: is_cache(node) or isinstance(node, SourceCache)

  def one(node):
    if not is_whole(node):
      return node
    size = node.source.length if isinstance(node, SourceCache) else 0
    return node.at(jnp.maximum(jnp.full((rows,), live, jnp.int32) - size, 1))

  return jax.tree.map(one, tree, is_leaf=is_whole)


def typical(requests: Sequence[Request], live: float) -> Request:
  """The request whose prompt is the longest that ends below `live` tokens."""
  fitting = [r for r in requests if len(r.prompt) <= live] or list(requests)
  return max(fitting, key=lambda request: len(request.prompt))
