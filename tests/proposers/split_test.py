"""Drafting from the target's layers and states on eight simulated devices."""

import pytest

from tests.proposers import split_checks
from tests.sharding import eight


@pytest.fixture(scope="module")
def results():
  return eight.results(eight.started("tests.proposers.split_checks"))


@pytest.mark.long
@pytest.mark.parametrize(
  "check", [check.__name__ for check in split_checks.CHECKS]
)
def test_rule_24_the_same_tokens_on_every_mesh(results, check):
  assert results[check] is None, results[check]
