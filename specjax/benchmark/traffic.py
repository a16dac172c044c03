"""Bytes that a decoding step reads: weights and live cache."""

import math
from collections.abc import Sequence

import jax

from specjax.benchmark.answers import Answer
from specjax.cache import BLOCK
from specjax.models.base import Model


def weight_bytes(model: Model) -> int:
  """Bytes of weights that one pass reads.

  An embedding table counts where the head is tied to it, and is read whole; of
  another one a pass gathers a few rows, which do not count.
  """
  config = model.config
  total = 0
  for path, spec in zip(model.paths, model.shapes, strict=True):
    is_table = path.startswith(("embed.", "position"))
    if is_table and not (path.startswith("embed.") and config.tied):
      continue
    total += math.prod(spec.shape) * spec.dtype.itemsize
  return total


def cache_bytes(model: Model, live: int) -> float:
  """Bytes of keys and values that a pass over one token reads.

  Whole blocks of attention, in each layer from the block where its window
  begins (see `models.attend`).

  Args:
    model: whose cache it is.
    live: tokens the pass may see, its own included; at least 1.
  """
  layers = model.config.layers
  last = (live - 1) // BLOCK
  blocks = 0
  for window in model.config.windows or (0,) * layers:
    first = max(live - window, 0) // BLOCK if window else 0
    blocks += last + 1 - first
  return _position_bytes(model) / layers * BLOCK * blocks


def step_bytes(
  target: Model,
  answers: Sequence[Answer],
  *,
  draft: Model | None = None,
  lookahead: int = 0,
  wide_share: float = 1.0,
) -> float:
  """Bytes that the mean step of these answers reads.

  Args:
    target: the model that every step runs once.
    answers: steps are taken as evenly spread over each answer's tokens.
    draft: the model that drafting steps run C times; None if no model drafts.
    lookahead: C.
    wide_share: share of steps that draft.
  """

  def mean(model: Model) -> float:
    total = positions = 0
    for answer in answers:
      for index in range(1, len(answer.token_ids)):
        total += cache_bytes(model, answer.prompt_tokens + index)
        positions += 1
    live = total / positions if positions else cache_bytes(model, 1)
    return weight_bytes(model) + live

  read = mean(target)
  if draft is not None:
    read += wide_share * lookahead * mean(draft)
  return read


def _position_bytes(model: Model) -> float:
  """Bytes of keys and values of all layers at one position of one row."""
  cache = jax.eval_shape(lambda: model.init_cache(1, BLOCK))
  size = lambda leaf: math.prod(leaf.shape) * leaf.dtype.itemsize
  return (size(cache.k) + size(cache.v)) / cache.k.shape[3]
