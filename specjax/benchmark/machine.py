"""The machine that is measured."""

import os

import jax


def cores() -> int:
  """CPU cores that this process may use, which taskset and cgroups limit."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def about() -> dict[str, str | int]:
  """What it is, for a record."""
  return {
    "jax": jax.__version__,
    "backend": jax.default_backend(),
    "device": jax.devices()[0].device_kind,
    "cores": cores(),
  }
