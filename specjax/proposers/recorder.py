"""Proposes nothing and keeps the target's hidden states, for training data."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from specjax.cache import KVCache, pack, write_by_row, write_unrolled
from specjax.proposers.none import NoProposer
from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorder(NoProposer):
  """Writes down what it is given of a row, at the row's own length.

  Its state is a KVCache of one layer, n "heads" of size D and no values: what
  a cache does well, keeping rows of unequal length in place, is all of it.
  Position i holds the state that predicted token i.

  Attributes:
    features: the n layers whose states are kept; see `Model`.
    width: D of the target.
    lookahead: 0.
  """

  features: tuple[int, ...]
  width: int
  lookahead: int = 0

  def init(self, rows, capacity):
    """See `Proposer`."""
    empty = KVCache.zeros(
      layers=1,
      rows=rows,
      heads=len(self.features),
      capacity=capacity,
      head_dim=self.width,
      dtype=jnp.bfloat16,
    )
    return dataclasses.replace(empty, v=empty.v[:, :, :0])

  def shardings(self, state, placement):
    """See `Proposer`: every device has all of it."""
    whole = lambda leaf: placement.sharding([None] * leaf.ndim)
    return jax.tree.map(whole, state)

  def ingest(self, params, state, block, ctx):
    """See `Proposer`."""
    del params, ctx
    new = pack(block.features.swapaxes(1, 2), state.k.dtype)  # B n T D
    k = lax.platform_dependent(
      state.k,
      new,
      state.length,
      jnp.int32(0),
      cpu=write_by_row,
      default=write_unrolled,
    )
    return dataclasses.replace(state, k=k).commit(block.count)


def kept(state: KVCache, last: Array, row: Array) -> tuple[Array, Array, Array]:
  """What a recorder holds of a row, to be jitted and read by the host.

  Args:
    state: the recorder's.
    last: [B, W, n, D], features of the block that was committed last, which
      the next step would have written.
    row: int32 scalar.

  Returns:
    Written states [n, S, D] in storage dtype, how many (int32 scalar), and
    the last block's [W, n, D].
  """
  one = lambda leaf, axis: lax.dynamic_index_in_dim(leaf, row, axis, False)
  return one(state.k[0], 0), one(state.length, 0), one(last, 0)
