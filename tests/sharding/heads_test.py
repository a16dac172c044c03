"""Heads and drafts that borrow, where the target is split over devices."""

import pytest

from tests.sharding import eight


@pytest.mark.long
def test_on_eight_devices():
  found = eight.results(eight.started("tests.sharding.heads_checks"))
  assert len(found) == 6
  for check, error in found.items():
    assert error is None, f"{check}: {error}"
