"""RULE 24, at length: strategies, devices, processes and the real model."""

import json
import math
import pathlib
import runpy
import socket

import pytest

from tests.sharding import eight

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = "tests.sharding.matrix_checks"


def run(*args):
  out, err = eight.started(PROGRAM, *args).communicate()
  assert out.strip(), err
  return json.loads(out.splitlines()[-1])


def within_rounding(found):
  tokens = sum(count for count, _ in found)
  differ = sum(rows for _, rows in found)
  assert differ <= math.ceil(tokens / 2000), (differ, tokens, found)


@pytest.mark.long
def test_rule_24_every_strategy_on_1_2_4_and_8_devices_gives_the_same_tokens():
  within_rounding(run("strategies"))


@pytest.mark.long
def test_rule_24_the_real_model_with_padded_heads_gives_the_same_tokens():
  folder = runpy.run_path(str(ROOT / "demo/smollm2.py"))["fetch"]()
  within_rounding(run("smollm2", str(folder)))


@pytest.mark.long
def test_rule_24_two_processes_of_four_devices_give_the_same_tokens():
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = str(free.getsockname()[1])
  args = (PROGRAM, "hosts", port)
  pair = [eight.started(*args, str(n), devices=4) for n in range(2)]
  ends = [process.communicate() for process in pair]
  for process, (_, err) in zip(pair, ends, strict=True):
    assert process.returncode == 0, err
  one, other = (json.loads(out.splitlines()[-1]) for out, _ in ends)
  assert one == other
  for proposer in ("draft_model", "ngram"):
    wanted = run("whole", proposer)
    for kind, got in one:
      if kind == proposer:
        differ = sum(row not in wanted for row in got)
        tokens = sum(len(row) - 2 for row in got)
        assert len(got) == len(wanted)
        within_rounding([(tokens, differ)])
