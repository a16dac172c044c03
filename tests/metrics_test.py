import re
import types

import numpy as np
import pytest

from specjax import metrics


def completion(**fields):
  defaults = dict(
    id="0",
    text="",
    token_ids=(1, 2, 3, 4),
    finish_reason="length",
    prompt_tokens=10,
    steps=2,
    drafted=6,
    accepted=2,
    drafted_per_position=(2, 2, 2),
    accepted_per_position=(1, 1, 0),
    ttft_s=0.1,
    token_times_s=(0.1, 0.1, 0.1, 0.4),
    error=None,
  )
  return types.SimpleNamespace(**(defaults | fields))


def lines_of(completions):
  """The table: values by their names, two blanks or more between them."""
  shown = metrics.table(metrics.summarize(completions, wall_s=2.0))
  return dict(
    re.split(" {2,}", line.strip(), maxsplit=1) for line in shown.splitlines()
  )


def test_totals_and_rates():
  s = metrics.summarize([completion(), completion(steps=4)], wall_s=2.0)
  assert (s.requests, s.errors, s.tokens, s.prompt_tokens) == (2, 0, 8, 20)
  assert s.tokens_per_s == 4.0
  assert s.steps == 6
  assert s.tokens_per_step == pytest.approx(8 / 6)
  assert (s.drafted, s.accepted) == (12, 4)


def test_acceptance_is_pooled_over_rows_per_position():
  rows = [
    completion(drafted_per_position=(4, 4), accepted_per_position=(4, 1)),
    completion(drafted_per_position=(1,), accepted_per_position=(0,)),
    completion(drafted_per_position=(0, 0, 0), accepted_per_position=(0,) * 3),
  ]
  s = metrics.summarize(rows, wall_s=1.0)
  assert s.acceptance == (4 / 5, 1 / 4, None)


def test_times_are_gaps_of_arrivals_within_a_row_and_never_across():
  rows = [
    completion(token_times_s=(1.0, 1.5, 1.5, 3.0), ttft_s=1.0),
    completion(token_times_s=(9.0,), token_ids=(7,), ttft_s=9.0),
  ]
  s = metrics.summarize(rows, wall_s=10.0)
  p50, p90, p99 = np.percentile([0.5, 0.0, 1.5], (50, 90, 99))
  assert s.inter_token_s == metrics.Percentiles(p50=p50, p90=p90, p99=p99)
  assert s.per_token_s == pytest.approx(2.0 / 3)
  assert s.ttft_s.p50 == 5.0


def test_failed_rows_are_counted_and_spoil_nothing():
  bad = completion(finish_reason="error", token_ids=(), steps=0, ttft_s=99.0)
  with_bad = metrics.summarize([completion(), bad], wall_s=1.0)
  alone = metrics.summarize([completion()], wall_s=1.0)
  assert (with_bad.requests, with_bad.errors) == (2, 1)
  assert with_bad.ttft_s == alone.ttft_s
  assert with_bad.tokens_per_step == alone.tokens_per_step
  assert with_bad.ended_by == {"length": 1, "error": 1}
  shown = lines_of([completion(finish_reason="stop"), completion(), bad])
  assert shown["ended by"] == "1 error, 1 length, 1 stop"


def test_nothing_to_summarise_gives_none_and_a_table_all_the_same():
  s = metrics.summarize([], wall_s=0.0)
  assert s.tokens_per_s is None and s.tokens_per_step is None
  assert s.acceptance == () and s.ttft_s is None
  assert "tokens/s" in metrics.table(s)
  assert lines_of([])["ended by"] == "-"


def test_table_shows_every_promised_figure():
  lines = lines_of([completion()])
  assert lines["tokens/s"] == "2.00"
  assert lines["tokens per step"] == "2.00"
  assert lines["accepted"] == "2 of 6 (33%)"
  assert lines["steps"] == "2"
  assert lines["ended by"] == "1 length"
  assert lines["at position 1, 2, …"] == "1/2 1/2 0/2"
  assert lines["first token"] == "100.0 ms"
  assert lines["inter-token p50/p90/p99"] == "0.0 / 240.0 / 294.0 ms"
  assert lines["per token after first"] == "100.0 ms, mean"


def test_several_requests_have_percentiles_of_the_first_token():
  lines = lines_of([completion(), completion(ttft_s=0.3)])
  assert lines["first token p50/p90/p99"] == "200.0 / 280.0 / 298.0 ms"


def test_a_proposer_that_found_nothing_shows_zero():
  none = dict(drafted=0, accepted=0)
  none |= dict(drafted_per_position=(0, 0), accepted_per_position=(0, 0))
  lines = lines_of([completion(**none)])
  assert lines["accepted"] == "0 of 0"
  assert "at position 1, 2, …" not in lines


def test_plain_decoding_shows_no_acceptance():
  plain = completion(
    drafted=0, accepted=0, drafted_per_position=(), accepted_per_position=()
  )
  assert "accepted" not in metrics.table(metrics.summarize([plain], 1.0))


def test_negative_wall_time_is_refused():
  with pytest.raises(ValueError, match=r"wall_s=-1"):
    metrics.summarize([], wall_s=-1)


def test_more_times_than_are_kept_give_percentiles_that_are_close():
  rng = np.random.default_rng(0)
  times = rng.exponential(size=(1500, 200))  # 300,000: kept are 65,536.
  tally = metrics.Tally()
  for row in times:
    arrivals = np.concatenate([[0.0], np.cumsum(row)])
    tally.add(completion(token_times_s=tuple(arrivals)))
  found = tally.summary(1.0).inter_token_s
  p50, p90, p99 = np.percentile(times, (50, 90, 99))
  assert found.p50 == pytest.approx(p50, rel=0.02)
  assert found.p90 == pytest.approx(p90, rel=0.02)
  assert found.p99 == pytest.approx(p99, rel=0.03)


def test_a_tally_may_be_read_and_added_to_in_turn():
  tally = metrics.Tally()
  for count in range(1, 40):
    tally.add(completion())
    s = tally.summary(2.0)
    assert (s.requests, s.tokens) == (count, 4 * count)
    assert s == metrics.summarize([completion()] * count, wall_s=2.0)
