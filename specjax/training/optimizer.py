"""AdamW or Muon with warm-up, cosine and clipping, of optax's parts."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from specjax.sharding import axes as names
from specjax.types import Array

KINDS = ("adamw", "muon")
# So large a step of a matrix's numbers as Adam's usually are (Liu et al. 2025),
# so that one learning rate fits both.
_ADAMS_SIZE = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """How parameters follow gradients.

  Attributes:
    learning_rate: the highest, at the end of the warm-up.
    steps: of the whole run; the cosine ends there.
    kind: "adamw" (Loshchilov and Hutter 2019), or "muon" (Jordan et al. 2024):
      every direction of a matrix is stepped equally far; norms, biases and
      tables of ids are Adam's.
    warmup: steps in which the rate rises from 0.
    final: the last rate, as a share of the highest.
    weight_decay: of matrices alone, not of norms and biases; with Muon not of
      tables of ids either.
    clip: the largest norm of all gradients together; 0 is no bound.
    beta1, beta2, epsilon: Adam's.
  """

  learning_rate: float
  steps: int
  kind: str = "adamw"
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


def make(
  options: Options,
  axes: Mapping[str, Sequence[str]],
  scales: Mapping[str, Array] | None = None,
) -> optax.GradientTransformation:
  """The whole transformation: clipping by the global norm, then the steps.

  Args:
    options: how.
    axes: logical axes of every parameter, by name.
    scales: of some parameters the size of what is usual for each number,
      broadcast: optimisers step all numbers alike, and where a product reads
      two inputs of different sizes its weights should not be.
  """
  o, scales = options, scales or {}
  clip = optax.clip_by_global_norm(o.clip) if o.clip else optax.identity()
  if o.kind == "muon":
    steps = contrib.muon(
      schedule(o),
      weight_decay=o.weight_decay,
      adam_b1=o.beta1,
      adam_b2=o.beta2,
      eps=o.epsilon,
      muon_weight_dimension_numbers={
        name: _matrix(own) for name, own in axes.items()
      },
      consistent_rms=_ADAMS_SIZE,
    )
  else:
    steps = optax.adamw(
      schedule(o),
      b1=o.beta1,
      b2=o.beta2,
      eps=o.epsilon,
      weight_decay=o.weight_decay,
      mask=lambda params: {k: jnp.ndim(x) > 1 for k, x in params.items()},
    )
  whole = optax.chain(clip, steps)

  def times(tree, exponent):
    return {
      k: x * scales[k] ** exponent if k in scales else x
      for k, x in tree.items()
    }

  def update(updates, state, params=None):
    # Optax mixes whole numbers and floats, which strict promotion forbids.
    with jax.numpy_dtype_promotion("standard"):
      # All in units of the scales.
      updates, state = whole.update(
        times(updates, 1), state, None if params is None else times(params, -1)
      )
      return times(updates, 1), state

  return optax.GradientTransformation(whole.init, update)


def _matrix(own: Sequence[str]) -> contrib.MuonDimensionNumbers | None:
  """Which axes of a parameter are a matrix's; None where it is none."""
  if len(own) < 2 or names.EMBED not in own:
    return None  # norms, and biases of heads
  if names.VOCAB in own or names.POSITION in own:
    return None
  first = int(own[0] == names.LAYERS)  # each layer's is a matrix
  rest = tuple(range(first, len(own)))
  if len(rest) < 2:
    return None
  # The output product of attention reads heads and their dimensions.
  split = 1 if own[-1] != names.EMBED else len(rest) - 1
  return contrib.MuonDimensionNumbers(
    reduction_axis=rest[split:], output_axis=rest[:split]
  )
