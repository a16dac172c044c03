"""Values out of a GGUF file's metadata, checked; errors name the key.

A file is free to give a key any type: the writers of old files, and of files
made to do harm, do.
"""

import math
from collections.abc import Mapping
from typing import Any

Metadata = Mapping[str, Any]
_SHOWN = 60  # characters of a value that an error shows


def shown(value: Any) -> str:
  """A value as errors spell it: lists may have 100,000 entries."""
  if isinstance(value, list):
    value = value[:_SHOWN]
  spelled = repr(value)
  return spelled if len(spelled) <= _SHOWN else f"{spelled[: _SHOWN - 1]}…"


def whole(metadata: Metadata, key: str, default: int | None = None) -> int:
  """A positive whole number.

  Args:
    metadata: the file's.
    key: the key's full name.
    default: what an absent key means; without one it must be there.

  Raises:
    ValueError: it is absent or something else.
  """
  value = _single(metadata, key, default)
  if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
    raise ValueError(f"{key}={shown(value)} must be a positive whole number")
  return value


def number(metadata: Metadata, key: str, default: float | None = None) -> float:
  """A positive number; see `whole`."""
  value = _single(metadata, key, default)
  good = isinstance(value, (int, float)) and not isinstance(value, bool)
  if not good or not math.isfinite(value) or value <= 0:
    raise ValueError(f"{key}={shown(value)} must be a positive number")
  return value


def flag(metadata: Metadata, key: str, default: bool) -> bool:
  """A truth value; see `whole`."""
  value = metadata.get(key, default)
  if not isinstance(value, bool):
    raise ValueError(f"{key}={shown(value)} must be true or false")
  return value


def string(metadata: Metadata, key: str) -> str | None:
  """A text, or None where the key is absent; see `whole`."""
  value = metadata.get(key)
  if value is not None and not isinstance(value, str):
    raise ValueError(f"{key}={shown(value)} must be a text")
  return value


def array(metadata: Metadata, key: str, kind: type) -> list:
  """A list with entries of one type; see `whole`."""
  value = metadata.get(key)
  if value is None:
    raise ValueError(f"the key {key} is missing")
  if not isinstance(value, list):
    raise ValueError(f"{key}={shown(value)} must be a list")
  for entry in value:
    if not isinstance(entry, kind) or isinstance(entry, bool):
      what = {str: "texts", int: "whole numbers"}[kind]
      raise ValueError(
        f"{key} must be a list of {what}; it has the entry {shown(entry)}"
      )
  return value


def token_id(metadata: Metadata, key: str, size: int) -> int | None:
  """An id of a vocabulary of `size` tokens, or None; see `whole`."""
  value = metadata.get(key)
  if value is None:
    return None
  if isinstance(value, bool) or not isinstance(value, int):
    raise ValueError(f"{key}={shown(value)} must be a token id")
  if not 0 <= value < size:
    raise ValueError(f"{key}={value} is outside the vocabulary of {size}")
  return value


def _single(metadata: Metadata, key: str, default: Any) -> Any:
  value = metadata.get(key, default)
  if value is None:
    raise ValueError(f"the key {key} is missing")
  if isinstance(value, list):
    what = "head counts" if "head_count" in key else "values"
    raise ValueError(
      f"{key}={shown(value)}: per-layer {what} are not supported; only models "
      "whose layers are all alike are"
    )
  return value
