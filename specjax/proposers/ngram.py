"""Prompt lookup: copy what followed the last tokens' latest earlier match.

Runs on the device with static shapes. The longest match of up to `longest`
last tokens in prompt + output wins, the latest of equals; what followed it is
proposed. A match that ends d tokens ago is continued with period d, so that a
loop is followed for the whole lookahead (Saxena 2023 proposes only what was
already there).
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from specjax.proposers.base import Proposal
from specjax.types import Array


def lookup(
  history: Array, length: Array, *, shortest: int, longest: int, width: int
) -> tuple[Array, Array]:
  """Continues one row's history after the best earlier match of its end.

  Args:
    history: int32 [S]; entries at or after `length` are never read.
    length: int32 scalar, valid tokens.
    shortest: least number of last tokens that must match, >= 1.
    longest: most of them that are compared.
    width: C, how many tokens to propose.

  Returns:
    Tokens int32 [C], and whether there was a match (bool scalar).
  """
  size = history.shape[0]
  ends = jnp.arange(size, dtype=jnp.int32)  # a match ends just before here
  run = jnp.ones((size,), bool)
  matched = jnp.zeros((size,), jnp.int32)
  for back in range(1, longest + 1):
    here = jnp.roll(history, back)  # here[e] = history[e - back]
    last = history[jnp.maximum(length - back, 0)]
    run = run & (here == last) & (ends >= back)
    matched = matched + run.astype(jnp.int32)
  # A match of the end with itself is none.
  good = (matched >= shortest) & (ends < length)
  best = jnp.argmax(jnp.where(good, matched * size + ends, -1))
  best = best.astype(jnp.int32)
  period = jnp.maximum(length - best, 1)
  follow = best + jnp.arange(width, dtype=jnp.int32) % period
  return history[jnp.clip(follow, 0, size - 1)], good[best]


LONGEST = 64  # every length up to the longest is compared, unrolled


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ngram:
  """Prompt lookup over a row's own prompt and output.

  Attributes:
    lookahead: C.
    shortest: least number of tokens that must match.
    longest: most tokens that are compared.
    reads_source: whether the prompt is an encoder's source, which stands in the
      second half of a history; see `state.State`. The output is looked up in
      both, as if it came right behind the source.
  """

  lookahead: int
  shortest: int = 2
  longest: int = 4
  reads_source: bool = False
  features: tuple[int, ...] = ()

  def __post_init__(self):
    if not 1 <= self.shortest <= self.longest:
      raise ValueError(
        f"ngram sizes {self.shortest}..{self.longest} are not a range from 1; "
        "give 1 <= shortest <= longest"
      )
    if self.longest > LONGEST:
      raise ValueError(
        f"ngram's longest is {self.longest}; give at most {LONGEST}"
      )

  def init(self, rows, capacity):
    """See `Proposer`."""
    del rows, capacity
    return ()

  def ingest(self, params, state, block, ctx):
    """See `Proposer`."""
    del params, block, ctx  # the history is all it needs
    return state

  def draft(self, params, state, ctx):
    """See `Proposer`."""
    del params
    tokens, found = self._lookup(ctx.history, ctx.length)
    count = jnp.where(found, ctx.lookahead, 0)
    return Proposal(tokens=tokens, q=None, count=count), state, ctx.cache

  def promising(self, history, length):
    """See `Proposer`."""
    return self._lookup(history, length)[1]

  def _lookup(self, history, length):
    if self.reads_source:
      own, source = jnp.split(history, 2, axis=1)
      history = jnp.concatenate([source, own], axis=1)
      length = length + source.shape[1]
    find = functools.partial(
      lookup,
      shortest=self.shortest,
      longest=self.longest,
      width=self.lookahead,
    )
    return jax.vmap(find)(history, length + 1)
