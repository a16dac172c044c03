"""Whether the other processes still live, and what they say when they end.

Every process writes a beat into the store that all of them share. Process 0
hears who has fallen silent and says so to all; whoever ends by an error or a
signal says so itself. A process that hears of an end leaves, wherever its main
thread is: mostly in a collective that will never return.
"""

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

TICK_S = 0.5
# How long a process may be silent. It is silent where one call into C keeps
# Python's lock, as a read from a slow disk may.
SILENCE_S = 45.0
# The same, once a collective has failed: then somebody has gone for certain.
BROKEN_S = 10.0
# How long process 0, which holds the store, waits for all to have heard.
HEARD_S = 15.0


class Store(Protocol):
  """What all processes can read and write; it lives in process 0."""

  def put(self, key: str, data: bytes, *, replace: bool = False) -> bool:
    """Writes; whether that was done: not where there is one already."""

  def under(self, prefix: str) -> Mapping[str, bytes]:
    """All that is written under a prefix ("beat/"), by the rest of the key."""

  def is_gone(self) -> bool:
    """Whether its process answers no more; asked where a call takes long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
  """Why a process has ended.

  Attributes:
    process: its index.
    why: in words that follow its name.
    code: the exit code for all.
    reachable: whether the store is still there.
  """

  process: int
  why: str
  code: int
  reachable: bool = True


class Watch:
  """The beats of one process, and its ears."""

  def __init__(
    self,
    store: Store,
    index: int,
    count: int,
    leave: Callable[[End], Any],
    *,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Nothing happens before `start`, or calls of `tick` and `look`.

    Args:
      store: shared by all.
      index, count: this process, and how many there are.
      leave: called in a thread of its own when another process has ended; ends
        this one.
      clock: seconds.
    """
    self._store, self._index, self._count = store, index, count
    self._leave, self._clock = leave, clock
    self._over = threading.Event()
    self._beats = 0
    self._heard: dict[int, tuple[bytes, float]] = {}
    self._waiting_since: float | None = None
    self._failing = False
    # Called at every tick: see `stops.Stop`.
    self.also: list[Callable[[], Any]] = []

  def start(self) -> None:
    """Starts both threads: one may be held up in the store for ever."""
    for run in (self._tick_on, self._look_on):
      threading.Thread(target=run, daemon=True).start()

  def stop(self) -> None:
    """Ends both threads, soon."""
    self._over.set()

  def tick(self) -> None:
    """Beats, and hears what has been said since."""
    if self._waiting_since is None:
      self._waiting_since = self._clock()
    self._beats += 1
    beat = str(self._beats).encode()
    self._store.put(f"beat/{self._index}", beat, replace=True)
    if self._index == 0:
      self._judge()
    ended = self._store.under("ended/")
    if ended and not self._failing:
      self._hear({int(name): data for name, data in ended.items()})
    for call in self.also:
      call()
    self._waiting_since = None

  def look(self) -> None:
    """Leaves where the store has not answered and its process is gone."""
    since = self._waiting_since
    if since is None:
      return
    waited = self._clock() - since
    if waited > SILENCE_S or (waited > 2 * TICK_S and self._store.is_gone()):
      why = "has gone (killed, or its machine is)"
      self._end(End(process=0, why=why, code=1, reachable=False))

  def broken(self) -> None:
    """Tells that a collective has failed here, so that somebody has gone."""
    self._store.put(f"broken/{self._index}", b"")

  def fail(self, why: str, code: int) -> None:
    """Tells all that this process ends; they do too.

    Args:
      why: in words that follow its name.
      code: the exit code.
    """
    if self._failing:
      return
    self._failing = True
    self._say(self._index, why, code)
    self._store.put(f"heard/{self._index}", b"")
    until = self._clock() + HEARD_S
    # The store goes with process 0, so it waits until all have heard.
    while self._index == 0 and self._clock() < until:
      if len(self._store.under("heard/")) >= self._count:
        return
      time.sleep(TICK_S / 5)

  def _judge(self) -> None:
    now = self._clock()
    limit = BROKEN_S if self._store.under("broken/") else SILENCE_S
    beats = self._store.under("beat/")
    for process in range(1, self._count):
      beat = beats.get(str(process), b"")
      before, since = self._heard.get(process, (None, now))
      if beat != before:
        since = now
      self._heard[process] = beat, since
      if now - since > limit:
        self._say(process, "has gone (killed, or its machine is)", 1)

  def _say(self, process: int, why: str, code: int) -> None:
    note = json.dumps({"why": " ".join(why.split()), "code": code}).encode()
    self._store.put(f"ended/{process}", note)

  def _hear(self, ended: Mapping[int, bytes]) -> None:
    # Who was taken for dead and hears of it leaves too.
    process = min(ended, key=lambda each: (each == self._index, each))
    self._store.put(f"heard/{self._index}", b"")
    self._end(End(process=process, **json.loads(ended[process])))

  def _end(self, end: End) -> None:
    if not self._over.is_set():
      self._over.set()
      self._leave(end)

  def _tick_on(self) -> None:
    while not self._over.wait(TICK_S):
      try:
        self.tick()
      except RuntimeError:  # The store's: `look` says what it means.
        pass

  def _look_on(self) -> None:
    while not self._over.wait(TICK_S):
      self.look()
