"""Where specjax keeps what it can make again: fetched models, programs."""

import os
import pathlib


def folder() -> pathlib.Path:
  """$SPECJAX_CACHE, else $XDG_CACHE_HOME/specjax, else ~/.cache/specjax.

  Raises:
    RuntimeError: nobody knows the user's home.
  """
  if chosen := os.environ.get("SPECJAX_CACHE"):
    return pathlib.Path(chosen).expanduser()
  base = os.environ.get("XDG_CACHE_HOME", "")
  # A relative path there is to be ignored (XDG base directory specification).
  if os.path.isabs(base):
    return pathlib.Path(base) / "specjax"
  return pathlib.Path.home() / ".cache" / "specjax"
