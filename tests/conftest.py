"""Strict by default: see also [tool.pytest.ini_options] in pyproject.toml."""

import os
import pathlib

import pytest

# Before anything imports jax. Set by hand (JAX_PLATFORMS=tpu) it stays.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

# A silent float32 ↔ bfloat16 promotion is a wrong dtype somewhere.
jax.config.update("jax_numpy_dtype_promotion", "strict")

HERE = pathlib.Path(__file__).parent
# Their models run in no time, however they are compiled: compiling them is what
# takes long. What users run is compiled as users compile it in the tests of the
# real model, of the api, the commands and the models themselves.
QUICK = ("engine", "proposers", "models/heads", "training")
QUICK_FILES = ("matrix_test.py", "state_test.py")


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly(request):
  """Programs compile in half of the time: their machine code stays as it is."""
  path = request.path.relative_to(HERE)
  is_quick = path.parent.as_posix() in QUICK or path.as_posix() in QUICK_FILES
  option = "jax_disable_most_optimizations"
  before = jax.config.read(option)
  jax.config.update(option, before or is_quick)
  yield
  jax.config.update(option, before)
