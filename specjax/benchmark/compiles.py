"""Counts the programs that jax compiles."""

import contextlib
from collections.abc import Iterator

import jax.monitoring

# Every compilation of any program ends in this event.
_COMPILED = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
  """A list that fills with the names of what is compiled within."""
  found: list[str] = []

  def listen(event: str, seconds: float, **about) -> None:
    del seconds
    if event == _COMPILED:
      found.append(str(about.get("fun_name", event)))

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield found
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
