"""Strict by default: see also [tool.pytest.ini_options] in pyproject.toml."""

import os

# Before anything imports jax. Set by hand (JAX_PLATFORMS=tpu) it stays.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

# A silent float32 ↔ bfloat16 promotion is a wrong dtype somewhere.
jax.config.update("jax_numpy_dtype_promotion", "strict")
