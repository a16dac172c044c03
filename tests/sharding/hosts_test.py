import os
import subprocess
import sys
import threading

import pytest

from specjax.sharding import hosts, watch
from tests.sharding import fake_store


def pair(**options):
  store = fake_store.Store()
  return [hosts.Group(store, i, 2, **options) for i in range(2)]


def test_alone_nothing_is_shared_and_nobody_asked():
  group = hosts.Group()
  assert group.is_first and not group.is_many
  assert group.share({"a": 1}) == {"a": 1}
  group.agree({"a": 1}, "…")
  assert group.finish(3) == 3


def test_all_get_the_value_of_process_0_in_order():
  first, second = pair()
  assert first.share([1, "é"]) == [1, "é"]
  assert first.share(None) is None
  assert second.share("mine") == [1, "é"]
  assert second.share() is None


def test_who_asks_before_process_0_has_said_it_waits():
  first, second = pair()
  got = []
  thread = threading.Thread(target=lambda: got.append(second.share()))
  thread.start()
  thread.join(timeout=0.2)
  assert thread.is_alive()
  first.share(5)
  thread.join(timeout=10)
  assert got == [5]


def test_what_differs_from_process_0_is_named():
  first, second = pair()
  first.share({"--n": 1, "--slots": [1, 2]})
  with pytest.raises(ValueError) as raised:
    second.agree({"--n": 2, "--slots": (1, 2)}, "start all alike")
  assert str(raised.value) == (
    "process 1 has --n=2, but process 0 has 1; start all alike"
  )


def test_who_leaves_for_another_flushes_and_says_which_and_what_to_do(capfd):
  left, flushed = [], []
  group = pair(program="specjax-x", leave=left.append)[1]
  group.advice = "--resume goes on"
  group.before_leaving = lambda: flushed.append(True)
  group._follow(watch.End(process=0, why="has gone", code=1))
  assert (left, flushed) == ([1], [True])
  assert capfd.readouterr().err == (
    "\nspecjax-x: process 0 of 2 has gone, so process 1 ends;"
    " --resume goes on\n"
  )


def test_what_is_the_same_is_agreed_once_all_have_looked():
  first, second = pair()
  thread = threading.Thread(target=first.agree, args=({"--n": 1}, "…"))
  thread.start()
  thread.join(timeout=0.2)
  assert thread.is_alive()
  second.agree({"--n": 1}, "…")
  thread.join(timeout=10)
  assert not thread.is_alive()


def test_flags_tell_a_process_of_the_others():
  assert hosts.given("10.0.0.1:8476", 4, 3) == ("10.0.0.1:8476", 4, 3)
  assert hosts.given() is None


def test_so_does_the_environment_and_flags_win(monkeypatch):
  monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "a:1")
  assert hosts.given() is None  # jax reads it beside what it finds itself.
  monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
  monkeypatch.setenv("JAX_PROCESS_ID", "1")
  assert hosts.given() == ("a:1", 4, 1)
  assert hosts.given(process_id=2) == ("a:1", 4, 2)


@pytest.mark.parametrize(
  "told, words",
  [
    (("a:1", None, 0), "--coordinator_address=a:1 needs --num_processes"),
    ((None, 2, 0), "--num_processes=2 needs --coordinator_address"),
    (("a", 2, 0), "--coordinator_address=a is no address"),
    (("a:x", 2, 0), "is no address"),
    (("a:70000", 2, 0), "is no address"),
    (("a:1", 2, 2), "--process_id=2 is not in 0…1"),
    (("a:1", 2, -1), "--process_id=-1 is not in 0…1"),
  ],
)
def test_half_of_it_or_nonsense_is_refused(told, words):
  with pytest.raises(ValueError, match=words):
    hosts.given(*told)


def test_a_process_told_that_it_is_alone_joins_nobody():
  assert not hosts.initialize(("a:1", 1, 0)).is_many
  assert not hosts.initialize().is_many  # JAX_PLATFORMS=cpu


_TPU_NAMES = (
  "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES", "MEGASCALE_NUM_SLICES",
)  # fmt: skip


@pytest.mark.parametrize(
  "environment, pod",
  [
    ({}, True),
    ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
    ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
    ({"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, True),
    ({"TPU_PROCESS_ADDRESSES": "a:1,b:1"}, True),
    ({"JAX_PLATFORMS": "cpu"}, False),
  ],
)
def test_a_machine_with_tpus_may_be_in_a_pod(monkeypatch, environment, pod):
  monkeypatch.delenv("JAX_PLATFORMS")
  # Libtpu sets some of them, where a test of the lab has used it.
  for name in _TPU_NAMES:
    monkeypatch.delenv(name, raising=False)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  monkeypatch.setattr(hosts.glob, "glob", lambda pattern: [])
  assert not hosts._may_be_in_a_pod()
  monkeypatch.setattr(hosts.glob, "glob", lambda pattern: ["/dev/accel0"])
  assert hosts._may_be_in_a_pod() is pod


def test_where_the_others_do_not_come_it_ends_with_a_line():
  program = (
    "from specjax.sharding import hosts\nhosts.JOIN_S = 1\n"
    "hosts.initialize(('127.0.0.1:1', 2, 1), program='specjax-x')"
  )
  done = subprocess.run(
    [sys.executable, "-c", program],
    capture_output=True,
    text=True,
    timeout=60,
    env=os.environ | {"PYTHONPATH": os.getcwd()},
  )
  assert done.returncode == 1
  assert "specjax-x: error: not all processes of 2, at 127.0.0.1:1" in (
    done.stderr
  )
