"""How fast this machine reads memory, by what jax can make of it."""

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax.models.product import product

# Far beyond any cache: the last level of a server's CPU holds tens of MB.
BYTES = 512 * 2**20
_COLUMNS = 4096


class Meter:
  """Reads one large array with several kernels; the best of them counts."""

  def __init__(
    self,
    dtype,
    *,
    size: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
  ):
    """Makes the arrays and compiles the kernels.

    Args:
      dtype: of the products' weights; sums read float32.
      size: bytes of each array; BYTES unless given.
      clock: seconds.
    """
    self._clock = clock
    size = BYTES if size is None else size
    dtype = jnp.dtype(dtype)
    wide = _filled(jnp.float32, size)
    weights = wide if dtype == jnp.float32 else _filled(dtype, size)
    ones = lambda rows: jnp.ones((rows, _COLUMNS), dtype)
    self._kernels = {
      "sum float32": (jax.jit(lambda x: jnp.sum(x, axis=1)), (wide,)),
      "max float32": (jax.jit(lambda x: jnp.max(x, axis=1)), (wide,)),
    }
    for rows in (1, 4):
      self._kernels[f"product {dtype.name}, {rows} rows"] = (
        jax.jit(product),
        (ones(rows), weights),
      )
    self._seconds: dict[str, list[float]] = {}
    self._bytes = {
      name: args[-1].nbytes for name, (_, args) in self._kernels.items()
    }
    for kernel, args in self._kernels.values():
      jax.block_until_ready(kernel(*args))

  def measure(self, repeats: int) -> None:
    """Times every kernel `repeats` times, in turns."""
    for _ in range(repeats):
      for name, (kernel, args) in self._kernels.items():
        start = self._clock()
        jax.block_until_ready(kernel(*args))
        self._seconds.setdefault(name, []).append(self._clock() - start)

  def rates(self) -> dict[str, float]:
    """Bytes a second of each kernel, by its median time."""
    return {
      name: self._bytes[name] / statistics.median(seconds)
      for name, seconds in self._seconds.items()
    }

  def best(self) -> tuple[str, float] | None:
    """The fastest kernel and its bytes a second; None if nothing was timed."""
    rates = self.rates()
    return max(rates.items(), key=lambda item: item[1]) if rates else None


def _filled(dtype, size: int):
  rows = max(size // jnp.dtype(dtype).itemsize // _COLUMNS, 1)
  # Ones, not zeros: a page of zeros may be one page of memory, read often.
  return jax.block_until_ready(jnp.ones((rows, _COLUMNS), dtype))
