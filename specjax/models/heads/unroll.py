"""Attention of drafts that begin at every position of a text at once."""

import math

import jax
import jax.numpy as jnp

from specjax.models.attend import MASKED
from specjax.models.product import precision_of
from specjax.types import Array

# Of every step so far: keys and values [B, T, K, H].
Keys = tuple[tuple[Array, Array], ...]


def attend_unrolled(
  q: Array,
  keys: Keys,
  *,
  positions: Array | None = None,
  scale: float | None = None,
  softcap: float | None = None,
) -> Array:
  """What the last of several steps sees, at every position.

  Position i is the beginning of a draft of its own: it sees the first step's
  keys up to i (the text), and of each later step its own, at i.

  Args:
    q: [B, T, N, H], rotated to where the drafts are by now.
    keys: of all steps, this one's the last.
    positions: int32 [B, T], of the first step, where a row holds several texts;
      see `attend_block`.
    scale, softcap: see `attend`.

  Returns:
    [B, T, N, H], in q's dtype.
  """
  rows, width, heads, size = q.shape
  scale = 1.0 / math.sqrt(size) if scale is None else scale
  how = dict(
    precision=precision_of(q.dtype), preferred_element_type=jnp.float32
  )
  (first_k, first_v), *later = keys
  queries = q.reshape(rows, width, first_k.shape[2], -1, size)
  text = jnp.einsum("btkgh,bskh->bkgts", queries, first_k, **how)
  own = [
    jnp.einsum("btkgh,btkh->bkgt", queries, k, **how)[..., None]
    for k, _ in later
  ]
  scores = jnp.concatenate([text, *own], axis=-1) * scale
  if softcap is not None:
    scores = softcap * jnp.tanh(scores / softcap)
  at = jnp.arange(width, dtype=jnp.int32)
  visible = (at <= at[:, None])[None]
  if positions is not None:
    visible = visible & (at >= at[:, None] - positions[..., None])
  ones = jnp.ones((visible.shape[0], width, len(later)), bool)
  visible = jnp.concatenate([visible, ones], axis=-1)[:, None, None]
  weights = jax.nn.softmax(jnp.where(visible, scores, MASKED), axis=-1)
  weights = weights.astype(q.dtype)
  mixed = jnp.einsum("bkgts,bskh->btkgh", weights[..., :width], first_v, **how)
  for step, (_, v) in enumerate(later):
    one = weights[..., width + step]
    mixed = mixed + jnp.einsum("bkgt,btkh->btkgh", one, v, **how)
  return mixed.reshape(q.shape).astype(q.dtype)
