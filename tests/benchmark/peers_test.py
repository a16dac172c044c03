"""Peers, played by stand-ins: what they are asked, and what is timed."""

import importlib
import sys

import numpy as np
import pytest

from specjax.benchmark import measure, peers_llama_cpp, peers_transformers
from tests.benchmark.made import Clock, Contestant, request


def hugging_face(clock):
  """A stand-in for generate: a prompt, then steps of 1, 2 and 3 tokens."""

  def generate(prompt, *, streamer, max_new_tokens, **settings):
    generate.asked.append((prompt, max_new_tokens, settings))
    streamer.put(np.asarray([prompt]))
    for count in (1, 2, 3):
      clock.sleep(1.0)
      streamer.put(np.full((1, count), count))
    streamer.end()

  generate.asked = []
  return generate


def test_transformers_tokens_arrive_step_by_step():
  clock = Clock()
  clock.sleep(7.0)
  generate = hugging_face(clock)
  peer = peers_transformers.Peer("t", generate, {"lookup": 3}, clock=clock)
  (answer,) = peer.answer([request("a", size=3, max_new_tokens=6)])
  assert generate.asked == [((0, 1, 2), 6, {"lookup": 3})]
  assert answer.token_ids == (1, 2, 2, 3, 3, 3)
  assert answer.times_s == (1, 2, 2, 3, 3, 3)
  assert (answer.steps, answer.prompt_tokens, answer.id) == (3, 3, "a")


def llama(clock, tokens):
  """A stand-in for llama.cpp: a token a second, for ever."""

  def generate(prompt):
    for token in tokens:
      clock.sleep(1.0)
      yield token

  return generate


@pytest.mark.parametrize(
  "tokens, expected",
  [
    ([4, 5, 6, 7, 8], (4, 5, 6)),  # The budget ends it,
    ([4, 9, 6, 7, 8], (4, 9)),  # or an end token, which counts.
  ],
)
def test_llama_cpp_tokens_arrive_one_by_one(tokens, expected):
  clock = Clock()
  peer = peers_llama_cpp.Peer(
    "l", llama(clock, tokens), stop_ids=[9], settings={}, clock=clock
  )
  (answer,) = peer.answer([request(max_new_tokens=3)])
  assert answer.token_ids == expected
  assert answer.times_s == tuple(range(1, len(expected) + 1))
  assert answer.steps is None


def test_of_several_ways_the_fastest_is_kept():
  ways = [Contestant("w", second=second) for second in (2.0, 0.5, 1.0)]
  said = []
  requests = [request("p", max_new_tokens=50), request("q")]
  assert measure._fastest(ways, requests, said.append) is ways[1]
  assert [ids for _, ids in ways[0].log] == [["p"], ["q"]]
  assert "{'second': 0.5}: 2.0" in said[0]


def test_a_single_way_is_not_tried():
  way = Contestant("w")
  assert measure._fastest([way], [request()]) is way
  assert way.log == []


@pytest.mark.parametrize(
  "name, module, package",
  [
    ("transformers", "torch", "torch"),
    ("llama_cpp", "llama_cpp", "llama-cpp-python"),
  ],
)
def test_a_missing_peer_says_what_to_install(
  monkeypatch, name, module, package
):
  monkeypatch.setitem(sys.modules, module, None)
  peer = importlib.import_module(f"specjax.benchmark.peers_{name}")
  sizes = {"context": 8} if name == "llama_cpp" else {}
  with pytest.raises(ImportError) as caught:
    peer.load("folder", dtype="float32", stop_ids=(), **sizes)
  message = str(caught.value)
  assert f"--peer={name}" in message and "pip install" in message
  assert package in message and "\n" not in message
