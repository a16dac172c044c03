"""Formulas against hand computations."""

import dataclasses

import pytest

from specjax.benchmark import figures
from specjax.benchmark.costs import Costs
from tests.benchmark.made import answer, sample

COSTS = Costs(
  plain_step_s=0.1,
  plain_pass_s=0.08,
  wide_pass_s=0.12,
  draft_s=0.04,
  wide_step_s=0.17,
)


def compute(samples, plain, **changes):
  settings = dict(
    lookahead=2,
    costs=COSTS,
    step_bytes=None,
    bandwidth=None,
    startup_s=3.0,
    greedy=True,
  )
  return figures.compute(samples, plain, **settings | changes)


def drafting(*times, id="0", **changes):
  """Three steps after the first; two of them drafted two tokens each."""
  given = dict(
    id=id,
    drafted_at=(2, 2),
    accepted_at=(2, 1),
    first_drafted=False,
  )
  return answer(times, **given | changes)


def test_the_papers_alpha_counts_tokens_whose_predecessors_were_accepted():
  # Ten proposals of three: 8 passed the first place, 4 of those the second,
  # 1 of those the third. 10 + 8 + 4 were reached.
  assert figures.paper_acceptance((10, 10, 10), (8, 4, 1)) == 13 / 22
  # Only 3 proposals were longer than one token.
  assert figures.paper_acceptance((10, 3), (8, 3)) == 11 / 13
  assert figures.paper_acceptance((), ()) is None
  assert figures.paper_acceptance((0, 0), (0, 0)) is None


def test_the_papers_speedup():
  # (1 - .8^5) / (.2 * (4 * .05 + 1)) = 3.3616 / 1.2
  assert figures.paper_speedup(0.8, 4, 0.05) == pytest.approx(2.80133, abs=1e-5)
  assert figures.paper_speedup(1.0, 4, 0.0) == 5
  assert figures.paper_speedup(0.0, 4, 0.25) == 0.5


def test_the_predicted_speedup():
  # 3 tokens a step of 2 * .1 + 1.3 plain steps.
  assert figures.predicted_speedup(3, 2, 0.1, 1.3) == pytest.approx(2.0)
  # Half of the steps are plain ones.
  assert figures.predicted_speedup(3, 2, 0.1, 1.3, 0.5) == pytest.approx(2.4)


def test_equal_share_counts_the_longer_answer():
  left = [answer([1, 2, 3], tokens=(7, 8, 9))]
  right = [answer([1, 2, 3, 4], tokens=(7, 0, 9, 9))]
  assert figures.equal_share(left, right) == 0.5


def test_a_run_that_drafts():
  # 1 + 6 tokens in 1 + 3 steps over 0.5 s; plain: 6 tokens over 1 s.
  run = sample(drafting(1, 1.2, 1.2, 1.2, 1.4, 1.4, 1.5))
  plain = sample(answer([1, 1.1, 1.3, 1.5, 1.7, 1.9, 2]))
  got = compute([run], [plain])
  assert got.tokens_per_s == pytest.approx(12)
  assert got.tokens_per_s_with_prompt == pytest.approx(7 / 1.5)
  assert got.tokens_per_step == 2
  assert got.acceptance == 3 / 4
  assert got.acceptance_per_position == (1.0, 0.5)
  assert got.speedup == got.spec_bench_speedup == pytest.approx(2)
  assert got.speedup_with_prompt == pytest.approx(2 / 1.5)
  assert got.alpha == figures.paper_acceptance((2, 2), (2, 1))
  assert got.draft_cost == pytest.approx(0.2)  # 0.04 / 2 / 0.1
  assert got.verify_cost == pytest.approx(1.2)
  assert got.wide_share == pytest.approx(2 / 3)
  # 2 / (2/3 (2 * .2 + 1.2) + 1/3)
  assert got.predicted_speedup == pytest.approx(2 / 1.4)
  assert got.efficiency == pytest.approx(1.4)
  assert got.paper_speedup == pytest.approx(
    figures.paper_speedup(3 / 4, 2, 0.2)
  )
  assert got.tokens_equal == 1.0
  assert got.compiles_after_warmup == 0 and got.startup_s == 3.0


def test_a_step_that_costs_its_passes_alone_is_efficient():
  # Every step drafts and takes 2 * .02 + .12 s; the plain one takes .1 s.
  per_step = 2 * 0.02 + 0.12
  run = sample(
    drafting(
      1,
      *(1 + per_step * (1 + i // 2) for i in range(8)),
      drafted_at=(4, 4),
      accepted_at=(4, 0),
    )
  )
  plain = sample(answer([1 + 0.1 * i for i in range(9)]))
  got = compute([run], [plain])
  assert got.wide_share == 1.0 and got.tokens_per_step == 2
  assert got.efficiency == pytest.approx(1.0)


def test_the_first_step_is_left_out_of_the_share_of_drafting_ones():
  run = sample(drafting(1, 1, 2, 3, first_drafted=True))
  got = compute([run], [sample(answer([1, 2, 3, 4]))])
  assert got.wide_share == 1 / 2  # Of two steps after the first.


def test_total_over_total_and_mean_over_prompts_differ():
  plain = sample(answer([1, 2]), answer([1, 2, 3, 4]))
  run = sample(answer([1, 1.25]), answer([1, 2, 3, 4]))
  got = compute([run], [plain], lookahead=None, costs=None)
  assert got.speedup == pytest.approx((4 / 3.25) / 1)
  assert got.spec_bench_speedup == pytest.approx((4 + 1) / 2)


def test_medians_over_rounds_of_ratios_in_the_same_round():
  runs = [sample(answer([1, 1 + 1 / rate])) for rate in (2, 3, 10)]
  plain = [sample(answer([1, 1 + 1 / rate])) for rate in (1, 2, 2)]
  got = compute(runs, plain, lookahead=None, costs=None)
  assert got.tokens_per_s == pytest.approx(3)
  assert got.speedup == pytest.approx(2)  # Of 2, 1.5 and 5.
  assert figures.ratios(runs, plain) == pytest.approx([2, 1.5, 5])


def test_the_bandwidth_fraction():
  plain = [sample(answer([1, 1.5, 2]))]  # Half a second a step.
  got = compute(
    plain, plain, lookahead=None, costs=None, step_bytes=1e9, bandwidth=4e9
  )
  assert got.bandwidth_fraction == pytest.approx(0.5)


def test_plain_decoding_is_as_efficient_as_its_pass():
  plain = [sample(answer([1, 2]))]
  got = compute(plain, plain, lookahead=None)
  assert got.efficiency == pytest.approx(0.8)
  assert got.predicted_speedup is None and got.acceptance is None


def test_in_several_slots_a_row_does_not_know_whether_its_step_was_wide():
  run = [sample(drafting(1, 2, 3), together=True)]
  plain = [sample(answer([1, 2, 3]), together=True)]
  got = compute(run, plain, step_bytes=1.0, bandwidth=1.0)
  assert got.speedup == 1 and got.acceptance is not None
  assert got.wide_share is got.predicted_speedup is got.efficiency is None
  assert got.bandwidth_fraction is None


def test_a_peer_without_steps_has_speed_alone():
  silent = dataclasses.replace(answer([1, 2, 3]), steps=None)
  peer = [sample(silent)]
  plain = [sample(answer([1, 1.5, 2]))]
  got = compute(peer, plain, lookahead=None, costs=None, is_peer=True)
  assert got.speedup == pytest.approx(0.5) and got.tokens_equal == 1
  assert got.tokens_per_step is got.compiles_after_warmup is None


def test_before_the_first_round_there_is_a_start_alone():
  assert compute([], []) == figures.Figures(startup_s=3.0)


def test_every_figure_is_defined():
  assert all(text.endswith(".") for text in figures.DEFINITIONS.values())
