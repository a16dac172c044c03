"""What a request may ask for (RULES.md 28): by name, value and fix."""

import pytest

from specjax.engine import request as request_lib
from specjax.engine.request import Request, SamplingParams


@pytest.mark.parametrize(
  "name, values",
  [
    ("repetition_penalty", (0, -1, 0.001, 101, float("nan"), "1", True, None)),
    ("presence_penalty", (101, -101, float("inf"), float("nan"), "1", None)),
    ("frequency_penalty", (101, -101, float("-inf"), float("nan"), [1])),
    ("logit_bias", (1, "12", [1], None, {1: 2}.items)),
  ],
)
def test_a_penalty_out_of_range_is_named(name, values):
  for value in values:
    with pytest.raises(ValueError, match=f"{name} is .*; give"):
      SamplingParams(**{name: value})


@pytest.mark.parametrize(
  "bias, words",
  [
    ({-1: 1}, "logit_bias id is -1"),
    ({1.5: 1}, "logit_bias id is 1.5"),
    ({True: 1}, "logit_bias id is True"),
    ({2**31: 1}, "logit_bias id is 2147483648"),
    ({3: float("-inf")}, "logit_bias of id 3 is -inf"),
    ({3: float("nan")}, "logit_bias of id 3 is nan"),
    ({3: "x"}, "logit_bias of id 3 is 'x'"),
    (dict.fromkeys(range(513), 1.0), "of 513 ids.*; give at most 512"),
  ],
  ids=lambda value: str(value)[:40],
)
def test_a_wrong_bias_is_named(bias, words):
  with pytest.raises(ValueError, match=words):
    SamplingParams(logit_bias=bias)


def test_the_ends_of_the_ranges_are_in():
  for name, ends in request_lib.RANGES.items():
    for end in ends:
      SamplingParams(**{name: {0: end} if name == "logit_bias" else end})
  SamplingParams(logit_bias=dict.fromkeys(range(512), -100))


def test_a_bias_is_kept_as_pairs_in_the_order_of_ids():
  made = SamplingParams(logit_bias={5: 1, 2: -3.0})
  assert made.logit_bias == ((2, -3.0), (5, 1))
  assert made == SamplingParams(logit_bias=made.logit_bias)
  assert hash(made) == hash(SamplingParams(logit_bias={2: -3.0, 5: 1}))


def test_what_changes_logits_penalizes():
  assert not SamplingParams(temperature=1.0, top_k=3).penalizes
  assert not SamplingParams(repetition_penalty=1, logit_bias={}).penalizes
  for own in (
    dict(repetition_penalty=1.1),
    dict(presence_penalty=-1),
    dict(frequency_penalty=0.1),
    dict(logit_bias={1: 0}),
  ):
    assert SamplingParams(**own).penalizes


@pytest.mark.parametrize(
  "own, words",
  [
    (dict(n=0), "n is 0; give a whole number"),
    (dict(n=1.5), "n is 1.5"),
    (dict(n=True), "n is True"),
    (dict(logprobs=-1), "logprobs is -1; give a whole number from 0 to 100"),
    (dict(logprobs=101), "logprobs is 101"),
    (dict(logprobs=True), "logprobs is True"),
  ],
  ids=str,
)
def test_a_wrong_field_is_named(own, words):
  with pytest.raises(ValueError, match=words):
    Request(prompt=(1,), sampling=SamplingParams(temperature=1.0), **own)


def test_rule_28_what_draws_nothing_is_idle():
  assert request_lib.idle({"top_k": 3}) == "top_k"
  assert request_lib.idle({"temperature": 0, "seed": 0}) == "seed"
  assert request_lib.idle({"temperature": 1, "top_k": 3}) is None
  assert request_lib.idle({"top_k": 0, "top_p": 1, "seed": None}) is None
  assert request_lib.idle({"presence_penalty": 1.0}) is None
