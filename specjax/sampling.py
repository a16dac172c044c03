"""Logits to the distribution we promise, and the noise that draws from it.

One pipeline for the target at every position and for the draft: temperature,
then top-k, top-p, min-p, renormalised between (Hugging Face's order). What it
gets has been through `penalties`, which act on raw logits. Settings are per row
and traced, so no value of one causes a recompile.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from specjax.models import cpu_kernel
from specjax.types import Array, struct

# What a key is for. No two draws of a step share a purpose and an offset.
DRAFT, ACCEPT, RESIDUAL = 0, 1, 2
_PURPOSES = 3

_HOTTEST = 1e30  # temperature
_BLOCK = 512  # of a vocabulary, for an arg-max on CPU,
_LONG = 2 * _BLOCK  # if it has so many


@struct
class RowSettings:
  """Sampling settings of each row.

  Attributes:
    temperature: float32 [B]; 0 is greedy.
    top_k: int32 [B]; 0 is off.
    top_p: float32 [B]; 1 is off.
    min_p: float32 [B]; 0 is off.
    seed: uint32 [B, 2], the high and low words of a 64-bit seed.
  """

  temperature: Array
  top_k: Array
  top_p: Array
  min_p: Array
  seed: Array

  @classmethod
  def greedy(cls, rows: int) -> "RowSettings":
    """Settings of rows that draw nothing."""
    return cls(
      temperature=jnp.zeros((rows,), jnp.float32),
      top_k=jnp.zeros((rows,), jnp.int32),
      top_p=jnp.ones((rows,), jnp.float32),
      min_p=jnp.zeros((rows,), jnp.float32),
      seed=jnp.zeros((rows, 2), jnp.uint32),
    )


def probs(logits: Array, settings: RowSettings) -> Array:
  """The distribution a row's settings make of logits.

  At temperature 0 it is one-hot at the lowest arg-max. Filters keep ties at
  their threshold. A row whose logits are NaN has no distribution; see
  `usable`.

  Args:
    logits: float32 [B, T, V].
    settings: of the B rows.

  Returns:
    float32 [B, T, V], each row summing to 1.
  """
  vocab = jnp.arange(logits.shape[-1], dtype=jnp.int32)
  is_greedy = settings.temperature <= 0.0

  def one_hot(logits):
    best = argmax(logits)[..., None]
    return (vocab == best).astype(logits.dtype)

  def sampled(logits):
    p = warmed(logits, jnp.where(is_greedy, 1.0, settings.temperature))
    # By logits: at a high temperature their order is lost in p's rounding.
    p = _when(
      settings.top_k > 0, lambda _, k: _top_k(logits, k), p, settings.top_k
    )
    p = _when(settings.top_p < 1.0, _top_p, p, settings.top_p)
    p = _when(settings.min_p > 0.0, _min_p, p, settings.min_p)
    return jnp.where(is_greedy[:, None, None], one_hot(logits), p)

  return lax.cond(jnp.all(is_greedy), one_hot, sampled, logits)


def warmed(
  logits: Array, temperature: Array, top: Array | None = None
) -> Array:
  """`probs` of rows that all sample, without filters.

  Args:
    logits: float32 [B, T, V].
    temperature: float32 [B], above 0.
    top: float32 [B, T], the largest of each position, where that is known.
  """
  # Bounded, because -inf / inf is NaN; at such heat all is uniform anyway.
  temperature = jnp.minimum(temperature, _HOTTEST)[:, None, None]
  if top is None:
    top = tops(logits)
  # Subtracting it first keeps tiny temperatures from overflowing, and spares a
  # softmax's own search for it.
  p = jnp.exp((logits - top[..., None]) / temperature)
  return p / jnp.sum(p, axis=-1, keepdims=True)


def is_plain(settings: RowSettings) -> Array:
  """Whether every row samples, and none filters: bool scalar."""
  filters = (settings.top_k > 0) | (settings.top_p < 1) | (settings.min_p > 0)
  return jnp.all((settings.temperature > 0) & ~filters)


def argmax(x: Array) -> Array:
  """The lowest index of the largest of x [..., V]: int32 [...].

  Some index where there is a NaN.
  """
  x = lax.stop_gradient(x)  # A kernel has none; nor has an index.
  if kernel := _kernel_for(x):
    special = lambda x: cpu_kernel.largest(kernel, x)[0]
  elif x.size and x.shape[-1] >= _LONG and jax.device_count() == 1:
    special = _argmax_by_blocks
  else:
    return _argmax(x)
  return lax.platform_dependent(x, cpu=special, default=_argmax)


def _kernel_for(x) -> str | None:
  """The CPU's own kernel for a row's largest, where it is worth a call."""
  suits = x.size and x.shape[-1] >= _LONG and x.dtype == jnp.float32
  return cpu_kernel.find() if suits else None


def _argmax(x):
  return jnp.argmax(x, axis=-1).astype(jnp.int32)


def _argmax_by_blocks(x):
  """XLA's CPU backend takes five times as long for an arg-max as for a max."""
  size = x.shape[-1]
  whole = size - size % _BLOCK
  tops = jnp.max(x[..., :whole].reshape(*x.shape[:-1], -1, _BLOCK), axis=-1)
  if whole < size:
    rest = jnp.max(x[..., whole:], axis=-1, keepdims=True)
    tops = jnp.concatenate([tops, rest], axis=-1)
  # The first block that has it; the last one reaches back into its neighbour,
  # which has none, or it would have been first.
  start = jnp.minimum(_argmax(tops) * _BLOCK, size - _BLOCK)[..., None]
  inside = start + jnp.arange(_BLOCK, dtype=jnp.int32)
  block = jnp.take_along_axis(x, inside, axis=-1)
  return start[..., 0] + _argmax(block)


def largest(logits: Array) -> tuple[Array, Array]:
  """`argmax` and `tops` of float32 [..., V], read once where that is known."""
  logits = lax.stop_gradient(logits)
  both = lambda x: (argmax(x), _top(x))
  kernel = _kernel_for(logits)
  if kernel is None:
    return both(logits)
  special = functools.partial(cpu_kernel.largest, kernel)
  return lax.platform_dependent(logits, cpu=special, default=both)


def tops(logits: Array) -> Array:
  """The largest of each position, float32 [...] of [..., V].

  Not finite where a position has no distribution: where any logit is NaN or
  +inf, or all are -inf.
  """
  return largest(logits)[1]


def usable(logits: Array) -> Array:
  """Whether each position has a distribution: bool [B, T] of [B, T, V]."""
  return jnp.isfinite(tops(logits))


def _top(x):
  # XLA's CPU backend loses a NaN in a max of a thousand values or more.
  return jnp.max(jnp.where(jnp.isnan(x), jnp.inf, x), axis=-1)


def _when(wanted, keep, p, value):
  """Filters the rows that want it; skipped whole when none does."""

  def filtered(p):
    kept = jnp.where(keep(p, value[:, None, None]), p, 0.0)
    kept = kept / jnp.sum(kept, axis=-1, keepdims=True)
    # Their sum rounds to other than 1: rows beside must not be divided by it.
    return jnp.where(wanted[:, None, None], kept, p)

  return lax.cond(jnp.any(wanted), filtered, lambda p: p, p)


def _ordered(x):
  """int32 that order as the float32 x do."""
  bits = lax.bitcast_convert_type(jnp.where(x == 0, 0, x), jnp.int32)
  return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _reaching(x, enough):
  """x >= t for the largest t at which enough(x >= t); bool like x.

  Bisects over the bits of t, exactly and without a sort. Where even all of x
  is not enough, all is kept.
  """
  keys = _ordered(x)
  end = jnp.full((*x.shape[:-1], 1), jnp.inf, jnp.float32)

  def halve(_, bounds):
    low, high = bounds
    middle = (low >> 1) + (high >> 1) + (low & high & 1)  # never overflows
    good = enough(keys >= middle)
    return jnp.where(good, middle, low), jnp.where(good, high, middle)

  low, _ = lax.fori_loop(0, 32, halve, (_ordered(-end), _ordered(end)))
  return keys >= low


def _top_k(logits, k):
  def enough(kept):
    return jnp.sum(kept, axis=-1, keepdims=True, dtype=jnp.int32) >= k

  return _reaching(logits, enough)


def _top_p(p, mass):
  # The smallest set of most likely tokens that reaches the mass. Rounding may
  # leave the whole below a mass close to 1: then everything is kept. A mass
  # that float32 flushes to 0 would be reached by no token at all.
  mass = jnp.maximum(mass, jnp.finfo(jnp.float32).tiny)

  def enough(kept):
    return jnp.sum(jnp.where(kept, p, 0), axis=-1, keepdims=True) >= mass

  return _reaching(p, enough)


def _min_p(p, fraction):
  return p >= fraction * jnp.max(p, axis=-1, keepdims=True)


@struct
class Noise:
  """Keyed noise of one step: key = f(seed, base, offset, purpose).

  `base` is the row's committed length when the step starts. It grows with
  every step, so no key serves two steps: what a step has looked at, also for
  positions it threw away, is never used again.

  Attributes:
    seed: uint32 [B, 2].
    base: int32 [B].
    is_greedy: bool scalar: no row samples, so nothing needs to be generated.
  """

  seed: Array
  base: Array
  is_greedy: Array

  def _keys(self, purpose, offset):
    """Typed keys [B]."""

    def row(seed, base):
      key = jax.random.wrap_key_data(seed, impl="threefry2x32")
      key = jax.random.fold_in(key, base)
      return jax.random.fold_in(key, offset * _PURPOSES + purpose)

    return jax.vmap(row)(self.seed, self.base)

  def _bits(self, purpose, offset, size):
    """uint32 [B, size]."""
    return lax.cond(
      self.is_greedy,
      lambda: jnp.full((self.base.shape[0], size), 1 << 31, jnp.uint32),
      lambda: _drawn(self._keys(purpose, offset), size),
    )

  def uniform(self, purpose, size: int) -> Array:
    """float32 [B, size], strictly inside (0, 1)."""
    return open_uniform(self._bits(purpose, 0, size))

  def exponential(self, purpose, offset, size: int) -> Array:
    """float32 [B, size], positive and finite, of mean 1."""
    plain = lambda: exponential(self._bits(purpose, offset, size))
    kernel = cpu_kernel.find() if size >= _LONG else None
    if kernel is None:
      return plain()

    def special():
      keys = jax.random.key_data(self._keys(purpose, offset))
      return cpu_kernel.noise(kernel, keys, size)

    return lax.cond(
      self.is_greedy,
      lambda: jnp.ones((self.base.shape[0], size), jnp.float32),
      lambda: lax.platform_dependent(cpu=special, default=plain),
    )


def _drawn(keys, size):
  """uint32 [B, size] of typed keys [B]."""
  draw = lambda key: jax.random.bits(key, (size,), jnp.uint32)
  return jax.vmap(draw)(keys)


def open_uniform(bits: Array) -> Array:
  """uint32 bits to float32 strictly inside (0, 1)."""
  return ((bits >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2**-23)


def exponential(bits: Array) -> Array:
  """uint32 bits to positive, finite float32 exponentials.

  All 32 bits are used, because a race is won by the smallest: with 23 bits a
  vocabulary's winners would tie.
  """
  u = (bits.astype(jnp.float32) + 0.5) * jnp.float32(2**-32)
  return -jnp.log1p(-jnp.minimum(u, jnp.float32(1 - 2**-24)))


def race(weights: Array, exponentials: Array) -> Array:
  """Draws an index with probability proportional to its weight.

  arg-max of weight / exponential: the Gumbel-max trick without its logarithm.
  An index of weight 0 is never drawn while any weight is positive.

  Args:
    weights: [..., V], not negative; need not sum to 1.
    exponentials: [..., V] positive and finite.

  Returns:
    int32 [...].
  """
  score = jnp.where(weights > 0, weights / exponentials, -1.0)
  return argmax(score)
