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
