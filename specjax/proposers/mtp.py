"""Drafting with modules of multi-token prediction (DeepSeek-V3 2024, 2.2).

The d-th module drafts the d-th token. Committed tokens are read by all of them,
in one wide pass of each, as in training: a module's pair is a token and what
the module before it made of the token before. A draft has no state of the
target's, so the d-th draft is read by the modules from the (d+1)-th on alone.
Where there are fewer modules than drafts, the last goes on with its own states,
as EAGLE's head does (Li et al. 2024); with one module, as published checkpoints
have it, all of drafting is that.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from specjax.models.heads.mtp import MtpModel
from specjax.proposers import blocks
from specjax.proposers.on_head import OnHead
from specjax.types import Array, Block, struct


@struct
class MtpState:
  """What a row's committed tokens came to.

  Attributes:
    caches: of each module the keys and values of its pairs: one less of them
      than the module before has, and the first one less than there are tokens.
    hidden: [B, K, D], each module's state after its last pair.
    logits: float32 [B, Vd], the first module's prediction after it.
    begun: bool [B, K], whether what comes before a module's first pair has been
      seen.
  """

  caches: tuple[object, ...]
  hidden: Array
  logits: Array
  begun: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mtp(OnHead):
  """Modules that predict ever further on.

  The lookahead may be more than there are modules.
  """

  model: MtpModel

  def init(self, rows, capacity):
    """See `Proposer`."""
    model, depths = self.model, self.model.config.depths
    width = model.config.layer.d_model
    return MtpState(
      caches=tuple(model.init_cache(rows, capacity) for _ in range(depths)),
      hidden=jnp.zeros((rows, depths, width), model.dtype),
      logits=jnp.zeros((rows, model.draft_vocab), jnp.float32),
      begun=jnp.zeros((rows, depths), bool),
    )

  def ingest(self, params, state, block, ctx):
    """See `Proposer`."""
    model, target = self.model, ctx.target_params
    hidden = model.fuse(params, target, block.features)
    block = Block(tokens=block.tokens, count=block.count, features=hidden)
    caches, last, seen, logits = [], [], [], state.logits
    for depth, cache in enumerate(state.caches):
      block, begun = blocks.pairs(block, state.begun[:, depth])
      out, cache = model.read(
        *(params, target, block.tokens, block.features, cache), depth=depth
      )
      keep = functools.partial(blocks.unless_empty, block.count)
      end, before = blocks.last(out, block.count), state.hidden[:, depth]
      if depth == 0:
        new = model.logits(params, target, end)
        logits = keep(new[:, 0], logits)
      caches.append(cache.commit(block.count))
      last.append(keep(end[:, 0], before))
      seen.append(begun)
      # What the next module reads beside a token is of the token before.
      states = jnp.concatenate([before[:, None], out[:, :-1]], axis=1)
      block = dataclasses.replace(block, features=states)
    return MtpState(
      caches=tuple(caches),
      hidden=jnp.stack(last, axis=1),
      logits=logits,
      begun=jnp.stack(seen, axis=1),
    )

  def draft(self, params, state, ctx):
    """See `Proposer`."""
    depths = self.model.config.depths
    starts = tuple(cache.length for cache in state.caches)

    def reads(first, own):
      """How a draft is read by the modules from `first` on.

      Each beside what the one before it made of the draft before; with `own`,
      the last one beside its own.
      """

      def run(token, index, carry):
        hidden, caches = list(carry[0]), list(carry[1])
        for depth in range(first, depths):
          before = carry[0][depth if own else depth - 1]
          hidden[depth], caches[depth] = self.model.read(
            *(params, ctx.target_params, token[:, None], before),
            caches[depth].at(starts[depth] + index - 1),
            depth=depth,
          )
        logits = self.model.logits(
          params, ctx.target_params, hidden[first], depth=first
        )
        return logits[:, 0], (tuple(hidden), tuple(caches))

      return run

    branches = [reads(depth, False) for depth in range(1, depths)]
    branches.append(reads(depths - 1, True))

    def step(token, index, carry):
      which = jnp.minimum(index, depths) - 1
      with jax.named_scope("depths"):  # specjax-lab knows it by that.
        return lax.switch(which, branches, token, index, carry)

    hidden = tuple(state.hidden[:, d, None] for d in range(depths))
    # After a prompt of one token there is nothing to draft from yet.
    proposal, (_, caches) = self.draw(
      *(params, ctx, state.logits, step, (hidden, state.caches)),
      ready=starts[0] > 0,
    )
    caches = tuple(
      cache.at(start) for cache, start in zip(caches, starts, strict=True)
    )
    return proposal, dataclasses.replace(state, caches=caches), ctx.cache
