"""Reading single settings of a config.json, each refused by its name."""

from collections.abc import Collection, Mapping
from typing import Any


def number(config: Mapping[str, Any], key: str, kind: type, default=None):
  """A positive number.

  Args:
    config: the parsed JSON object.
    key: of the setting; absent and null mean `default`.
    kind: int or float.
    default: None where the setting must be there.

  Raises:
    ValueError: it is missing or no such number.
  """
  value = config.get(key)
  value = default if value is None else value
  whole = kind is int and isinstance(value, float) and value.is_integer()
  good = isinstance(value, (int, kind)) and not isinstance(value, bool)
  if (good or whole) and 0 < value < 2**62:
    return kind(value)
  raise ValueError(
    f"config.json: {key} is {value!r}; it must be a positive "
    f"{'whole number' if kind is int else 'number'}"
  )


def optional(config: Mapping[str, Any], key: str, kind: type, default):
  """The same where null means that the model goes without: None."""
  if config.get(key, default) is None:
    return None
  return number(config, key, kind, default)


def flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
  """True or false; absent and null mean `default`.

  Raises:
    ValueError: it is neither.
  """
  value = config.get(key)
  value = default if value is None else value
  if not isinstance(value, bool):
    raise ValueError(f"config.json: {key} is {value!r}; give true or false")
  return value


def mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
  """A JSON object; absent and null mean an empty one.

  Raises:
    ValueError: it is no object.
  """
  value = config.get(key)
  value = {} if value is None else value
  if not isinstance(value, Mapping):
    raise ValueError(f"config.json: {key} is {value!r}; it must be an object")
  return value


def refuse_unknown(
  config: Mapping[str, Any],
  known: Collection[str],
  required: Mapping[str, tuple],
) -> None:
  """Refuses any key that could change the result unseen.

  Args:
    config: the parsed JSON object.
    known: keys that are read, or change nothing.
    required: key -> the only values allowed.

  Raises:
    ValueError: names the key.
  """
  for key, allowed in required.items():
    if key in config and config[key] not in allowed:
      raise ValueError(
        f"config.json: {key} is {config[key]!r}, which would change the "
        f"result; supported: {' or '.join(map(repr, allowed))}"
      )
  unknown = sorted(set(config) - set(known) - set(required))
  if unknown:
    raise ValueError(
      f"config.json: unknown settings {', '.join(unknown)}; each could change "
      "the result. Remove them from config.json if they do not"
    )
