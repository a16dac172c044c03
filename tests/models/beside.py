"""Blocks with siblings behind the chain, and what they have to be equal to.

A block is the last token, C drafts, and M siblings, each at the position of the
draft that it stands beside, with its key behind the whole chain.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

PLACES = (0, 2, 2, -1)  # of each sibling; -1 stands for none, as place 0
CHAIN, WIDTH = 4, 4 + len(PLACES)


def at(length):
  """(positions, slots) of a block, int32 [B, WIDTH] each."""
  chain = np.arange(CHAIN)
  beside = 1 + np.maximum(PLACES, 0)
  length = np.asarray(length)[:, None]
  positions = length + np.concatenate([chain, beside])
  slots = length + np.arange(WIDTH)
  return jnp.asarray(positions, jnp.int32), jnp.asarray(slots, jnp.int32)


def as_chains(q, cache):
  """What each sibling is to find: its key put where its draft's was.

  Yields:
    Which query of the block, q [B, 1, N, H], the cache, positions [B, 1].
  """
  positions, slots = at(cache.length)
  rows = np.arange(positions.shape[0])
  for turn in range(CHAIN, WIDTH):
    here, there = np.asarray(positions)[:, turn], np.asarray(slots)[:, turn]

    def moved(stack, here=here, there=there):
      stack = np.array(stack)
      stack[:, rows, :, here] = stack[:, rows, :, there]
      return jnp.asarray(stack)

    chain = dataclasses.replace(cache, k=moved(cache.k), v=moved(cache.v))
    yield turn, q[:, turn : turn + 1], chain, positions[:, turn : turn + 1]


def check(attend, q, cache, *, atol, exact_chain=True):
  """Holds siblings against chains, and the chain against a block without.

  Args:
    attend: (q, cache, positions, slots) -> [B, T, N, H].
    q: [B, WIDTH, N, H].
    cache: with the block's own keys and values at `length` and behind it.
    atol: of siblings.
    exact_chain: whether the chain is bit for bit what it is alone.
  """
  positions, slots = at(cache.length)
  whole = np.asarray(attend(q, cache, positions, slots), np.float32)
  for turn, own, chain, here in as_chains(q, cache):
    expected = np.asarray(attend(own, chain, here, here), np.float32)
    np.testing.assert_allclose(
      whole[:, turn], expected[:, 0], rtol=0, atol=atol
    )
    # It is not the draft's key that it saw.
    other = np.asarray(attend(own, cache, here, here), np.float32)
    assert np.abs(whole[:, turn] - other[:, 0]).max() > 20 * atol
  trunk = slice(0, CHAIN)
  alone = attend(q[:, trunk], cache, positions[:, trunk], positions[:, trunk])
  alone = np.asarray(alone, np.float32)
  if exact_chain:
    np.testing.assert_array_equal(whole[:, trunk], alone)
  else:
    np.testing.assert_allclose(whole[:, trunk], alone, rtol=0, atol=atol)
