"""Everything a batch of rows carries from step to step, and its commit."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specjax.judging import Judged
from specjax.logprobs import Scores
from specjax.models.base import Output
from specjax.penalties import Penalties
from specjax.proposers.base import Proposal, Proposer
from specjax.sampling import RowSettings
from specjax.types import Array, Block, struct


@struct
class Emitted:
  """What one step gave each row; small, and read by the host.

  Attributes:
    tokens: int32 [B, W]; valid below `count`.
    count: int32 [B], 0 for rows that are not active.
    drafted: int32 [B], tokens proposed. accepted: int32 [B], of them kept.
    active: bool [B], whether the row goes on.
    promising: bool [B], whether the proposer would have something for the row
      in the next step.
    failed: bool [B], the target's logits were not finite: the row has no
      distribution, nothing was emitted, and the row has stopped.
    scores: log-probabilities of `tokens`, valid where they are and the row
      asks.
  """

  tokens: Array
  count: Array
  drafted: Array
  accepted: Array
  active: Array
  promising: Array
  failed: Array
  scores: Scores


def read(emitted: Emitted) -> Emitted:
  """The same in the host's memory, once the device has it.

  `jax.device_get` takes 8 microseconds for an array, which is good for what has
  to be fetched: on CPU nothing has.
  """
  if jax.default_backend() == "cpu":
    return jax.tree.map(np.asarray, emitted)
  return jax.device_get(emitted)


@struct
class State:
  """The rows of a batch.

  Attributes:
    cache: the target's cache: keys and values of all but the last token.
    draft: the proposer's state.
    last_token: int32 [B], committed, not yet in the cache.
    history: int32 [B, S], prompt and output; valid up to and with
      `cache.length`, where last_token stands. [B, 2 S] where an encoder reads
      the prompt: the first half begins with the start token, the second ends
      with the prompt, before which -1 stands.
    committed: what the last step committed, for the proposer to ingest.
    sampling: settings of each row.
    penalties: penalties and biases of each row, and their counts.
    scored: bool [B], rows that ask for log-probabilities.
    lookahead: int32 [B], the most tokens a row may propose, <= C.
    budget: int32 [B], tokens a row may still emit.
    active: bool [B], whether a row is decoding (not idle, prefilling, done).
    stop_ids: int32 [E], ids that end a row; unused entries are -1.
  """

  cache: Any
  draft: Any
  last_token: Array
  history: Array
  committed: Block
  sampling: RowSettings
  penalties: Penalties
  scored: Array
  lookahead: Array
  budget: Array
  active: Array
  stop_ids: Array

  def commit(
    self,
    judged: Judged,
    proposal: Proposal,
    out: Output,
    draft: Any,
    proposer: Proposer,
    scores: Scores,
  ) -> tuple["State", Emitted]:
    """Trims what a step drew to what each row may emit, and appends it.

    A row ends at its first stop id (which it emits), at its budget, or when
    its logits are not finite. Lengths move; no cache entry is erased.
    """
    verdict = judged.verdict
    width = self.committed.tokens.shape[1]
    index = jnp.arange(verdict.tokens.shape[1], dtype=jnp.int32)
    tokens = verdict.tokens
    reached = index < verdict.count[:, None]
    stops = jnp.isin(tokens, self.stop_ids) & reached
    first = jnp.argmax(stops, axis=1).astype(jnp.int32)
    stopped = jnp.any(stops, axis=1)
    count = jnp.where(stopped, first + 1, verdict.count)
    count = jnp.minimum(count, self.budget)

    # What lies behind the row's end was never its to say.
    bad = (index < count[:, None]) & ~judged.usable
    failed = self.active & jnp.any(bad, axis=1)
    count = jnp.where(self.active & ~failed, count, 0)
    stopped = stopped & (first < count)

    budget = self.budget - count
    active = self.active & ~failed & ~stopped & (budget > 0)
    block = jnp.pad(tokens, ((0, 0), (0, width - tokens.shape[1])))
    last = jnp.take_along_axis(
      tokens, jnp.maximum(count - 1, 0)[:, None], axis=1
    )[:, 0]
    state = dataclasses.replace(
      self,
      cache=out.cache.commit(count),
      draft=draft,
      last_token=jnp.where(count > 0, last, self.last_token),
      history=self._append(block, count),
      committed=Block(
        tokens=block,
        count=count,
        features=self._features(out.features, count),
      ),
      penalties=self.penalties.commit(block, count),
      budget=budget,
      active=active,
    )
    promising = proposer.promising(state.history, state.cache.length)
    emitted = Emitted(
      tokens=block,
      count=count,
      drafted=jnp.where(count > 0, proposal.count, 0),
      accepted=jnp.minimum(verdict.count - 1, count),
      active=active,
      promising=promising & active & (state.lookahead > 0) & (budget > 1),
      failed=failed,
      scores=scores,
    )
    return state, emitted

  def _append(self, block, count):
    """History with the block's valid tokens; a prefilling row's holds a
    prompt beyond its length, so nothing else may be written.
    """

    def row(history, tokens, count, at):
      width = tokens.shape[0]
      old = lax.dynamic_slice_in_dim(history, at, width)
      new = jnp.where(jnp.arange(width) < count, tokens, old)
      return lax.dynamic_update_slice_in_dim(history, new, at, axis=0)

    at = self.cache.length + 1
    return jax.vmap(row)(self.history, block, count, at)

  def _features(self, new, count):
    """The block's features; rows that committed nothing keep what they had.

    So do all rows of a plain step, which has none: nobody drafts from them.
    """
    old = self.committed.features
    if old is None or new is None:
      return old
    pad = [(0, 0)] * new.ndim
    pad[1] = (0, old.shape[1] - new.shape[1])
    keep = (count > 0).reshape(-1, *[1] * (new.ndim - 1))
    return jnp.where(keep, jnp.pad(new, pad), old)
