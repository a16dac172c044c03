"""Compiling is all that takes long here."""

import pytest

from tests.benchmark import tiny


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly():
  with tiny.compiled_quickly():
    yield
