"""What is counted, and over which time."""

import pytest

from specjax.benchmark.answers import rate
from tests.benchmark.made import answer, sample


def test_decoding_counts_what_came_after_the_first_step():
  # Two tokens at once after 1 s, then one, then three.
  one = answer([1, 1, 2, 4, 4, 4])
  assert (one.after_first, one.decode_s) == (4, 3.0)


def test_prompts_one_by_one_add_up():
  both = sample(answer([1, 2, 3]), answer([5, 6]))
  assert both.decode == (3, 3.0)
  assert both.whole == (5, 9.0)
  assert rate(both.decode) == 1.0


def test_prompts_together_share_one_clock():
  both = sample(answer([1, 2, 3]), answer([2, 6]), together=True)
  # From 1 s, the first token of any, to 6 s, the last of all.
  assert both.decode == (4, 5.0)
  assert both.whole == (5, 6.0)


def test_the_live_length_is_that_of_the_middle():
  assert answer([1, 2, 3, 4], prompt=10).live_tokens == 12


@pytest.mark.parametrize("tokens, seconds", [(0, 1.0), (3, 0.0)])
def test_nothing_to_measure_has_no_rate(tokens, seconds):
  assert rate((tokens, seconds)) is None
