import os
import signal
import threading

import pytest

from specjax.jobs import stopping

SIGNALS = {
  signal.SIGINT: KeyboardInterrupt,
  signal.SIGTERM: stopping.Terminated,
}


def send(how):
  os.kill(os.getpid(), how)


def handlers():
  return [signal.getsignal(how) for how in SIGNALS]


@pytest.mark.parametrize("how, error", SIGNALS.items())
def test_promptly_a_signal_is_an_exception(how, error):
  before = handlers()
  with pytest.raises(error), stopping.prompt("program"):
    send(how)
  assert handlers() == before
  assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second, error", SIGNALS.items())
def test_patiently_the_first_asks_and_the_second_ends(
  capfd, first, second, error
):
  before = handlers()
  with pytest.raises(error), stopping.prompt("program", grace_s=60):
    with stopping.patient() as stop:
      assert not stop()
      send(first)
      assert stop() and stop.signal == first
      assert "ending after this step" in capfd.readouterr().err
      send(second)
  assert handlers() == before
  assert capfd.readouterr().err == ""


def test_what_was_asked_once_does_not_end_what_comes_after():
  """Nobody leaves the process while the rest is written and summed up."""
  with stopping.prompt("program", grace_s=0.01):
    with stopping.patient():
      send(signal.SIGTERM)
      threading.Event().wait(0.1)
    threading.Event().wait(0.1)


def test_other_signals_are_nobodys_business():
  heard = []
  before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
  try:
    with stopping.prompt("program", grace_s=0.01):
      send(signal.SIGUSR1)
      threading.Event().wait(0.1)
  finally:
    signal.signal(signal.SIGUSR1, before)
  assert heard == [1]


def test_outside_the_main_thread_nothing_is_set():
  before = handlers()
  seen = []

  def body():
    with stopping.prompt("program"), stopping.patient() as stop:
      seen.append((handlers() == before, stop()))

  thread = threading.Thread(target=body)
  thread.start()
  thread.join()
  assert seen == [(True, False)]
