"""Refuses settings that contradict each other or do nothing (RULES.md 28)."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specjax.cli import command
from specjax.cli import settings as settings_lib

_LEAST = {
  "lookahead": 1,
  "ngram_min": 1,
  "temperature": 0,
  "top_k": 0,
  "min_p": 0,
  "max_new_tokens": 1,
  "slots": 1,
  "capacity": 2,
}
# What shapes a random draw, and so is idle at temperature 0.
_RANDOM = ("top_k", "top_p", "min_p", "seed")
# What a row may set for itself. Its lookahead stays below the flag's.
_BY_ROW = {*_RANDOM, "temperature", "max_new_tokens", "stop"}


def check(given: settings_lib.Given) -> None:
  """Refuses a command line before anything is read or loaded.

  Raises:
    UsageError: naming the flag, its value and the remedy.
  """
  s, base = given.settings, given.base
  _check_needed(given)
  _check_ranges(given)
  _check_idle(given, given.flags)
  # A flag may make a field of the config idle: that is what winning means. A
  # field idle within its own config is a mistake. What a config says about
  # files waits for the flags that name them, unless it names them itself.
  alone = dataclasses.replace(given, settings=base, flags=frozenset())
  config = {
    name
    for name in given.config
    if getattr(base, name) != settings_lib.FIELDS[name].default
  }
  if base.prompt is None:
    config -= {"slots", "output", "overwrite"}
    if base.prompts is None:
      config -= {"stream"}
  _check_idle(alone, config)
  # The rows of a file may bring temperatures: see check_rows.
  if s.prompts is None:
    _check_random(given, given.flags, "with")
    _check_random(alone, config, "with")


def check_rows(given: settings_lib.Given, rows: Sequence[Any]) -> None:
  """Refuses flags that no row of the prompt file would heed.

  Args:
    given: the settings.
    rows: the rows that can run (`jobs.prompts.Row`).

  Raises:
    UsageError: naming the flag, its value and the remedy.
  """
  s = given.settings
  if not rows:
    return
  if not any(row.settings.get("temperature", s.temperature) for row in rows):
    _check_random(given, given.flags, "where every row has")
  for name in sorted(given.flags & _BY_ROW):
    if all(name in row.settings for row in rows):
      raise command.UsageError(
        f"{named(given, name)} does nothing where every row has its own;"
        " leave it out"
      )
  if "chat" in given.flags and s.chat:
    if all(row.messages is not None for row in rows):
      raise command.UsageError(
        "--chat does nothing where every row has messages; leave it out"
      )


def named(given: settings_lib.Given, name: str) -> str:
  """A setting and its value, written the way it was given."""
  value = getattr(given.settings, name)
  if name in given.config - given.flags:
    return f"config.{name}={value!r}"
  return f"--{name}" + ("" if value is True else f"={value}")


def _check_needed(given: settings_lib.Given) -> None:
  s = given.settings
  if not s.model:
    raise command.UsageError(
      "--model is missing; name a folder, a hub id (org/name) or a gs:// path"
    )
  if (s.prompt is None) == (s.prompts is None):
    state = "missing" if s.prompt is None else "both given"
    raise command.UsageError(
      f"--prompt and --prompts are {state}; give a text or a file, one of them"
    )
  if s.proposer == "draft_model" and not s.draft_model:
    raise command.UsageError(
      f"{named(given, 'proposer')} needs --draft_model; name a small model"
      " with the same tokenizer"
    )


def _check_ranges(given: settings_lib.Given) -> None:
  s = given.settings
  for name, least in {**_LEAST, "ngram_max": s.ngram_min}.items():
    value = getattr(s, name)
    if value is not None and not least <= value < math.inf:
      raise command.UsageError(
        f"{named(given, name)} is out of range; give at least {least}"
      )
  if not 0 < s.top_p <= 1:
    raise command.UsageError(
      f"{named(given, 'top_p')} is out of range;"
      " give a number above 0, at most 1"
    )
  if s.min_p > 1:
    raise command.UsageError(
      f"{named(given, 'min_p')} is out of range; give a number from 0 to 1"
    )
  if s.compilation_cache == "":
    raise command.UsageError(
      f"{named(given, 'compilation_cache')} is empty; give a folder, or off"
    )
  if "" in s.stop:
    raise command.UsageError("--stop= is empty; give a text, or leave it out")


def _check_idle(given: settings_lib.Given, names: Iterable[str]) -> None:
  """Refuses those of `names` that the other settings leave without effect."""
  s = given.settings
  proposer = f"with {named(given, 'proposer')}"
  if "proposer" not in given.flags | given.config:
    proposer += ", the default"
  idle: Mapping[str, tuple[bool, str]] = {
    "lookahead": (s.proposer == "none", proposer),
    "verifier": (s.proposer == "none", proposer),
    "ngram_min": (s.proposer != "ngram", proposer),
    "ngram_max": (s.proposer != "ngram", proposer),
    "draft_model": (s.proposer != "draft_model", proposer),
    "stream": (s.prompt is None and s.stream, "with --prompts"),
    "slots": (s.prompts is None and s.slots > 1, "with a single --prompt"),
    "output": (s.prompts is None, "without --prompts"),
    "overwrite": (s.output is None and s.overwrite, "without --output"),
  }
  for name in sorted(names):
    is_idle, beside = idle.get(name, (False, ""))
    if is_idle:
      raise command.UsageError(
        f"{named(given, name)} does nothing {beside}; leave it out"
      )


def _check_random(
  given: settings_lib.Given, names: Iterable[str], how: str
) -> None:
  s = given.settings
  if s.temperature > 0:
    return
  for name in _RANDOM:
    # A filter switched off asks for what temperature 0 does anyway.
    is_off = getattr(s, name) == settings_lib.FIELDS[name].default
    if name in names and not is_off:
      raise command.UsageError(
        f"{named(given, name)} does nothing {how} temperature 0;"
        " give a temperature above 0, or leave it out"
      )
