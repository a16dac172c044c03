"""The settings of specjax-distill-data, and which of them go together."""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.cli import command, table
from specjax.cli import settings as settings_lib
from specjax.jobs import urls

PROPOSERS = ("none", "ngram")
_as_generate = functools.partial(table.again, settings_lib.FIELDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Every setting by the name of its flag; `help` says what each one is."""

  model: str | None = table.setting(
    None,
    "string",
    "the target, which answers: a folder, a hub id (org/name) or a gs:// path",
  )
  prompts: tuple[str, ...] = table.setting(
    (),
    "texts",
    "prompts: a .jsonl as specjax-generate takes it, or a text file or a folder"
    " of them, cut into pieces to be continued; may be given several times",
  )
  self_prompts: int = table.setting(
    0,
    "integer",
    "have the target make up so many prompts itself: it goes on with its chat"
    " template where a user would write, at temperature 1; all different",
  )
  first_words: tuple[str, ...] = table.setting(
    (),
    "texts",
    "how the prompts of --self_prompts begin, in turn, as 'Write a Python"
    " function'; may be given several times, and '' is as the target likes",
  )
  output: str | None = table.setting(
    None, "string", "the folder for the rows; made if it is not there"
  )
  temperatures: tuple[float, ...] = table.setting(
    "0,1",
    "string",
    "each prompt is answered at each of these; one that brings its own"
    " temperature, at that alone",
  )
  samples: int = table.setting(
    1, "integer", "answers at each temperature above 0; at 0 there is one"
  )
  max_new_tokens: int = table.setting(
    256,
    "integer",
    "the longest answer, in tokens, and the most that the target itself says of"
    " a prompt: one that has no end by then is dropped",
  )
  chat: bool = table.setting(
    False,
    "switch",
    "put the prompts of --prompts through the model's chat template",
  )
  chunk_chars: int = table.setting(
    400, "integer", "text is cut into prompts of at most so many characters"
  )
  max_prompts: int | None = table.setting(
    None,
    "integer",
    "so many of the prompts of --prompts, drawn by the seed; all if not given",
  )
  exclude: str | None = table.setting(
    None,
    "string",
    "a .jsonl of held-out prompts: what says the same, but for case, white"
    " space and punctuation, is not answered",
  )
  hidden: tuple[int, ...] = table.setting(
    None,
    "string",
    "also store the target's hidden states of every token, after these layers"
    " with commas between: 0 is the embedding, the last is before the final"
    " norm. 2 bytes x layers x width a token",
  )
  proposer: str = table.setting(
    "none",
    "choice",
    "who drafts, for speed alone; the rows are of the same law",
    PROPOSERS,
  )
  lookahead: int = _as_generate("lookahead")
  slots: int = table.setting(
    16,
    "integer",
    "answers that are made at once; on 2 CPU cores 8, 16 and 32 were equally"
    " fast",
  )
  capacity: int | None = _as_generate("capacity")
  dtype: str = _as_generate("dtype")
  seed: int = table.setting(
    0, "integer", "the same seed gives the same rows, in whatever order"
  )
  max_memory: str | None = _as_generate("max_memory")
  compilation_cache: str | None = _as_generate("compilation_cache")
  overwrite: bool = table.setting(
    False, "switch", "start anew in a folder that holds rows"
  )
  resume: bool = table.setting(
    False, "switch", "go on with the rows that the folder holds"
  )


FIELDS = table.fields_of(Settings)
# Least values; all may be given in whatever order.
_LEAST = {
  "self_prompts": 0,
  "samples": 1,
  "max_new_tokens": 1,
  "chunk_chars": 16,
  "max_prompts": 1,
  "lookahead": 1,
  "slots": 1,
  "capacity": 2,
  "seed": 0,
}


def parse(argv: Sequence[str]) -> Settings | None:
  """Reads a command line.

  Args:
    argv: the command line, program name first.

  Returns:
    What it and its --config set, with lists taken apart; None where it asks
    for help.

  Raises:
    UsageError: names the flag, its value and the fix.
  """
  if table.asks_for_help(argv):
    return None
  given, config = settings_lib.read(
    FIELDS, argv, instead="prompts go in --prompts"
  )
  s = _taken_apart(Settings(**{**config, **given}))
  _check(s)
  idle = _idle(s)
  # A flag may make a field of the config idle, that is what winning means; or
  # give it what it needs.
  alone = _idle(_taken_apart(Settings(**config))).keys() & idle.keys()
  for origin, names, wrong in (
    ("--", given, idle.keys()),
    ("config.", config, alone),
  ):
    for name in idle:
      if name in names and name in wrong:
        raise command.UsageError(
          f"{origin}{name}={names[name]} does nothing {idle[name]}; leave it"
          " out"
        )
  return s


def _taken_apart(s: Settings) -> Settings:
  """With numbers for the texts that list some."""
  return dataclasses.replace(
    s,
    temperatures=_numbers(
      "temperatures", s.temperatures, float, "numbers from 0 on, as in 0,0.7,1"
    ),
    hidden=_numbers("hidden", s.hidden, int, "layers' numbers, as in 15,30"),
  )


def _numbers(name: str, text: str, kind: type, wanted: str) -> tuple:
  def one(part: str):
    with contextlib.suppress(ValueError):
      if 0 <= (number := kind(part)) < math.inf:
        return number
    raise ValueError(f"--{name}={text}: give {wanted}, with commas between")

  return table.listed(name, text, one)


def _check(s: Settings) -> None:
  """Refuses what cannot be."""
  needed = {"model": table.MODEL, "output": "the folder to write"}
  table.check_needed(s, needed)
  if urls.is_url(s.output):
    raise command.UsageError(
      f"--output={s.output} is a URL; name a folder of this machine, and copy"
      " it when it is done"
    )
  table.check_least(s, _LEAST)
  if not s.prompts and not s.self_prompts:
    raise command.UsageError(
      "there are no prompts; name a file in --prompts, or give --self_prompts"
    )
  if s.resume and s.overwrite:
    raise command.UsageError(
      "--resume goes on and --overwrite starts anew; keep one"
    )
  if s.hidden and s.proposer != "none":
    raise command.UsageError(
      f"--hidden needs plain decoding; leave out --proposer={s.proposer}"
    )
  table.check_filled(s, ("exclude", "compilation_cache", "max_memory"))
  for words in s.first_words:
    try:
      words.encode()
    except UnicodeEncodeError:
      raise command.UsageError(
        f"--first_words={words!a} is no UTF-8 text; write it in UTF-8"
      ) from None


def _idle(s: Settings) -> Mapping[str, str]:
  """Settings that the others leave without effect, and why."""
  idle: dict[str, Any] = {}
  if s.proposer == "none":
    idle["lookahead"] = "without --proposer=ngram"
  if not any(s.temperatures):
    idle["samples"] = "at temperature 0"
  if not s.self_prompts:
    idle["first_words"] = "without --self_prompts"
  if not s.prompts:
    idle |= dict.fromkeys(("chat", "max_prompts"), "without --prompts")
  if all(
    name.endswith(".jsonl") and not os.path.isdir(name) for name in s.prompts
  ):
    idle["chunk_chars"] = "without text in --prompts"
  return idle
