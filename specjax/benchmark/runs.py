"""Our own runs: an engine each, over weights that all of them share."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from specjax import api
from specjax.benchmark.answers import Answer
from specjax.benchmark.asked import KINDS as KINDS
from specjax.benchmark.asked import PLAIN as PLAIN
from specjax.benchmark.asked import Asked
from specjax.engine import filling
from specjax.engine.request import Chunk, Request
from specjax.proposers import kinds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """An engine that answers and is timed; see `answers.Contestant`.

  Attributes:
    name: unique.
    kind: of KINDS.
    lookahead: C, or None for plain decoding.
    engine: ready and warm.
    startup_s: seconds to load the weights and to compile.
    clock: seconds.
  """

  name: str
  kind: str
  lookahead: int | None
  engine: Any
  startup_s: float
  clock: Callable[[], float] = time.perf_counter

  def answer(self, requests: Sequence[Request]) -> list[Answer]:
    """See `answers.Contestant`."""
    times: dict[str, list[float]] = {r.id: [] for r in requests}
    done = {}
    start = self.clock()
    for event in self.engine.run(requests):
      now = self.clock() - start
      if isinstance(event, Chunk):
        times[event.id] += [now] * len(event.token_ids)
      elif event.error is not None:
        raise RuntimeError(f"{self.name}, prompt {event.id!r}: {event.error}")
      else:
        done[event.id] = event
    return [
      Answer(
        id=request.id,
        prompt_tokens=len(request.prompt),
        token_ids=done[request.id].token_ids,
        times_s=tuple(times[request.id]),
        steps=done[request.id].steps,
        drafted_at=done[request.id].drafted_per_position,
        accepted_at=done[request.id].accepted_per_position,
        first_drafted=self._drafts_first(request),
      )
      for request in requests
    ]

  def _drafts_first(self, request: Request) -> bool:
    """Whether the proposer has something right after the prompt."""
    if self.lookahead is None or request.max_new_tokens < 2:
      return False
    # Of one shape for all prompts: a second one would be compiled.
    start_id = filling.start_id(self.engine.target.model)
    halves = 1 if start_id is None else 2
    history = np.zeros((1, halves * self.engine.capacity), np.int32)
    size = filling.lay_out(history[0], request.prompt, start_id)
    length = np.full((1,), size - 1, np.int32)
    return bool(_promising(self.engine.loop.proposer, history, length)[0])


@functools.partial(jax.jit, static_argnums=0)
def _promising(proposer, history, length):
  return proposer.promising(history, length)


def make(
  target: api.Pretrained,
  kind: str,
  lookahead: int | None = None,
  siblings: int = 0,
  *,
  name: str | None = None,
  draft: api.Pretrained | api.Head | None = None,
  layers: str | None = None,
  load_s: float = 0.0,
  clock: Callable[[], float] = time.perf_counter,
  ngram_min: int | None = None,
  ngram_max: int | None = None,
  check: Callable[[api.Engine], None] = lambda engine: None,
  **options: Any,
) -> Run:
  """Makes an engine and compiles it.

  Args:
    target: its weights are shared by all runs.
    kind: of KINDS.
    lookahead: C; None for plain decoding.
    siblings: M; see `api.Engine`.
    name: what it is called, as in `Asked`; its kind and C unless given.
    draft: what it drafts with.
    layers: of layer_skip; see `proposers.kinds.layers`.
    load_s: seconds that loading the weights took before.
    clock: seconds.
    ngram_min, ngram_max: for ngram; the proposer's own unless given.
    check: is given the engine before it compiles.
    **options: of `api.Engine`: slots, capacity, seed, verifier.

  Raises:
    ValueError: names what does not fit; or as `check`.
  """
  if kind == PLAIN:
    kept = {"proposer": "none"}
  else:
    kept = {"proposer": kind, "lookahead": lookahead, "draft": draft}
    kept |= {"siblings": siblings}
  if kind == "ngram":
    kept |= {"ngram_min": ngram_min, "ngram_max": ngram_max}
  if kind == "layer_skip":
    kept |= {"draft_layers": kinds.layers(layers)}
  start = clock()
  engine = api.Engine(target, **kept, **options)
  check(engine)
  engine.warmup()
  return Run(
    name=name or Asked(kind=kind, lookahead=lookahead, siblings=siblings).name,
    kind=kind,
    lookahead=lookahead,
    engine=engine,
    startup_s=load_s + clock() - start,
    clock=clock,
  )


def load(
  name: str, *, dtype: str, clock: Callable[[], float] = time.perf_counter
) -> tuple[api.Pretrained, float]:
  """A checkpoint with its weights in memory, and the seconds that took."""
  start = clock()
  loaded = api.load(name, dtype=dtype)
  jax.block_until_ready(loaded.params)
  return loaded, clock() - start


def load_draft(
  kind: str,
  name: str | None,
  target: api.Pretrained,
  *,
  clock: Callable[[], float] = time.perf_counter,
) -> tuple[api.Pretrained | api.Head, float]:
  """What a run drafts with, in memory, and the seconds that took.

  Args:
    kind: of KINDS, one that reads a folder.
    name: as `api.load_draft` takes it; None for what the target carries.
    target: whom it drafts for.
    clock: seconds.
  """
  start = clock()
  loaded = api.load_draft(kind, name, target, dtype=target.model.dtype.name)
  jax.block_until_ready(loaded.params)
  return loaded, clock() - start
