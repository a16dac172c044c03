import pytest

from specjax.sharding import watch
from tests.sharding import fake_store


class Processes:
  """Watches of several processes on one clock, ticked by hand."""

  def __init__(self, count):
    self.now = 0.0
    self.store = fake_store.Store()
    self.ends = [[] for _ in range(count)]
    self.watches = [
      watch.Watch(
        self.store, i, count, self.ends[i].append, clock=lambda: self.now
      )
      for i in range(count)
    ]

  def run(self, seconds, *alive):
    for _ in range(int(seconds)):
      self.now += 1
      for i in alive:
        self.watches[i].tick()
        self.watches[i].look()


def test_nobody_leaves_while_all_beat():
  processes = Processes(3)
  processes.run(200, 0, 1, 2)
  assert processes.ends == [[], [], []]


def test_a_process_that_falls_silent_ends_all_others_within_a_minute():
  processes = Processes(3)
  processes.run(5, 0, 1, 2)
  processes.run(40, 0, 1)
  assert processes.ends == [[], [], []]
  processes.run(10, 0, 1)
  for ends in processes.ends[:2]:
    (end,) = ends
    assert (end.process, end.code, end.reachable) == (2, 1, True)
    assert "has gone" in end.why


def test_once_a_collective_has_failed_less_silence_is_enough():
  processes = Processes(2)
  processes.run(5, 0, 1)
  processes.watches[0].broken()
  processes.run(9, 0)
  assert processes.ends[0] == []
  processes.run(4, 0)
  assert processes.ends[0][0].process == 1


def test_one_that_never_beat_counts_as_silent():
  processes = Processes(2)
  processes.run(50, 0)
  assert processes.ends[0][0].process == 1


def test_who_was_taken_for_dead_leaves_too():
  processes = Processes(2)
  processes.run(50, 0)
  processes.run(1, 1)
  assert processes.ends[1][0].process == 1


def test_process_0_is_gone_once_its_port_is_closed():
  processes = Processes(2)
  processes.run(5, 0, 1)
  processes.store.gone = True
  for _ in range(4):
    processes.now += watch.TICK_S
    with pytest.raises(RuntimeError):
      processes.watches[1].tick()
    processes.watches[1].look()
  (end,) = processes.ends[1]
  assert (end.process, end.code, end.reachable) == (0, 1, False)


def test_process_0_is_gone_if_it_answers_nothing_for_long():
  processes = Processes(2)
  processes.run(5, 0, 1)
  processes.store.gone = True
  with pytest.raises(RuntimeError):
    processes.watches[1].tick()
  processes.store.is_gone = lambda: False  # A machine that drops packets.
  processes.now += 40
  processes.watches[1].look()
  assert processes.ends[1] == []
  processes.now += 10
  processes.watches[1].look()
  assert processes.ends[1][0].process == 0


def test_who_fails_tells_all_why_and_the_exit_code():
  processes = Processes(3)
  processes.watches[1].fail("has ended:\n disk full", 143)
  processes.run(1, 0, 1, 2)
  assert processes.ends[1] == []  # It leaves by itself.
  for i in 0, 2:
    (end,) = processes.ends[i]
    assert end == watch.End(process=1, why="has ended: disk full", code=143)


def test_process_0_fails_once_all_have_heard(monkeypatch):
  processes = Processes(3)
  waited = []

  def sleep(seconds):
    waited.append(seconds)
    processes.run(1, len(waited))

  monkeypatch.setattr(watch.time, "sleep", sleep)
  processes.watches[0].fail("was interrupted", 130)
  assert len(waited) == 2
  assert [len(ends) for ends in processes.ends] == [0, 1, 1]


def test_process_0_does_not_wait_for_ever_to_be_heard(monkeypatch):
  processes = Processes(2)

  def sleep(seconds):
    processes.now += seconds

  monkeypatch.setattr(watch.time, "sleep", sleep)
  processes.watches[0].fail("was interrupted", 130)
  assert watch.HEARD_S <= processes.now < watch.HEARD_S + 1
