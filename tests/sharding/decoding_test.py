"""Decoding of a model that is split over eight simulated devices."""

import pathlib
import re

import pytest

from tests.sharding import eight

FILE = pathlib.Path(__file__).with_name("decoding_checks.py")
CHECKS = re.findall(r"^def (check_\w+)", FILE.read_text(), re.M)


@pytest.fixture(scope="module")
def results():
  return eight.results(eight.started("tests.sharding.decoding_checks"))


@pytest.mark.parametrize("check", CHECKS)
def test_on_eight_devices(results, check):
  assert results[check] is None, results[check]
