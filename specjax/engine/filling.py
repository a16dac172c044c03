"""How prompts are read: chunk by chunk, or whole by a target's encoder."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specjax.models.base import Model
from specjax.types import Array

_STEP = 4  # how much wider each compiled size of a source is than the last


def reads_source(target: Model) -> bool:
  """Whether a target's encoder reads the prompt, and its output begins anew."""
  return getattr(target, "reads_source", False)


def start_id(target: Model) -> int | None:
  """The token before the first of its outputs, of one that reads a source."""
  return target.config.start_id if reads_source(target) else None


def chunks(platform: str | None = None) -> tuple[int, ...]:
  """Sizes of a prompt's chunks that suit the devices, ascending.

  On TPU a pass reads the weights, however many of the chunk's tokens are
  padding; on CPU it multiplies them all. SmolLM2-135M in bfloat16 on two cores,
  milliseconds a token: 1.6 of 8, 0.8 of 16, 0.7 of 64 and of 128.

  Args:
    platform: the default one unless given.
  """
  platform = platform or jax.default_backend()
  return (16, 64) if platform == "cpu" else (32, 128)


def widths(
  target: Model, given: Sequence[int], capacity: int
) -> tuple[int, ...]:
  """The compiled sizes of what is read at once, ascending.

  Args:
    target: one that reads its prompt whole has sizes up to the capacity.
    given: sizes of a prompt's chunks.
    capacity: most tokens of a prompt.
  """
  found = sorted(given)
  if not reads_source(target):
    return tuple(found)
  while found[-1] < capacity:
    found.append(_STEP * found[-1])
  return (*(width for width in found if width < capacity), capacity)


def width(target: Model, among: Sequence[int], longest: int) -> int:
  """The size, of those that are compiled, to read so many tokens with.

  Chunks are at least half full; a source must fit.
  """
  if reads_source(target):
    return next(size for size in among if size >= longest)
  found = among[0]
  for wider in among[1:]:
    if longest > wider // 2:
      found = wider
  return found


def arguments(
  counts: Mapping[int, int],
  finish: np.ndarray,
  *,
  slots: int,
  whole_batch: bool,
  groups: int | None,
) -> tuple[np.ndarray, ...]:
  """What a program that reads prompts is told: [row,] count, finish.

  Args:
    counts: of each slot that reads, how many tokens.
    finish: bool [B], slots whose prompt ends with them.
    slots: B.
    whole_batch: whether all of them are read in one call.
    groups: of rows, one of each of which is read in one call; None where it is
      one of all.
  """
  count = np.zeros((slots,), np.int32)
  for slot, size in counts.items():
    count[slot] = size
  if whole_batch:
    return count, finish
  if groups is None:
    (slot,) = counts
    return np.int32(slot), count[slot, None], finish[slot, None]
  size = slots // groups
  rows = np.arange(0, slots, size, dtype=np.int32)  # whoever rests
  for slot in counts:
    rows[slot // size] = slot
  return rows % size, count[rows], finish[rows]


def lay_out(
  history: np.ndarray, prompt: Sequence[int], start_id: int | None
) -> int:
  """Writes a prompt into a row of history; see `state.State`.

  Args:
    history: int32 [S], or [2 S] with a start_id; zeros.
    prompt: token ids.
    start_id: what outputs begin with, where the prompt is a source.

  Returns:
    How many tokens stand before the output.
  """
  if start_id is None:
    history[: len(prompt)] = prompt
    return len(prompt)
  history[len(history) // 2 :] = -1
  history[len(history) - len(prompt) :] = prompt
  history[0] = start_id
  return 1


def sources(history: Array, count: Array, width: int) -> Array:
  """The sources that end rows of history, moved to the left.

  Args:
    history: int32 [B, 2 S]; see `state.State`.
    count: int32 [B], tokens of each source.
    width: at least the longest.

  Returns:
    Int32 [B, width]; what stands at and behind `count` is 0.
  """
  padded = jnp.pad(history, ((0, 0), (0, width)))
  take = lambda row, at: lax.dynamic_slice_in_dim(row, at, width)
  return jax.vmap(take)(padded, history.shape[1] - count)
