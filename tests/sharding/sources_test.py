"""Encoder-decoders that are split over eight simulated devices."""

import pathlib
import re

import pytest

from tests.sharding import eight

FILE = pathlib.Path(__file__).with_name("sources_checks.py")
CHECKS = re.findall(r"^def (check_\w+)", FILE.read_text(), re.M)


@pytest.fixture(scope="module")
def results():
  return eight.results(eight.started("tests.sharding.sources_checks"))


@pytest.mark.parametrize("check", CHECKS)
def test_on_eight_devices(results, check):
  assert results[check] is None, results[check]
