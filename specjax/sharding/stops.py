"""A stop that all processes make after the same step."""

import json
import signal
import threading
import time
from collections.abc import Callable

from specjax.sharding import watch


class Stop:
  """Whether to end: the same answer at the same call in every process.

  Processes ask at the same points of one deterministic loop, so that the number
  of calls is a clock they share. Where one is asked to stop it says so to all;
  each answers with the number of calls it has passed and passes none until it
  knows the others'; all end at the first call that nobody has passed. Threads
  do the talking: a main thread in a collective could wait for ever.
  """

  def __init__(
    self,
    store: watch.Store,
    index: int,
    count: int,
    asked: Callable[[], signal.Signals | None],
    tell: Callable[[str], None] = lambda line: None,
  ):
    """Nothing happens before `tick` is called.

    Args:
      store: shared by all.
      index, count: this process, and how many there are.
      asked: the signal that this process has been sent, or None.
      tell: told, in words, who has been asked to stop.
    """
    self._store, self._index, self._count = store, index, count
    self._asked, self._tell = asked, tell
    self._lock = threading.Lock()
    self._passed = 0
    self._last: int | None = None  # The call that ends it.
    self._announced = False
    self._requested = False
    self._signal: signal.Signals | None = None

  @property
  def signal(self) -> signal.Signals | None:
    """The signal that asked for it, in whichever process."""
    return self._signal

  def __call__(self) -> bool:
    """Whether to end; waits where others must answer first."""
    with self._lock:
      if not self._announced:
        self._passed += 1
        return False
    while self._last is None:
      time.sleep(0.01)
    self._passed += 1
    return self._passed >= self._last

  def tick(self) -> None:
    """Hears and says what there is to; called every now and then."""
    if self._last is not None:
      return
    signum = self._asked()
    if signum is not None and not self._requested:
      self._requested = True
      request = {"process": self._index, "signal": int(signum)}
      self._store.put("stop/request", json.dumps(request).encode())
    said = self._store.under("stop/")
    if "request" not in said:
      return
    if not self._announced:
      request = json.loads(said["request"])
      self._signal = signal.Signals(request["signal"])
      with self._lock:
        self._announced = True
      self._store.put(f"stop/{self._index}", str(self._passed).encode())
      if request["process"] != self._index:
        self._tell(
          f"process {request['process']} was asked to stop"
          f" ({self._signal.name}): ending after this step"
        )
      said = self._store.under("stop/")
    passed = [int(data) for name, data in said.items() if name != "request"]
    if len(passed) == self._count:
      self._last = max(passed) + 1
