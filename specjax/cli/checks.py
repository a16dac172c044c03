"""Refuses settings that contradict each other or do nothing (RULES.md 28)."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specjax import shipped
from specjax.cli import command, table
from specjax.cli import settings as settings_lib
from specjax.engine import request as request_lib
from specjax.engine import sizes
from specjax.proposers import kinds
from specjax.sharding import rules, shape

_INT32 = 2**31 - 1
# name -> least, most: all that can be told without a model. They are those of
# the engine and the proposers, which say so only after jax has started.
_RANGES = {
  "lookahead": (1, _INT32),
  "siblings": (0, kinds.MOST_SIBLINGS),
  "ngram_min": (1, 64),
  "ngram_max": (1, 64),
  "temperature": (0, 1e30),
  "top_k": (0, _INT32),
  "min_p": (0, 1),
  "seed": (-(2**63), 2**64 - 1),
  "max_new_tokens": (1, math.inf),
  "slots": (1, _INT32),
  "capacity": (2, _INT32),
  "n": (1, 10_000),
  "num_shards": (1, _INT32),
  "num_processes": (1, _INT32),
  "process_id": (0, _INT32),
  "logprobs": (0, request_lib.MAX_LOGPROBS),
  "repetition_penalty": request_lib.RANGES["repetition_penalty"],
  "presence_penalty": request_lib.RANGES["presence_penalty"],
  "frequency_penalty": request_lib.RANGES["frequency_penalty"],
}
# What shapes a random draw, and so is idle at temperature 0.
_RANDOM = tuple(request_lib.RANDOM)
# What a row may set for itself. Its lookahead stays below the flag's.
_BY_ROW = {
  *_RANDOM,
  *request_lib.RANGES,
  "temperature",
  "max_new_tokens",
  "stop",
  "logprobs",
}


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
    config -= {"slots", "output", "overwrite", "resume", "logprobs"}
    if base.prompts is None:
      config -= {"stream"}
  _check_idle(alone, config)
  # The rows of a file may bring temperatures: see check_rows.
  if s.prompts is None:
    _check_random(given, given.flags, "with")
    _check_random(alone, config, "with")


def check_draft(flag: str, name: str | None) -> None:
  """Refuses what nothing that drafts can be called, before anything is loaded.

  Args:
    flag: with its value, as it was given.
    name: of a folder, of what comes with specjax, of a hub or a URL; or None.

  Raises:
    UsageError: names the flag and what there is.
  """
  if name is None:
    return
  from specjax.checkpoints import locate  # numpy and its like

  try:
    locate.find_here(name)
  except ValueError as error:
    raise command.UsageError(f"{flag}: {error}") from None
  except FileNotFoundError as error:
    close = table.hint(name, shipped.names())
    raise command.UsageError(
      f"{flag}: {error}{close}; name one of those, or a folder"
    ) from None


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
  return table.named(name, value)


def logit_bias(texts: Sequence[str]) -> dict[int, float]:
  """The biases of --logit_bias by token id.

  Raises:
    UsageError: naming the text and the remedy.
  """
  made: dict[int, float] = {}
  for text in texts:
    token, colon, value = text.partition(":")
    try:
      if not (colon and token.isascii() and token.isdecimal()):
        raise ValueError
      pair = int(token), float(value)
    except ValueError:
      raise command.UsageError(
        f"--logit_bias={text} is no bias; give ID:BIAS, as in 198:-100"
      ) from None
    if pair[0] in made:
      raise command.UsageError(
        f"--logit_bias gives token {pair[0]} twice; keep one"
      )
    made |= [pair]
  try:
    request_lib.SamplingParams(logit_bias=made)
  except ValueError as error:
    raise command.UsageError(f"--{error}") from None
  return made


def _check_needed(given: settings_lib.Given) -> None:
  s = given.settings
  table.check_needed(s, {"model": table.MODEL})
  if (s.prompt is None) == (s.prompts is None):
    state = "missing" if s.prompt is None else "both given"
    raise command.UsageError(
      f"--prompt and --prompts are {state}; give a text or a file, one of them"
    )
  if s.prompt == "" and not s.chat:
    raise command.UsageError(
      f"{named(given, 'prompt')} is empty; give a text to go on with"
    )
  if s.resume and s.overwrite:
    raise command.UsageError(
      f"{named(given, 'resume')} and {named(given, 'overwrite')} contradict"
      " each other: one goes on with an output, the other starts anew"
    )
  if s.stream and s.n > 1:
    raise command.UsageError(
      f"{named(given, 'stream')} shows one answer, not those of"
      f" {named(given, 'n')}; leave out one of the two"
    )
  kind = kinds.KINDS[s.proposer]
  if s.draft_model == "":
    raise command.UsageError("--draft_model= is empty; name a folder")
  if kind.reads and not kind.optional and s.draft_model is None:
    raise command.UsageError(
      f"{named(given, 'proposer')} needs --draft_model; name {kind.reads}"
    )
  said = _said(s.draft_model) if kind.reads else None
  # Any model may carry the modules of mtp.
  if said not in (None, s.proposer) and (s.proposer, said) != _CARRIED:
    raise command.UsageError(
      f"{named(given, 'draft_model')} is what --proposer={said} drafts with,"
      f" not {named(given, 'proposer')}; give --proposer={said}"
    )
  if s.proposer == "layer_skip" and s.draft_layers is None:
    raise command.UsageError(
      f"{named(given, 'proposer')} needs --draft_layers; give how many of the"
      " first layers draft, as 8, or which, as 0,1,5,29 (specjax-layers looks"
      " for the best)"
    )


_CARRIED = ("mtp", "draft_model")


def _said(name: str | None) -> str | None:
  """Which proposer drafts with a folder, if it is here and says so."""
  if name is None:
    return None
  folder = pathlib.Path(name).expanduser()
  if not folder.is_dir():
    folder = shipped.find(name)
  try:
    config = json.loads((folder / "config.json").read_bytes())
  except (OSError, ValueError, TypeError):
    return None  # whoever loads it says what is wrong
  return kinds.said(config) if isinstance(config, dict) else None


def _check_ranges(given: settings_lib.Given) -> None:
  s = given.settings
  for name, (least, most) in _RANGES.items():
    value = getattr(s, name)
    if value is not None and not least <= value <= most:
      bounds = f"give a number from {least} to {most}"
      if most in (_INT32, math.inf) and value < least:
        bounds = f"give at least {least}"
      raise command.UsageError(
        f"{named(given, name)} is out of range; {bounds}"
      )
  if s.draft_layers is not None:
    try:
      kinds.layers(s.draft_layers)
    except ValueError as error:
      raise command.UsageError(
        f"{named(given, 'draft_layers')}: {error}"
      ) from None
  if s.ngram_min > s.ngram_max:
    # Whoever gave one of them gave that one too large or too small.
    one, other, remedy = "ngram_min", "ngram_max", "lower it, or raise"
    if "ngram_min" not in given.flags | given.config:
      one, other, remedy = "ngram_max", "ngram_min", "raise it, or lower"
    is_above = "above" if one == "ngram_min" else "below"
    default = "" if other in given.flags | given.config else ", the default"
    raise command.UsageError(
      f"{named(given, one)} is {is_above} {named(given, other)}{default};"
      f" {remedy} --{other}"
    )
  if not 0 < s.top_p <= 1:
    raise command.UsageError(
      f"{named(given, 'top_p')} is out of range;"
      " give a number above 0, at most 1"
    )
  if s.max_memory is not None:
    try:
      sizes.parse(s.max_memory)
    except ValueError:
      raise command.UsageError(
        f"{named(given, 'max_memory')} is no size;"
        " give one such as 8GB, 8GiB or 500MB"
      ) from None
  _check_mesh(given)
  _check_shard(given)
  if s.compilation_cache == "":
    raise command.UsageError(
      f"{named(given, 'compilation_cache')} is empty; give a folder, or off"
    )
  logit_bias(s.logit_bias)
  if "" in s.stop:
    raise command.UsageError("--stop= is empty; give a text, or leave it out")


def _check_shard(given: settings_lib.Given) -> None:
  s = given.settings
  if (s.shard_index is None) != (s.num_shards is None):
    one, other = "shard_index", "num_shards"
    if s.shard_index is None:
      one, other = other, one
    raise command.UsageError(
      f"{named(given, one)} needs --{other} beside it; job i of n gets"
      " --shard_index=i --num_shards=n, with i from 0"
    )
  if s.num_shards is not None and not 0 <= s.shard_index < s.num_shards:
    raise command.UsageError(
      f"{named(given, 'shard_index')} is not in 0…{s.num_shards - 1}, of"
      f" {named(given, 'num_shards')}"
    )


def _check_mesh(given: settings_lib.Given) -> None:
  """Refuses what is wrong about a mesh before any device is looked at."""
  s = given.settings
  try:
    if s.mesh is not None:
      shape.parse(s.mesh)
    for strategy in (s.strategy, s.draft_strategy):
      if strategy is not None:
        rules.find(strategy)
  except ValueError as error:
    raise command.UsageError(str(error)) from None
  for name in ("strategy", "draft_strategy"):
    own = getattr(s, name)
    if s.cache_sharding is not None and isinstance(own, Mapping):
      if "caches" in own:
        raise command.UsageError(
          f"{named(given, 'cache_sharding')} and the {name}'s own caches"
          " contradict each other; leave out one of the two"
        )


def _check_idle(given: settings_lib.Given, names: Iterable[str]) -> None:
  """Refuses those of `names` that the other settings leave without effect."""
  s = given.settings
  proposer = f"with {named(given, 'proposer')}"
  if "proposer" not in given.flags | given.config:
    proposer += ", the default"
  reads = kinds.KINDS[s.proposer].reads
  idle: Mapping[str, tuple[bool, str]] = {
    "lookahead": (s.proposer == "none", proposer),
    "siblings": (not kinds.KINDS[s.proposer].ranks and s.siblings, proposer),
    "verifier": (s.proposer == "none", proposer),
    "ngram_min": (s.proposer != "ngram", proposer),
    "ngram_max": (s.proposer != "ngram", proposer),
    "draft_model": (reads is None, proposer),
    "draft_layers": (s.proposer != "layer_skip", proposer),
    "draft_weights": (reads is None, proposer),
    "strategy": (s.mesh is None, "without --mesh"),
    "draft_strategy": (
      s.mesh is None or s.proposer != "draft_model",
      "without --mesh" if s.mesh is None else proposer,
    ),
    "cache_sharding": (s.mesh is None, "without --mesh"),
    "pad_heads": (s.mesh is None and s.pad_heads, "without --mesh"),
    "stream": (s.prompt is None and s.stream, "with --prompts"),
    "logprobs": (s.prompts is None, "without --prompts"),
    "slots": (s.prompts is None and s.slots > 1, "with a single --prompt"),
    "output": (s.prompts is None, "without --prompts"),
    "shard_index": (s.prompts is None, "without --prompts"),
    "num_shards": (s.prompts is None, "without --prompts"),
    "overwrite": (s.output is None and s.overwrite, "without --output"),
    "resume": (s.output is None and s.resume, "without --output"),
  }
  for name in sorted(names):
    is_idle, beside = idle.get(name, (False, ""))
    if is_idle:
      fits = _said(s.draft_model) if name == "draft_model" else None
      instead = f", or give --proposer={fits}" if fits else ""
      raise command.UsageError(
        f"{named(given, name)} does nothing {beside}; leave it out{instead}"
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
