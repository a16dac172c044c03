"""Bytes that a decoding step reads: weights and live cache."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from specjax import making
from specjax.benchmark.answers import Answer
from specjax.models import decoder
from specjax.models.attend import block_size
from specjax.models.base import Model
from specjax.models.heads import thin
from specjax.proposers.base import Proposer
from specjax.proposers.layer_skip import LayerSkip
from specjax.proposers.medusa import Medusa


def weight_bytes(model: Model, shapes: Sequence | None = None) -> int:
  """Bytes of weights that one pass reads.

  An embedding table counts where the head is tied to it, and is read whole; of
  another one a pass gathers a few rows, which do not count. Nor does what only
  an encoder reads, once a request.

  Args:
    model: its paths.
    shapes: of its parameters, where they are not the model's own.
  """
  config = model.config
  total = 0
  shapes = model.shapes if shapes is None else shapes
  for path, spec in zip(model.paths, shapes, strict=True):
    if decoder.is_of_source(path):
      continue
    is_table = path.startswith(("embed.", "position"))
    if is_table and not (path.startswith("embed.") and config.tied):
      continue
    total += _bytes(spec)
  return total


def cache_bytes(model: Model, live: int) -> float:
  """Bytes of keys and values that a pass over one token reads.

  Whole blocks of attention, in each layer from the block where its window
  begins (see `models.attend`).

  Args:
    model: whose cache it is.
    live: tokens the pass may see, its own included, and those of a source; at
      least 1.
  """
  layers = model.config.layers
  block = block_size(jax.default_backend())
  last = (live - 1) // block
  blocks = 0
  for window in model.config.windows or (0,) * layers:
    first = max(live - window, 0) // block if window else 0
    blocks += last + 1 - first
  return _position_bytes(model) / layers * block * blocks


def step_bytes(
  target: Model,
  answers: Sequence[Answer],
  *,
  draft: Callable[[int], float] | None = None,
  wide_share: float = 1.0,
) -> float:
  """Bytes that the mean step of these answers reads.

  Args:
    target: the model that every step runs once.
    answers: steps are taken as evenly spread over each answer's tokens.
    draft: bytes that one step's drafting reads, of the live length; None if it
      reads nothing.
    wide_share: share of steps that draft.
  """

  def mean(read: Callable[[int], float]) -> float:
    total = positions = 0
    for answer in answers:
      for index in range(1, len(answer.token_ids)):
        total += read(answer.prompt_tokens + index)
        positions += 1
    return total / positions if positions else read(1)

  read = weight_bytes(target) + mean(functools.partial(cache_bytes, target))
  if draft is not None:
    read += wide_share * mean(draft)
  return read


def drafting(
  proposer: Proposer, target: Model, weights: str | None = None
) -> Callable[[int], float] | None:
  """What `step_bytes` wants to know of a proposer; None if it reads nothing.

  Args:
    proposer: any of `proposers.kinds.KINDS`.
    target: whose tables heads read where they have none of their own.
    weights: what the draft's are rounded to; see `api.Engine`.
  """
  model, count = getattr(proposer, "model", None), proposer.lookahead
  if model is None:
    return None
  if isinstance(proposer, LayerSkip):
    return lambda live: count * _of_layers(model, proposer.layers, live)
  if isinstance(model, decoder.Model):
    whole = weight_bytes(model, making.shapes_of(model, weights))
    return lambda live: count * (whole + cache_bytes(model, live))
  shapes = making.shapes_of(model, weights)
  own = list(zip(model.head.paths, map(_bytes, shapes), strict=False))
  tables = ("embed.weight", "head.weight")
  whole = sum(size for path, size in own if path not in tables)
  has_table = any(path.endswith("head.weight") for path, _ in own)
  # Whose table it is does not matter; heads have it for some of the ids.
  width = target.config.d_model
  if isinstance(model, thin.ThinModel):
    width = model.model.config.d_model
  table = model.draft_vocab * width * jnp.dtype(model.dtype).itemsize
  if weights is not None and (model.is_reduced or model.has_table):
    table = model.draft_vocab * (width + 4)  # And a scale a row.
  if isinstance(proposer, Medusa):
    config = model.config
    shared = table if config.shares else 0
    return lambda live: whole * count / config.heads + shared
  if isinstance(model, thin.ThinModel) or not has_table:
    whole += table
  else:
    whole += sum(size for path, size in own if path == tables[1])
  size = block_size(jax.default_backend())
  block = _position_bytes(model) * size
  return lambda live: count * (whole + block * (1 + (live - 1) // size))


def _of_layers(model: decoder.Model, layers: Sequence[int], live: int) -> float:
  """Bytes that one draft of some of a model's layers reads."""
  config = model.config
  windows = config.windows and tuple(config.windows[n] for n in layers)
  # One that differs in its layers alone, the rest being the same.
  part = decoder.build(
    dataclasses.replace(config, layers=len(layers), windows=windows),
    dtype=model.dtype,
  )
  return weight_bytes(part) + cache_bytes(part, live)


def _bytes(tree) -> int:
  leaves = jax.tree.leaves(tree)
  return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _position_bytes(model: Model) -> float:
  """Bytes of keys and values of all layers at one position of one row."""
  cache = jax.eval_shape(lambda: model.init_cache(1, 1))
  stack = getattr(cache, "own", cache)
  return (_bytes(stack.k) + _bytes(stack.v)) / cache.capacity
