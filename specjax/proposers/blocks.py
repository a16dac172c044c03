"""What proposers do with a block of newly committed tokens."""

import jax.numpy as jnp

from specjax.types import Array, Block


def last(x: Array, count: Array) -> Array:
  """Of a block [B, T, ...], each row's last valid one: [B, 1, ...].

  Its first where the count, int32 [B], is 0; see `unless_empty`.
  """
  at = jnp.maximum(count - 1, 0)
  at = at.reshape(-1, *[1] * (x.ndim - 1))
  return jnp.take_along_axis(x, at, axis=1)


def unless_empty(count: Array, new: Array, old: Array) -> Array:
  """`new` [B, ...]; a row of which nothing was committed keeps what it had."""
  return jnp.where((count > 0).reshape(-1, *[1] * (new.ndim - 1)), new, old)


def pairs(block: Block, begun: Array) -> tuple[Block, Array]:
  """A block's pairs of a token and what predicted it.

  Nothing predicted a row's very first token: where it is in the block, the
  others are moved to the left of it.

  Args:
    block: with features.
    begun: bool [B], rows whose first token came before.

  Returns:
    The block of pairs, whose count may be 0, and `begun` after it.
  """
  first = ~begun & (block.count > 0)

  def move(x):
    here = first.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(here, jnp.roll(x, -1, axis=1), x)

  moved = Block(
    tokens=move(block.tokens),
    count=block.count - first.astype(jnp.int32),
    features=move(block.features),
  )
  return moved, begun | first
