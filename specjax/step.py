"""The propose-verify step: the algorithm of the papers on one screen."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax import logprobs, sampling
from specjax.judging import Judged, block_of, judge_with
from specjax.models.base import Model, Output
from specjax.proposers.base import Context, Proposer, placement_of
from specjax.sharding.search import largest
from specjax.state import Emitted, State
from specjax.types import Array, Params, struct
from specjax.verifiers.base import Verifier


@struct
class StepParams:
  """Parameters of both models; arguments of every call, never closed over."""

  target: Params
  proposer: Params


def propose_verify(
  target: Model, proposer: Proposer, verifier: Verifier, top_logprobs: int = 0
) -> Callable[[StepParams, State], tuple[State, Emitted]]:
  """The step as a pure function, to be jitted with the state donated.

  Each row drafts up to its lookahead, the target reads last token and drafts in
  one pass of C + 1, and the verifier keeps what the target would have said.
  Siblings of the drafts, if the proposer makes any, are read behind them.
  With `NoProposer` the same function is plain decoding.

  Args:
    target, proposer, verifier: the three parts.
    top_logprobs: of how many of the likeliest tokens log-probabilities are
      reported, to rows that ask.
  """

  place = placement_of(target)
  judge = judge_with(verifier, place)
  top_k = functools.partial(largest, place)

  def step(params: StepParams, state: State) -> tuple[State, Emitted]:
    ctx = context(params, state, proposer.lookahead)
    with jax.named_scope("draft"):
      draft = proposer.ingest(
        params.proposer, state.draft, state.committed, ctx
      )
      proposal, draft, cache = proposer.draft(params.proposer, draft, ctx)
    with jax.named_scope("verify"):
      block, positions = block_of(state.last_token, proposal, ctx.length)
      where = {} if positions is None else dict(positions=positions)
      out = target(params.target, block, cache, proposer.features, **where)
      with jax.named_scope("sampling"):
        judged = judge(out.logits, proposal, ctx)
    with jax.named_scope("commit"):
      scores = logprobs.score(
        out.logits,
        judged.verdict.tokens,
        jnp.any(state.scored),
        top_logprobs,
        top_k,
        at=judged.at,
      )
      if judged.at is not None:
        out = follow(target, out, judged, ctx.length)
      return state.commit(judged, proposal, out, draft, proposer, scores)

  return step


def follow(target: Model, out: Output, judged: Judged, length: Array) -> Output:
  """A pass as if siblings that were kept had been drafts.

  Their keys and values go to where the drafts beside them had theirs.
  """
  count = judged.verdict.count
  # What each row emitted last was drawn behind what it has to keep.
  last = jnp.take_along_axis(judged.at, count[:, None] - 1, axis=1)[:, 0]
  features = out.features
  if features is not None:
    at = judged.at.reshape(*judged.at.shape, *[1] * (features.ndim - 2))
    features = jnp.take_along_axis(features, at, axis=1)
  return Output(
    logits=out.logits,
    cache=target.move(out.cache, length + last, length + count - 1),
    features=features,
  )


def context(params: StepParams, state: State, width: int) -> Context:
  """What the proposer may look at in this step."""
  # A row that may emit n more tokens needs at most n - 1 drafts: the last
  # token of a step is never a draft.
  lookahead = jnp.minimum(state.lookahead, jnp.maximum(state.budget - 1, 0))
  lookahead = jnp.where(state.active, jnp.minimum(lookahead, width), 0)
  return Context(
    target_params=params.target,
    cache=state.cache,
    last_token=state.last_token,
    length=state.cache.length,
    history=state.history,
    sampling=state.sampling,
    penalties=state.penalties,
    noise=sampling.Noise(
      seed=state.sampling.seed,
      base=state.cache.length + 1,
      is_greedy=jnp.all(state.sampling.temperature <= 0),
    ),
    lookahead=lookahead,
  )
