import pytest

from specjax.engine import request as request_lib
from specjax.jobs import prompts, requests
from tests import fake_engine


def build(row=None, chat=False, lookahead=4, prompt="ab", **defaults):
  row = prompts.Row(
    line=1, id="r", prompt=prompt, messages=None, settings=row or {}
  )
  return requests.build(
    row,
    requests.Defaults(chat=chat, settings=defaults, lookahead=lookahead),
    fake_engine.Encoder(),
  )


def test_defaults_hold_and_the_row_wins():
  row = {"temperature": 0.5, "max_new_tokens": 3, "lookahead": 2}
  request = build(
    row, temperature=1.0, top_k=5, seed=9, max_new_tokens=7, stop=("x",)
  )
  assert request == request_lib.Request(
    prompt=(97, 98),
    id="r",
    sampling=request_lib.SamplingParams(temperature=0.5, top_k=5, seed=9),
    max_new_tokens=3,
    stop=("x",),
    lookahead=2,
  )


def test_chat_goes_through_the_template():
  assert build(chat=True).prompt == (65, 66)
  row = prompts.Row(
    line=1,
    id="r",
    prompt=None,
    messages=({"role": "user", "content": "c"},),
    settings={},
  )
  made = requests.build(row, requests.Defaults(), fake_engine.Encoder())
  assert made.prompt == (67,)


def test_a_greedy_row_drops_the_filters_of_a_sampled_job():
  request = build({"temperature": 0}, temperature=1.0, top_k=5, seed=9)
  assert request.sampling == request_lib.SamplingParams(temperature=0)


@pytest.mark.parametrize("name", requests.RANDOM)
def test_rule_28_a_rows_filter_at_temperature_0_is_an_error(name):
  with pytest.raises(ValueError, match=f"{name} does nothing at temperature 0"):
    build({name: 1})


def test_rule_28_a_rows_lookahead_without_a_proposer_is_an_error():
  with pytest.raises(ValueError, match="lookahead does nothing without"):
    build({"lookahead": 2}, lookahead=0)


def test_a_rows_lookahead_may_not_pass_the_engines():
  assert build({"lookahead": 0}).lookahead == 0
  assert build({"lookahead": 4}).lookahead == 4
  with pytest.raises(ValueError, match="lookahead=5 is not in 0…4"):
    build({"lookahead": 5})


def test_a_setting_out_of_range_is_named():
  with pytest.raises(ValueError, match="temperature"):
    build({"temperature": -1})


def test_penalties_bias_samples_and_log_probabilities_reach_the_request():
  row = {"logit_bias": {"198": -100, "7": 2.5}, "n": 3, "logprobs": 2}
  request = build(row, temperature=1.0, repetition_penalty=1.2, n=2)
  assert request.sampling == request_lib.SamplingParams(
    temperature=1.0, repetition_penalty=1.2, logit_bias={7: 2.5, 198: -100}
  )
  assert (request.n, request.logprobs) == (3, 2)


@pytest.mark.parametrize(
  "bias, words",
  [
    ({"a": 1}, "logit_bias has the name 'a'; give token ids"),
    ({"-1": 1}, "logit_bias has the name '-1'"),
    ({"1.5": 1}, "logit_bias has the name '1.5'"),
    ({"": 1}, "logit_bias has the name ''"),
    ({"1": 2, "01": 3}, "logit_bias has id 1 twice"),
    ({"1": "2"}, "logit_bias of id 1 is '2'"),
    ({"1": True}, "logit_bias of id 1 is True"),
    ({"1": None}, "logit_bias of id 1 is None"),
    ({"1": 1e99}, "logit_bias of id 1 is 1e\\+99"),
    ({str(n): 1 for n in range(513)}, "of 513 ids.*at most 512"),
  ],
  ids=str,
)
def test_a_wrong_bias_is_named(bias, words):
  with pytest.raises(ValueError, match=words):
    build({"logit_bias": bias})


def test_a_greedy_row_of_a_job_of_samples_is_one():
  """And is counted as one, so that a job knows when it is done."""
  assert build({"temperature": 0}, temperature=1.0, n=3).n == 1
  row = lambda **settings: prompts.Row(
    line=1, id="r", prompt="a", messages=None, settings=settings
  )
  defaults = requests.Defaults(settings={"temperature": 1.0, "n": 3})
  assert requests.samples(row(), defaults) == 3
  assert requests.samples(row(temperature=0), defaults) == 1
  assert requests.samples(row(n=2), defaults) == 2


def test_the_most_log_probabilities_that_any_row_asks_for():
  rows = [
    prompts.Row(
      line=1, id="r", prompt="a", messages=None, settings={"logprobs": k}
    )
    for k in (-5, 0, 3, 10**9)
  ]
  assert requests.top_logprobs(rows, requests.Defaults()) == 3
  assert requests.top_logprobs(rows[:2], requests.Defaults()) == 0
  defaults = requests.Defaults(settings={"logprobs": 5})
  assert requests.top_logprobs(rows, defaults) == 5
