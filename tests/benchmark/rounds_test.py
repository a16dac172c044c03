"""Everyone answers everything, in turns; what was done is never lost."""

import jax
import jax.numpy as jnp
import pytest

from specjax.benchmark import rounds
from tests.benchmark.made import Contestant, request

REQUESTS = [request("p", size=3), request("q", size=6)]


def run(contestants, number, **options):
  return rounds.run(
    contestants, REQUESTS, number, rest_s=0, quiet=True, **options
  )


def test_the_order_rotates_and_each_goes_over_all_prompts():
  log = []
  samples = run([Contestant(name, log) for name in "abc"], 4)
  assert [name for name, _ in log[::2]] == list("abcbcacababc")
  assert [ids for _, ids in log] == [["p"], ["q"]] * 12
  assert {name: len(found) for name, found in samples.items()} == {
    "a": 4,
    "b": 4,
    "c": 4,
  }
  assert [a.id for a in samples["a"][0].answers] == ["p", "q"]


def test_together_all_prompts_go_in_one_call():
  log = []
  samples = run([Contestant("a", log)], 2, together=True)
  assert [ids for _, ids in log] == [["p", "q"]] * 2
  assert samples["a"][0].together


def test_after_every_contestant_the_samples_so_far_are_given():
  seen, breaks = [], []
  run(
    [Contestant("a"), Contestant("b")],
    2,
    after=lambda s: seen.append((len(s["a"]), len(s["b"]))),
    between=lambda: breaks.append(len(seen)),
  )
  assert seen == [(1, 0), (1, 1), (1, 2), (2, 2)]
  assert breaks == [2, 4]


def test_an_interrupt_leaves_what_was_finished():
  seen = []
  contestants = [Contestant("a"), Contestant("b", fail_at=4)]
  with pytest.raises(KeyboardInterrupt):
    run(contestants, 3, after=lambda s: seen.append(dict(s)))
  # In the second round b began, and failed at its second prompt.
  assert {name: len(found) for name, found in seen[-1].items()} == {
    "a": 1,
    "b": 1,
  }


def test_compilations_while_answering_are_counted():
  class Compiles(Contestant):
    def answer(self, requests):
      jax.jit(lambda x: x * 5 - 1)(jnp.zeros((11,)))
      return super().answer(requests)

  samples = run([Compiles("a"), Contestant("b")], 1)
  assert samples["a"][0].compiles > 0
  assert samples["b"][0].compiles == 0


def test_the_warm_up_is_the_longest_prompt_for_a_few_tokens():
  log = []
  rounds.warm_up([Contestant("a", log), Contestant("b", log)], REQUESTS)
  assert log == [("a", ["q"]), ("b", ["q"])]
