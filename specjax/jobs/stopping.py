"""Signals that end a command: Ctrl-C, and SIGTERM as preemption sends it.

The one place that sets handlers. Within `prompt` a signal ends the command
soon: as an exception, or, where Python cannot raise one because a compiler
holds the main thread, by leaving the process. Within `patient` the first signal
only asks, and a second one ends the command as before.

jax.distributed would trap SIGTERM itself: `sharding.hosts` tells it not to.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

# How long an exception may take to unwind the stack before the process leaves.
GRACE_S = 2.0
# 128 + the signal's number, as a shell reports it.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
NAMES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
NAMES_OF_CODES = {EXIT_CODES[each]: name for each, name in NAMES.items()}


class Terminated(BaseException):
  """SIGTERM, where it ends the command; SIGINT is a KeyboardInterrupt."""


class Stop:
  """What has been asked for within `patient`.

  Attributes:
    signal: the first signal that came, or None.
  """

  def __init__(self):
    self.signal: signal.Signals | None = None

  def __call__(self) -> bool:
    """Whether to end."""
    return self.signal is not None


@contextlib.contextmanager
def farewell(call: Callable[[int], None]) -> Iterator[None]:
  """Has a thread that leaves for everybody say so first, to other processes.

  Args:
    call: gets the exit code.
  """
  before, _Watch.farewell = _Watch.farewell, call
  try:
    yield
  finally:
    _Watch.farewell = before


def never() -> bool:
  """A stop that is never asked for."""
  return False


@contextlib.contextmanager
def prompt(program: str, grace_s: float = GRACE_S) -> Iterator[None]:
  """A signal raises KeyboardInterrupt or Terminated, and ends the process.

  Python runs handlers between its own instructions, so a signal that comes
  while XLA compiles would wait for it, minutes perhaps. A thread that hears of
  signals at once waits `grace_s` seconds and then leaves for everybody.

  Args:
    program: the command's name, which begins the line on standard error.
    grace_s: seconds.
  """
  if threading.current_thread() is not threading.main_thread():
    yield  # Only the main thread may set handlers.
    return
  watch = _Watch(program, grace_s)
  with watch, _handlers(_end):
    yield


@contextlib.contextmanager
def patient() -> Iterator[Stop]:
  """The first signal asks to end after the step under way, and says so."""
  stop = Stop()
  if threading.current_thread() is not threading.main_thread():
    yield stop
    return

  def note(signum, frame):
    if stop():
      _end(signum, frame)
    stop.signal = signal.Signals(signum)
    why = "terminated: " if signum == signal.SIGTERM else ""
    _tell(f"{why}ending after this step; interrupt again to end on the spot")

  before, _Watch.spared = _Watch.spared, 1
  try:
    with _handlers(note):
      yield stop
  finally:
    _Watch.spared = before


def _tell(line: str) -> None:
  # Not by sys.stderr: the signal may have come in the middle of its write.
  with contextlib.suppress(OSError):
    os.write(2, f"\n{line}\n".encode())


def _end(signum, frame):
  del frame
  raise Terminated if signum == signal.SIGTERM else KeyboardInterrupt


@contextlib.contextmanager
def _handlers(handler) -> Iterator[None]:
  before = {each: signal.signal(each, handler) for each in EXIT_CODES}
  try:
    yield
  finally:
    for each, old in before.items():
      # None: whoever set it was not Python, and Python cannot set it again.
      signal.signal(each, signal.SIG_DFL if old is None else old)


class _Watch:
  """A thread that ends the process where the main thread does not get to it.

  Attributes:
    spared: of the signals to come, how many may be taken slowly.
    farewell: called with the exit code before the process is left.
  """

  spared = 0
  farewell: Callable[[int], None] = staticmethod(lambda code: None)

  def __init__(self, program: str, grace_s: float):
    self._program, self._grace_s = program, grace_s
    self._over = threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)

  def __enter__(self):
    self._read, self._write = os.pipe()
    for end in (self._read, self._write):
      os.set_inheritable(end, False)
    os.set_blocking(self._write, False)
    # A byte a signal, its number, written by C code the moment it arrives.
    self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
    self._thread.start()

  def __exit__(self, *_):
    signal.set_wakeup_fd(self._before)
    self._over.set()
    os.close(self._write)  # The thread reads the end of it.
    self._thread.join()
    os.close(self._read)

  def _run(self):
    while byte := os.read(self._read, 1):
      if byte[0] not in EXIT_CODES:
        continue
      if type(self).spared:
        type(self).spared -= 1
        continue
      if not self._over.wait(self._grace_s):
        _tell(f"{self._program}: {NAMES[byte[0]]}")
        type(self).farewell(EXIT_CODES[byte[0]])
        os._exit(EXIT_CODES[byte[0]])
