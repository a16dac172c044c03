"""What of a proposal is kept, in as few readings of the logits as it takes."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from specjax import sampling
from specjax.proposers.base import Context, Proposal
from specjax.sharding.placement import LOGITS, Placement, constrain
from specjax.types import Array, struct
from specjax.verifiers import siblings
from specjax.verifiers.base import Verdict, Verifier, VerifyNoise, greedy


@struct
class Judged:
  """What rows emit, and where the target said it.

  Attributes:
    verdict: of each row.
    at: int32 [B, C + 1], the position of the pass that each emitted token was
      drawn at; None where that is its own index.
    usable: bool [B, C + 1], whether there was a distribution to draw it from.
  """

  verdict: Verdict
  at: Array | None
  usable: Array


def judge_with(
  verifier: Verifier, placement: Placement | None
) -> Callable[[Array, Proposal, Context], Judged]:
  """A function of the target's raw logits [B, 1 + C + M, V] at a block.

  Args:
    verifier: says what is kept of the drafts.
    placement: how logits are split, or None.
  """
  by_vocab = functools.partial(constrain, placement, names=LOGITS)

  def choose(best, proposal):
    drafts = dataclasses.replace(proposal, q=None, kept=None, siblings=None)
    return jax.vmap(greedy)(best, drafts)

  def draw(p, proposal, ctx):
    law = jax.vmap(verifier.law)(by_vocab(p), proposal.whole(p.shape[-1]))
    return jax.vmap(verifier.draw)(law, _noise(ctx, p.shape))

  def warmed(logits, top, proposal, ctx):
    """The verdict on the drafts alone, where rows draw from the law as is."""
    width = proposal.tokens.shape[1] + 1
    logits, top = logits[:, :width], top[:, :width]
    p = sampling.warmed(logits, ctx.sampling.temperature, top)  # B C+1 V
    return draw(p, proposal, ctx)

  def chain(logits, proposal, ctx):
    """The same with filters and penalties."""
    logits = logits[:, : proposal.tokens.shape[1] + 1]
    logits = ctx.penalties.apply(logits, proposal.tokens)
    return lax.cond(
      ctx.noise.is_greedy,
      lambda: choose(sampling.argmax(logits), proposal),
      lambda: draw(sampling.probs(logits, ctx.sampling), proposal, ctx),
    )

  def after(logits, at, verdict, ctx):
    """What the target says at one position of each row, after its verdict."""
    logits = jnp.take_along_axis(logits, at[:, None, None], 1, mode="clip")
    logits = by_vocab(logits)
    logits = ctx.penalties.apply(logits, verdict.tokens, verdict.count)
    law = by_vocab(sampling.probs(logits, ctx.sampling))[:, 0]
    noise = ctx.noise.exponential(sampling.RESIDUAL, 1, law.shape[1])
    return sampling.race(law, noise)

  def judge(logits, proposal, ctx):
    best, top = sampling.largest(logits)
    usable = jnp.isfinite(top)
    width = proposal.tokens.shape[1] + 1
    # Apart is what needs no logits but those that the target wrote: a branch
    # that hands them on copies them.
    bare = ~jnp.any(ctx.penalties.asked)
    plainly = bare & ctx.noise.is_greedy
    warm = bare & sampling.is_plain(ctx.sampling)
    verdict = lax.switch(
      jnp.where(plainly, 0, jnp.where(warm, 1, 2)),
      (
        lambda: choose(best[:, :width], proposal),
        lambda: warmed(logits, top, proposal, ctx),
        lambda: chain(logits, proposal, ctx),
      ),
    )
    if proposal.siblings is None:
      return Judged(verdict=verdict, at=None, usable=usable)
    found = siblings.find(verdict, proposal)
    own = jnp.take_along_axis(best, found[:, None], axis=1)[:, 0]
    token = lax.cond(
      plainly | ~jnp.any(found > 0),
      lambda: own,
      lambda: after(logits, found, verdict, ctx),
    )
    verdict = siblings.extend(verdict, found, token)
    at = siblings.read_at(verdict, found)
    usable = jnp.take_along_axis(usable, at, axis=1)
    return Judged(verdict=verdict, at=at, usable=usable)

  return judge


def _noise(ctx: Context, shape: tuple[int, ...]) -> VerifyNoise:
  _, block, vocab = shape
  return VerifyNoise(
    uniform=ctx.noise.uniform(sampling.ACCEPT, block - 1),
    exponential=ctx.noise.exponential(sampling.RESIDUAL, 0, vocab),
  )


def block_of(
  last_token: Array, proposal: Proposal, length: Array
) -> tuple[Array, Array | None]:
  """What the target reads: last token, drafts, siblings.

  Args:
    last_token, length: int32 [B]; see `Context`.
    proposal: of the B rows.

  Returns:
    int32 [B, 1 + C + M], and the positions that they stand at; None where
    those simply follow.
  """
  tokens, ahead = siblings.layout(proposal)
  block = jnp.concatenate([last_token[:, None], tokens], axis=1)
  if proposal.siblings is None:
    return block, None
  return block, length[:, None] + jnp.pad(ahead, ((0, 0), (1, 0)))
