"""One job in many processes: they join, agree, stop together and end together.

On a slice of a TPU pod every worker runs the same command, and what they are
part of is in the environment. Elsewhere processes are told (`initialize`).
Everything that they say to each other goes through the key-value store of
jax's coordination service, which lives in process 0.
"""

import contextlib
import glob
import json
import os
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from specjax.sharding import stops, watch

# How long the first to come waits for the last: workers of a pod may be
# minutes apart.
JOIN_S = 300
_NAMES = ("coordinator_address", "num_processes", "process_id")
_ENVIRONMENT = {name: f"JAX_{name.upper()}" for name in _NAMES}
_POLL_S = 0.05
_STATE: dict[str, "Group"] = {}


class Group:
  """The processes of a job; a process that runs alone is a group of one.

  Attributes:
    index: which of them this is.
    count: how many there are.
    program: what the lines that it writes to standard error begin with.
    advice: what to do when a process has died, for the line that says so.
    before_leaving: called when this process has to leave because another has
      ended, before it does.
    is_over: whether it has left the others in peace.
  """

  def __init__(
    self,
    store: watch.Store | None = None,
    index: int = 0,
    count: int = 1,
    *,
    program: str = "specjax",
    leave: Callable[[int], Any] = os._exit,
  ):
    """A group of one unless given.

    Args:
      store: shared by all.
      index, count, program: see the attributes.
      leave: ends this process with an exit code.
    """
    self.index, self.count, self.program = index, count, program
    self.advice = ""
    self.is_over = False
    self.before_leaving: Callable[[], Any] = lambda: None
    self._leave, self._shares = leave, 0
    self._store = store
    self.watch = watch.Watch(store, index, count, self._follow)

  @property
  def is_first(self) -> bool:
    """Whether this is process 0, which alone writes files and speaks."""
    return self.index == 0

  @property
  def is_many(self) -> bool:
    """Whether there is more than one process."""
    return self.count > 1

  def share(self, value: Any = None) -> Any:
    """Process 0's value, in all; all must call it, in the same order.

    Args:
      value: what JSON can hold; of process 0, the others' is not looked at.
    """
    if not self.is_many:
      return value
    self._shares += 1
    prefix = f"share/{self._shares}/"
    if self.is_first:
      data = zlib.compress(json.dumps(value).encode(), 1)
      self._store.put(prefix + "value", data)
    while not (found := self._store.under(prefix)):
      time.sleep(_POLL_S)  # If process 0 has died, the watch ends this one.
    return json.loads(zlib.decompress(found["value"]))

  def agree(self, values: Mapping[str, Any], remedy: str) -> None:
    """Holds values against process 0's, and waits until all have.

    Args:
      values: by name, what JSON can hold.
      remedy: how to make them the same.

    Raises:
      ValueError: one differs; names it and both values.
    """
    mine = json.loads(json.dumps(dict(values)))
    theirs = self.share(mine)
    for name in sorted({*mine, *theirs}):
      if mine.get(name) != theirs.get(name):
        raise ValueError(
          f"process {self.index} has {name}={json.dumps(mine.get(name))}, but"
          f" process 0 has {json.dumps(theirs.get(name))}; {remedy}"
        )
    self._meet(f"agreed/{self._shares}/")

  def stop(self, asked: Callable[[], Any], tell: Callable[[str], None]) -> Any:
    """A stop that all processes make after the same step: `stops.Stop`."""
    made = stops.Stop(self._store, self.index, self.count, asked, tell)
    self.watch.also.append(made.tick)
    return made

  def fail(self, why: str, code: int) -> None:
    """Tells the others that this process ends, so that they do too.

    Where a collective has failed another process has gone: waits to be told
    which, and ends as the others do.

    Args:
      why: in words that follow the process's name, or an error's own.
      code: the exit code for all.
    """
    if not self.is_many:
      return
    if _is_of_a_collective(why):
      self.watch.broken()
      time.sleep(watch.SILENCE_S)  # Mostly the watch ends it before.
    self.watch.fail(why, code)

  def finish(self, code: int) -> int:
    """Waits until all are done; gives the exit code of process 0 for all."""
    if not self.is_many:
      return code
    code = self.share(code)
    self._meet("done/")
    self.watch.stop()
    import jax

    with contextlib.suppress(RuntimeError):
      jax.distributed.shutdown()  # Process 0's waits for the others'.
    self.is_over = True
    return code

  def _meet(self, prefix: str) -> None:
    """Waits until all are here."""
    if not self.is_many:
      return
    self._store.put(f"{prefix}{self.index}", b"")
    while len(self._store.under(prefix)) < self.count:
      time.sleep(_POLL_S)

  def _follow(self, end: watch.End) -> None:
    """Another process has ended: says so and leaves."""
    flushed = threading.Thread(target=self._flush, daemon=True)
    flushed.start()
    flushed.join(watch.HEARD_S)
    which = f"process {end.process} of {self.count}"
    own = f"so process {self.index} ends"
    if end.process == self.index:
      which, own = "this process", "as the others found"
    advice = f"; {self.advice}" if self.advice else ""
    line = f"\n{self.program}: {which} {end.why}, {own}{advice}\n"
    with contextlib.suppress(OSError):
      os.write(2, line.encode())
    self._leave(end.code)

  def _flush(self) -> None:
    # Whatever it raises: rows that cannot be written are made again.
    with contextlib.suppress(Exception):
      self.before_leaving()


def given(
  coordinator_address: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> tuple[str, int, int] | None:
  """What a process is told of its group, by flags or by the environment.

  The variables are JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID.

  Returns:
    The address, the count and the index; None where nothing is told.

  Raises:
    ValueError: one is missing or wrong.
  """
  values: dict[str, Any] = dict(
    zip(_NAMES, (coordinator_address, num_processes, process_id), strict=True)
  )
  names = {name: f"--{name}={value}" for name, value in values.items()}
  for name, value in values.items():
    if value is None and (text := os.environ.get(_ENVIRONMENT[name])):
      values[name] = text
      names[name] = f"{_ENVIRONMENT[name]}={text}"
  told = [name for name, value in values.items() if value is not None]
  # jax reads this variable too, beside what it finds by itself.
  if not told or told == ["coordinator_address"] and not coordinator_address:
    return None
  if missing := [name for name in _NAMES if name not in told]:
    raise ValueError(
      f"{names[told[0]]} needs --{missing[0]} beside it; a process of many is"
      " told an address, how many they are and which it is"
    )
  address = values["coordinator_address"]
  host, _, port = address.rpartition(":")
  if not host or not port.isdecimal() or not 0 < int(port) < 65536:
    raise ValueError(
      f"{names['coordinator_address']} is no address; give HOST:PORT of"
      " process 0, as in 10.0.0.1:8476"
    )
  try:
    count, index = int(values["num_processes"]), int(values["process_id"])
  except ValueError:
    raise ValueError(
      f"{names['num_processes']} and {names['process_id']} must be whole"
      " numbers"
    ) from None
  if count < 1 or not 0 <= index < count:
    raise ValueError(
      f"{names['process_id']} is not in 0…{count - 1}, of"
      f" {names['num_processes']}"
    )
  return address, count, index


def initialize(
  told: tuple[str, int, int] | None = None, *, program: str = "specjax"
) -> Group:
  """Joins the group that this process is part of, before jax has a backend.

  Args:
    told: what `given` gives. Where it is None, TPU workers find it in their
      environment; all others are alone, and then nothing happens.
    program: see `Group`.

  Raises:
    RuntimeError: jax has a backend already.
  """
  if told is None and not _may_be_in_a_pod() or told and told[1] == 1:
    return Group(program=program)
  import jax

  # jax would catch SIGTERM; here signals belong to `jobs.stopping`, and what
  # processes agree on to `stops`.
  with contextlib.suppress(AttributeError):
    jax.config.update("jax_enable_preemption_service", False)
  came = threading.Event()
  threading.Thread(
    target=_give_up, args=(came, told, program), daemon=True
  ).start()
  options = {}
  if told is not None:
    names = dict(zip(_NAMES, told, strict=True))
    options = {**names, "cluster_detection_method": "deactivate"}
  try:
    jax.distributed.initialize(
      **options, initialization_timeout=2 * JOIN_S, shutdown_timeout_seconds=60
    )
  except ValueError:
    if told is not None:
      raise
    return Group(program=program)  # A TPU, but nobody has put it in a pod.
  finally:
    came.set()
  count, index = jax.process_count(), jax.process_index()
  if count == 1:
    return Group(program=program)
  from jax._src import distributed  # Nothing public gives the store.

  state = distributed.global_state
  _wait_before_aborting()
  store = _Store(state.client, state.coordinator_address)
  group = Group(store, index, count, program=program)
  group.watch.start()
  _STATE["group"] = group
  return group


def current() -> Group:
  """The group that this process has joined; of one, if it has joined none."""
  return _STATE.get("group") or Group()


def _may_be_in_a_pod() -> bool:
  """Whether this machine has TPUs, to be used, and may not be the only one."""
  platforms = os.environ.get("JAX_PLATFORMS") or "tpu"
  if "tpu" not in platforms.split(","):
    return False
  if not (glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*")):
    return False
  names = os.environ.get("TPU_PROCESS_ADDRESSES") or os.environ.get(
    "TPU_WORKER_HOSTNAMES"
  )
  slices = int(os.environ.get("MEGASCALE_NUM_SLICES") or 1)
  # Where the variable is missing, jax asks the machine's metadata.
  return names is None or "," in names or slices > 1


def _give_up(came: threading.Event, told, program: str) -> None:
  """Ends the process where the others do not come: jax would abort it."""
  if came.wait(JOIN_S):
    return
  which = "" if told is None else f" of {told[1]}, at {told[0]}"
  line = (
    f"\n{program}: error: not all processes{which} have come within"
    f" {JOIN_S} s; start them all with the same address, and look into the"
    " others' logs\n"
  )
  with contextlib.suppress(OSError):
    os.write(2, line.encode())
  os._exit(1)


def _wait_before_aborting() -> None:
  """Makes abort() wait a few seconds.

  When process 0 has gone jax aborts all others from a thread of its own, with a
  stack trace. The watch needs a moment to end them in words. The handler is
  C's sleep itself: it is called with the signal's number, 6, as seconds.
  """
  import ctypes
  import signal

  with contextlib.suppress(OSError, AttributeError):
    libc = ctypes.CDLL(None)
    libc.signal(int(signal.SIGABRT), libc.sleep)


def _is_of_a_collective(why: str) -> bool:
  return "Gloo" in why or "collective" in why.lower()


class _Store:
  """The key-value store of jax's coordination service; see `watch.Store`."""

  def __init__(self, client: Any, address: str):
    self._client, (host, _, port) = client, address.rpartition(":")
    self._address = host.strip("[]"), int(port)

  def put(self, key: str, data: bytes, *, replace: bool = False) -> bool:
    try:
      self._client.key_value_set_bytes(f"specjax/{key}", data, replace)
    except RuntimeError as error:
      if "ALREADY_EXISTS" not in str(error):
        raise
      return False
    return True

  def under(self, prefix: str) -> dict[str, bytes]:
    prefix = f"specjax/{prefix}"
    found = self._client.key_value_dir_get_bytes(prefix)
    return {key.removeprefix(prefix): data for key, data in found}

  def is_gone(self) -> bool:
    try:
      socket.create_connection(self._address, timeout=2).close()
    except ConnectionError:
      return True
    except OSError:  # It may only be slow.
      return False
    return False


def own_stdout() -> None:
  """Leaves standard output to Python: C++ then writes to standard error.

  Gloo reports its connections on standard output, where rows may go.
  """
  if sys.stdout is None or sys.stdout is not sys.__stdout__:
    return
  with contextlib.suppress(OSError, ValueError):
    sys.stdout.flush()
    number = os.dup(1)
    os.dup2(2, 1)
    before = sys.stdout
    sys.stdout = open(
      number, "w", encoding=before.encoding, errors=before.errors
    )
