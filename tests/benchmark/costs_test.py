"""Parts are timed in turns, and their medians kept."""

import pytest

from specjax.benchmark import costs
from tests.benchmark.made import Clock


class Probe:
  """Parts that take what they are told to."""

  def __init__(self, clock, log, lookahead=0, draft=0.0):
    self.clock, self.log = clock, log
    self.lookahead, self.width = lookahead, lookahead + 1
    self._draft = draft
    self.slow = 0.0

  def prime(self):
    self.clock.sleep(100.0)  # Not to be counted.

  def _take(self, what, seconds):
    self.log.append(what)
    self.clock.sleep(seconds + self.slow)

  def plain_step(self):
    self._take("plain step", 1.0)

  def forward(self, width):
    self._take(f"pass {width}", 0.5 + width / 8)

  def draft(self):
    self._take("draft", self._draft)

  def wide_step(self):
    self._take("wide step", 3.0)


def test_medians_of_parts_taken_in_turns():
  clock, log = Clock(), []
  plain = Probe(clock, log)
  probes = {
    "two": Probe(clock, log, lookahead=2, draft=0.25),
    "three": Probe(clock, log, lookahead=3, draft=0.5),
  }
  meter = costs.Meter(plain, probes, clock=clock)
  once = [
    "plain step", "pass 1", "pass 3", "pass 4",
    "draft", "wide step", "draft", "wide step",
  ]  # fmt: skip
  assert log == once  # Compiles: no time is taken.
  assert meter.costs("two") is None
  meter.measure(2)
  plain.slow = 50.0  # An outlier, which a median does not see.
  meter.measure(1)
  assert log == 4 * once
  assert meter.costs("two") == costs.Costs(
    plain_step_s=1.0,
    plain_pass_s=0.625,
    wide_pass_s=0.875,
    draft_s=0.25,
    wide_step_s=3.0,
  )
  assert meter.costs("three").wide_pass_s == pytest.approx(1.0)
  none = meter.costs()
  assert none.wide_pass_s == none.plain_pass_s and none.draft_s == 0
