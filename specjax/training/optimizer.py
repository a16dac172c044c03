"""AdamW with warm-up, cosine and clipping, of optax's parts."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """How parameters follow gradients.

  Attributes:
    learning_rate: the highest, at the end of the warm-up.
    steps: of the whole run; the cosine ends there.
    warmup: steps in which the rate rises from 0.
    final: the last rate, as a share of the highest.
    weight_decay: AdamW's (Loshchilov and Hutter 2019); of matrices alone, not
      of norms and biases.
    clip: the largest norm of all gradients together; 0 is no bound.
    beta1, beta2, epsilon: Adam's.
  """

  learning_rate: float
  steps: int
  warmup: int = 0
  final: float = 0.1
  weight_decay: float = 0.0
  clip: float = 1.0
  beta1: float = 0.9
  beta2: float = 0.95
  epsilon: float = 1e-8


def schedule(options: Options) -> optax.Schedule:
  """The learning rate of a step, which counts from 0.

  It rises in a line over `warmup` steps, so that step 0 moves already, and
  falls as a cosine to `final` at the end.
  """
  o = options

  def relaxed(step):
    with jax.numpy_dtype_promotion("standard"):  # see `make`
      return whole(step)

  cosine = optax.cosine_decay_schedule(
    o.learning_rate, max(o.steps - o.warmup, 1), alpha=o.final
  )
  whole = cosine
  if o.warmup:
    rise = optax.linear_schedule(
      o.learning_rate / o.warmup, o.learning_rate, max(o.warmup - 1, 1)
    )
    whole = optax.join_schedules([rise, cosine], [o.warmup])
  return relaxed


def make(options: Options) -> optax.GradientTransformation:
  """The whole transformation: clipping by the global norm, then AdamW."""
  o = options

  def decayed(params: Any) -> Any:
    return {name: jnp.ndim(value) > 1 for name, value in params.items()}

  clip = optax.clip_by_global_norm(o.clip) if o.clip else optax.identity()
  whole = optax.chain(
    clip,
    optax.adamw(
      schedule(o),
      b1=o.beta1,
      b2=o.beta2,
      eps=o.epsilon,
      weight_decay=o.weight_decay,
      mask=decayed,
    ),
  )

  def update(updates, state, params=None):
    # Optax mixes whole numbers and floats, which strict promotion forbids.
    with jax.numpy_dtype_promotion("standard"):
      return whole.update(updates, state, params)

  return optax.GradientTransformation(whole.init, update)
