"""Where two greedy answers part, and by how little the target preferred one."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import api
from specjax.benchmark.answers import Answer
from specjax.cache import BLOCK
from specjax.engine import filling
from specjax.engine.request import Request


def first(left: Sequence[int], right: Sequence[int]) -> int | None:
  """The first position at which both have a token, and not the same."""
  for index, (a, b) in enumerate(zip(left, right, strict=False)):
    if a != b:
      return index
  return None


class Judge:
  """Reads the target's logits where answers part; compiled if any do."""

  def __init__(self, target: api.Pretrained, requests: Sequence[Request]):
    """Takes the target, and the requests that all answers are to."""
    self._model, self._params = target.model, target.params
    self._requests = requests
    longest = max(len(r.prompt) + r.max_new_tokens for r in requests)
    self._width = -(-longest // BLOCK) * BLOCK
    self._logits = jax.jit(self._at)

  def margins(
    self, plain: Sequence[Answer], other: Sequence[Answer]
  ) -> list[dict[str, Any]]:
    """Where answers part from plain decoding's.

    Args:
      plain: of the plain run, an answer a request.
      other: of another contestant.

    Returns:
      Of each answer that parts: its id, the position of its first other token,
      and by how much the target's logit of the plain token is above that of
      the other one, in one pass over what both have in common. Where answers
      part by rounding alone, it is about as small as the dtype is coarse.
    """
    found = []
    for request, a, b in zip(self._requests, plain, other, strict=True):
      position = first(a.token_ids, b.token_ids)
      if position is None:
        continue
      said, start_id = a.token_ids[:position], filling.start_id(self._model)
      source, begin = np.zeros((2, 1, self._width), np.int32)
      prefix = (*request.prompt, *said)
      if start_id is not None:
        source[0, : len(request.prompt)] = request.prompt
        prefix = (start_id, *said)
      begin[0, : len(prefix)] = prefix
      logits = self._logits(
        *(self._params, begin, np.int32(len(prefix) - 1)),
        *(source, np.int32([len(request.prompt)])),
      )
      logits = np.asarray(logits, np.float32)
      margin = logits[a.token_ids[position]] - logits[b.token_ids[position]]
      found.append(
        {"id": request.id, "position": position, "margin": float(margin)}
      )
    return found

  def _at(self, params, tokens, position, source, size):
    cache = self._model.init_cache(1, self._width)
    if filling.reads_source(self._model):
      cache = self._model.encode(params, source, size, cache)
    logits = self._model(params, tokens, cache).logits[0]  # T V
    return jnp.take(logits, position, axis=0)
