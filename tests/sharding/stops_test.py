import random
import signal
import threading

import pytest

from specjax.sharding import stops
from tests.sharding import fake_store


def test_nobody_asked_nobody_stops():
  stop = stops.Stop(fake_store.Store(), 0, 2, lambda: None)
  for _ in range(10):
    stop.tick()
    assert not stop()
  assert stop.signal is None


def test_the_call_that_nobody_has_passed_is_the_last():
  store, asked = fake_store.Store(), []
  one = stops.Stop(store, 0, 2, lambda: asked[0] if asked else None)
  other = stops.Stop(store, 1, 2, lambda: None)
  for _ in range(3):
    assert not one()
  for _ in range(5):
    assert not other()
  asked.append(signal.SIGTERM)
  for each in one, other, one, other:
    each.tick()
  assert [one() for _ in range(3)] == [False, False, True]
  assert other()
  assert one.signal == other.signal == signal.SIGTERM


def test_the_first_request_counts_and_the_other_is_told_who():
  store, told = fake_store.Store(), []
  one = stops.Stop(store, 0, 2, lambda: signal.SIGINT, told.append)
  other = stops.Stop(store, 1, 2, lambda: signal.SIGTERM, told.append)
  one.tick()
  other.tick()
  one.tick()
  assert one.signal == other.signal == signal.SIGINT
  assert told == [
    "process 0 was asked to stop (SIGINT): ending after this step"
  ]


@pytest.mark.parametrize("seed", range(8))
def test_threads_that_ask_at_their_own_pace_stop_at_the_same_call(seed):
  store, dice = fake_store.Store(), random.Random(seed)
  asked = threading.Event()
  over = threading.Event()
  made = [
    stops.Stop(
      store,
      i,
      3,
      lambda i=i: signal.SIGTERM if i == 1 and asked.is_set() else None,
    )
    for i in range(3)
  ]
  calls = [0, 0, 0]

  def loop(i, pause):
    while not made[i]():
      calls[i] += 1
      threading.Event().wait(pause)

  def tick(i, pause):
    while not over.wait(pause):
      made[i].tick()

  threads = [
    threading.Thread(target=loop, args=(i, dice.random() / 500))
    for i in range(3)
  ]
  tickers = [
    threading.Thread(target=tick, args=(i, dice.random() / 200))
    for i in range(3)
  ]
  for thread in threads + tickers:
    thread.start()
  threading.Event().wait(dice.random() / 20)
  asked.set()
  for thread in threads:
    thread.join(timeout=10)
  over.set()
  assert calls[0] == calls[1] == calls[2]
