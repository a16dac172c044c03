"""The propose-verify step: the algorithm of the papers on one screen."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from specjax import logprobs, sampling
from specjax.models.base import Model
from specjax.proposers.base import Context, Proposer, placement_of
from specjax.sharding.placement import LOGITS, constrain
from specjax.sharding.search import largest
from specjax.state import Emitted, State
from specjax.types import Array, Params, struct
from specjax.verifiers.base import Verifier, VerifyNoise, greedy


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
  With `NoProposer` the same function is plain decoding.

  Args:
    target, proposer, verifier: the three parts.
    top_logprobs: of how many of the likeliest tokens log-probabilities are
      reported, to rows that ask.
  """

  place = placement_of(target)
  by_vocab = functools.partial(constrain, place, names=LOGITS)
  top_k = functools.partial(largest, place)

  def draw(logits, proposal, ctx):
    p = by_vocab(sampling.probs(logits, ctx.sampling))  # B C+1 V
    law = jax.vmap(verifier.law)(p, proposal)
    return jax.vmap(verifier.draw)(law, _noise(ctx, p.shape))

  def choose(logits, proposal):
    # What `draw` gives where no row samples, in one reading of the logits.
    return jax.vmap(greedy)(sampling.argmax(logits), proposal)

  def judge(logits, proposal, ctx):
    logits = ctx.penalties.apply(logits, proposal.tokens)
    return lax.cond(
      ctx.noise.is_greedy,
      lambda: choose(logits, proposal),
      lambda: draw(logits, proposal, ctx),
    )

  def step(params: StepParams, state: State) -> tuple[State, Emitted]:
    ctx = context(params, state, proposer.lookahead)
    with jax.named_scope("draft"):
      draft = proposer.ingest(
        params.proposer, state.draft, state.committed, ctx
      )
      proposal, draft, cache = proposer.draft(params.proposer, draft, ctx)
    with jax.named_scope("verify"):
      block = _prepend(state.last_token, proposal.tokens)
      out = target(params.target, block, cache, proposer.features)
      with jax.named_scope("sampling"):
        # First what needs no logits but those that the target wrote: a branch
        # that hands them on copies them.
        verdict = lax.cond(
          ctx.noise.is_greedy & ~jnp.any(ctx.penalties.asked),
          lambda: choose(out.logits, proposal),
          lambda: judge(out.logits, proposal, ctx),
        )
    with jax.named_scope("commit"):
      scores = logprobs.score(
        out.logits,
        verdict.tokens,
        jnp.any(state.scored),
        top_logprobs,
        top_k,
      )
      return state.commit(verdict, proposal, out, draft, proposer, scores)

  return step


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


def _prepend(last_token: Array, tokens: Array) -> Array:
  return jnp.concatenate([last_token[:, None], tokens], axis=1)


def _noise(ctx: Context, shape: tuple[Any, ...]) -> VerifyNoise:
  _, block, vocab = shape
  return VerifyNoise(
    uniform=ctx.noise.uniform(sampling.ACCEPT, block - 1),
    exponential=ctx.noise.exponential(sampling.RESIDUAL, 0, vocab),
  )
