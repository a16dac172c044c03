"""The best way to read memory is what the machine can do."""

import jax.numpy as jnp
import pytest

from specjax.benchmark import bandwidth
from tests.benchmark.made import Clock


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_fastest_kernel_by_its_median_counts(monkeypatch, dtype):
  clock = Clock()
  seconds = iter((4, 2, 8, 16) + (4, 9, 8, 16) + (4, 2, 8, 16))
  monkeypatch.setattr(
    bandwidth.jax, "block_until_ready", lambda x: x, raising=True
  )
  meter = bandwidth.Meter(dtype, size=2**18, clock=clock)
  assert meter.best() is None
  monkeypatch.setattr(
    bandwidth.jax, "block_until_ready", lambda x: clock.sleep(next(seconds))
  )
  meter.measure(3)
  assert meter.best() == ("max float32", 2**18 / 2)
  assert meter.rates()[f"product {dtype}, 1 rows"] == 2**18 / 8


def test_arrays_are_far_beyond_a_cache():
  assert bandwidth.BYTES >= 2**28
  made = bandwidth._filled(jnp.bfloat16, 2**20)
  assert made.nbytes == 2**20 and bool((made == 1).all())
