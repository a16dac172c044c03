"""Losses of one position, as pure functions of distributions and features.

p is the target's law and q the draft's, both as log-probabilities over the Vd
kept ids [..., Vd] (Vd = V where none is left out). Each gives [...] in float32.

Where ids are left out, `log_p` is the target's law renormalised over those that
stay. What is kept of a draft is Σ_v min(p(v), q(v)), and q is 0 outside: with
P the target's mass on the kept ids, cross entropy against the whole law is P
times that against the renormalised one, so the same q is best, and only the
weight of the position changes. Objectives weigh a position by whether the token
that came is kept, and need no pass over all V of the head for it. Of answers
that the target drew at temperature 1 that is an unbiased estimate of P; at
temperature 0 it is whether the arg-max is kept, and of other texts it is how
often they keep to the kept ids: still weights, but not P.
"""

import jax.numpy as jnp

from specjax.types import Array

_LEAST = -1e4  # log-probabilities below it are zero


def next_token(log_q: Array, token: Array) -> Array:
  """-log q of the token that came.

  Args:
    log_q: [..., Vd].
    token: int32 [...], its place among the kept ids.
  """
  found = jnp.take_along_axis(log_q, token[..., None], axis=-1)
  return -jnp.squeeze(found, axis=-1)


def forward_kl(log_p: Array, log_q: Array) -> Array:
  """KL(p || q), in nats: distillation (Hinton et al. 2015)."""
  log_p = jnp.maximum(log_p, _LEAST)  # 0 · -inf would be NaN
  return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def total_variation(log_p: Array, log_q: Array) -> Array:
  """1 - Σ min(p, q): the chance that a draft is not kept (DistillSpec's TVD).

  Zhou et al. 2024. Its gradient reaches those ids alone of which q has too
  little, so it starts slowly; KL first, or beside it.
  """
  return 1.0 - acceptance(log_p, log_q)


def acceptance(log_p: Array, log_q: Array) -> Array:
  """Σ min(p, q): the chance that a draft is kept (Leviathan et al. 2023)."""
  return jnp.sum(jnp.exp(jnp.minimum(log_p, log_q)), axis=-1)


def agreement(log_p: Array, log_q: Array) -> Array:
  """1 where both have one arg-max: a draft is kept at temperature 0."""
  same = jnp.argmax(log_p, axis=-1) == jnp.argmax(log_q, axis=-1)
  return same.astype(jnp.float32)


def smooth_l1(predicted: Array, feature: Array) -> Array:
  """Mean over D of the Huber loss with bound 1: EAGLE's on features.

  Li et al. 2024, EAGLE-1.

  Args:
    predicted, feature: [..., D].
  """
  off = jnp.abs(predicted.astype(jnp.float32) - feature.astype(jnp.float32))
  each = jnp.where(off < 1.0, 0.5 * jnp.square(off), off - 0.5)
  return jnp.mean(each, axis=-1)


NAMES = ("next_token", "kl", "tv", "feature")


def parse(text: str) -> dict[str, float]:
  """Weights of losses: "kl:1,next_token:0.1" -> {"kl": 1.0, …}.

  Raises:
    ValueError: names the part that is wrong and what would be right.
  """
  found: dict[str, float] = {}
  for part in text.split(","):
    name, colon, number = (each.strip() for each in part.partition(":"))
    try:
      weight = float(number) if colon else 1.0
    except ValueError:
      weight = float("nan")
    if name not in NAMES or not 0 < weight < float("inf"):
      raise ValueError(
        f"{part.strip()!r} is no loss with a weight above 0; give some of"
        f" {', '.join(NAMES)}, as in kl:1,next_token:0.1"
      )
    if name in found:
      raise ValueError(f"{name} is there twice; keep one")
    found[name] = weight
  return found


def weighted(
  weights: dict[str, float],
  *,
  log_q: Array,
  token: Array,
  is_kept: Array,
  log_p: Array | None = None,
  feature: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
  """The sum of losses by their weights, and each alone.

  Args:
    weights: from `parse`.
    log_q: [..., Vd].
    token: int32 [...]; see `next_token`.
    is_kept: [...], 1 where the token that came is one of the kept ids: the
      losses on tokens are those of these positions.
    log_p: [..., Vd]; needed by kl and tv.
    feature: [...], a feature loss; needed by feature.

  Returns:
    [...], and of each loss in `weights` its own [...].
  """
  each = {}
  if "next_token" in weights:
    each["next_token"] = next_token(log_q, token) * is_kept
  if "kl" in weights:
    each["kl"] = forward_kl(log_p, log_q) * is_kept
  if "tv" in weights:
    each["tv"] = total_variation(log_p, log_q) * is_kept
  if "feature" in weights:
    each["feature"] = feature
  total = sum(weight * each[name] for name, weight in weights.items())
  return total, each
