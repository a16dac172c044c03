"""A model small enough to enumerate, and the drafters that break decoders.

The next token's logits are looked up by (position parity, token before last,
last token). The token before last is read from the cache, so a cache that is
stale, shifted or clobbered changes the law.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specjax.cache import KVCache
from specjax.models.base import Output
from specjax.proposers.base import Proposal, Siblings


@dataclasses.dataclass(frozen=True)
class TableModel:
  """`params` is one float32 array [2, V + 1, V, V]; see `make_table`."""

  vocab_size: int

  def init_cache(self, rows, capacity):
    return KVCache.zeros(
      layers=1,
      rows=rows,
      heads=1,
      capacity=capacity,
      head_dim=1,
      dtype=jnp.float32,
    )

  def move(self, cache, source, to):
    return cache.move(source, to)

  def __call__(
    self, params, tokens, cache, features=(), *, positions=None, last=None
  ):
    (table,) = params
    stored = (tokens + 1).astype(jnp.float32)[:, :, None, None]
    cache = cache.write(0, stored, stored)
    at = cache.slots(tokens.shape[1]) if positions is None else positions
    entries = cache.k[0, :, 0, :, 0]
    before = jnp.take_along_axis(entries, jnp.maximum(at - 1, 0), axis=1)
    # Row V of the table stands for "nothing before".
    before = jnp.where(at > 0, before - 1, self.vocab_size).astype(jnp.int32)
    logits = table[at % 2, before, tokens]
    if last is not None:
      logits = jnp.take_along_axis(logits, last[:, None, None], axis=1)
    kept = None
    if features:
      # Layer n's state is (the token itself, n).
      kept = jnp.stack(
        [jnp.stack([tokens, tokens * 0 + n], -1) for n in features], axis=2
      ).astype(jnp.float32)
    return Output(logits=logits, cache=cache, features=kept)


def make_table(vocab: int, seed: int, spread: float = 1.5):
  """Random logits; `params` of a TableModel."""
  draws = np.random.default_rng(seed)
  shape = (2, vocab + 1, vocab, vocab)
  return (jnp.asarray(draws.normal(0, spread, shape), jnp.float32),)


def next_law(params, history) -> np.ndarray:
  """Raw logits [V] after a history, looked up in numpy: the reference."""
  table = np.asarray(params[0])
  at = len(history) - 1
  before = history[-2] if at else table.shape[-1]
  return table[at % 2, before, history[-1]]


def greedy(params, prompt, count: int) -> list[int]:
  """The target's own greedy continuation: the reference."""
  history = list(prompt)
  for _ in range(count):
    history.append(int(np.argmax(next_law(params, history))))
  return history[len(prompt) :]


@dataclasses.dataclass(frozen=True)
class Scripted:
  """Proposes, deterministically, from the greedy table it is given.

  `shift` 0 makes it an oracle of a greedy target; any other shift (mod V) makes
  it always wrong. Parameters: those of a TableModel.
  """

  lookahead: int
  vocab_size: int
  shift: int = 0
  features: tuple[int, ...] = ()

  def init(self, rows, capacity):
    return ()

  def ingest(self, params, state, block, ctx):
    return state

  def draft(self, params, state, ctx):
    (table,) = params

    def row(history, length):
      last = history[length]
      before = jnp.where(
        length > 0, history[jnp.maximum(length - 1, 0)], self.vocab_size
      )
      tokens = []
      for offset in range(self.lookahead):
        best = jnp.argmax(table[(length + offset) % 2, before, last])
        before, last = last, best.astype(jnp.int32)
        tokens.append((last + self.shift) % self.vocab_size)
      return jnp.stack(tokens)

    tokens = jax.vmap(row)(ctx.history, ctx.length)
    return (
      Proposal(tokens=tokens, q=None, count=ctx.lookahead),
      state,
      ctx.cache,
    )

  def promising(self, history, length):
    return jnp.ones(length.shape, bool)


@dataclasses.dataclass(frozen=True)
class Turning(Scripted):
  """An oracle that is wrong at every third position, and guesses right beside.

  So that siblings are kept behind 0, 1 and 2 drafts. The second sibling is a
  wrong one of the same place.
  """

  siblings: int = 2

  def draft(self, params, state, ctx):
    proposal, state, cache = super().draft(params, state, ctx)
    place = jnp.arange(self.lookahead, dtype=jnp.int32)
    turn = (ctx.length[:, None] + place) % 3 == 2
    first = jnp.argmax(turn, axis=1).astype(jnp.int32)[:, None]
    right = jnp.take_along_axis(proposal.tokens, first, axis=1)
    wrong = jnp.where(turn, 1, 0)
    unused = ((0, 0), (0, self.lookahead - 1))
    return (
      dataclasses.replace(
        proposal,
        tokens=(proposal.tokens + wrong) % self.vocab_size,
        siblings=Siblings(
          tokens=jnp.pad(
            jnp.concatenate([(right + 2) % self.vocab_size, right], 1), unused
          ),
          places=jnp.pad(
            jnp.concatenate([first, first], 1), unused, constant_values=-1
          ),
        ),
      ),
      state,
      cache,
    )
