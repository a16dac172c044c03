"""A table of settings becomes a command's flags, its help and its checks.

A command keeps its settings in a dataclass whose fields are made by `setting`.
Flags are parsed into an object of their own: absl's global flags hold those of
every library that was imported, and their errors span several lines.
"""

import dataclasses
import difflib
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from specjax.cli import command

# What --model names; errors say it where it is missing.
MODEL = "a folder, a hub id (org/name) or a gs:// path"
_HELP = {"--help", "-help", "--helpshort", "--helpfull", "-h"}


def setting(default: Any, kind: str, help: str, choices: Sequence[str] = ()):
  """A field with what a flag needs.

  Args:
    default: the value where neither flag nor config sets one.
    kind: "string", "integer", "number", "switch", "choice", "texts" (a
      string that may be given several times) or "rules" (a choice, or in a
      config a mapping).
    help: what it is, in words that follow its name.
    choices: the values of a "choice" or of "rules".
  """
  metadata = {"kind": kind, "help": help, "choices": tuple(choices)}
  return dataclasses.field(default=default, metadata=metadata)


def again(fields: Mapping[str, dataclasses.Field], name: str):
  """A setting of another command: the same kind, default and meaning."""
  field = fields[name]
  return dataclasses.field(default=field.default, metadata=field.metadata)


def fields_of(settings: type) -> Mapping[str, dataclasses.Field]:
  """A dataclass's fields by name."""
  return {field.name: field for field in dataclasses.fields(settings)}


def asks_for_help(argv: Sequence[str]) -> bool:
  """Whether a command line, program name first, has --help or its like."""
  return bool(_HELP & set(argv[1:]))


def define(
  fields: Mapping[str, dataclasses.Field], values: flags.FlagValues
) -> None:
  """Makes a flag of each field; without a default, to see what is given."""
  for name, field in fields.items():
    help = field.metadata["help"]
    match field.metadata["kind"]:
      case "string":
        flags.DEFINE_string(name, None, help, flag_values=values)
      case "integer":
        flags.DEFINE_integer(name, None, help, flag_values=values)
      case "number":
        flags.DEFINE_float(name, None, help, flag_values=values)
      case "switch":
        flags.DEFINE_bool(name, None, help, flag_values=values)
      case "texts":
        flags.DEFINE_multi_string(name, None, help, flag_values=values)
      case "choice" | "rules":
        choices = field.metadata["choices"]
        flags.DEFINE_enum(name, None, choices, help, flag_values=values)


def read(
  values: flags.FlagValues, argv: Sequence[str], *, instead: str
) -> dict[str, Any]:
  """Parses a command line; gives the values of the flags that are on it.

  Those of a flag that may be given several times are a tuple.

  Args:
    values: with the flags defined.
    argv: the command line, program name first.
    instead: what to do instead of giving a word that is no flag.

  Raises:
    UsageError: a flag is unknown or not of its type, or a word is no flag.
  """
  given, rest = read_all(values, argv)
  if rest:
    raise command.UsageError(f"{rest[0]!r} is no flag; {instead}")
  return given


def read_all(
  values: flags.FlagValues, argv: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
  """As `read`; also gives the words that are no flags, wherever they are.

  Raises:
    UsageError: a flag is unknown or not of its type.
  """
  values.set_gnu_getopt(True)
  try:
    rest = values(list(argv))
  except flags.UnrecognizedFlagError as error:
    message = last_line(error)
    if "Did you mean" not in message:  # absl's own hints are close spellings.
      message += hint(error.flagname, values, "--")
    raise command.UsageError(message) from None
  except flags.Error as error:
    raise command.UsageError(last_line(error)) from None
  given = {name: values[name].value for name in values if values[name].present}
  several = {n: tuple(v) for n, v in given.items() if isinstance(v, list)}
  return given | several, rest[1:]


def flag_help(fields: Iterable[dataclasses.Field]) -> list[str]:
  """Lines that say of each flag its default and what it is."""
  lines = []
  for field in fields:
    kind, choices = field.metadata["kind"], field.metadata["choices"]
    value = (
      "" if kind == "switch" else "=" + ("|".join(choices) or kind.upper())
    )
    default = "" if field.default in (None, (), False) else field.default
    lines.append(
      f"  --{field.name}{value}" + (f"  (default {default})" if default else "")
    )
    lines += textwrap.wrap(
      field.metadata["help"],
      width=76,
      initial_indent="      ",
      subsequent_indent="      ",
    )
  return lines


def listed(name: str, text: str | None, one: Callable[[str], Any]) -> tuple:
  """The parts of a flag's text, with commas between; of None there are none.

  Args:
    name: the flag's.
    text: its value.
    one: reads a part. What its ValueError says is the whole error.

  Raises:
    UsageError: a part is wrong, or there twice.
  """
  parts = [] if text is None else text.split(",")
  try:
    found = tuple(one(part.strip()) for part in parts)
  except ValueError as error:
    raise command.UsageError(str(error)) from None
  if any(value in found[:index] for index, value in enumerate(found)):
    raise command.UsageError(f"--{name}={text}: one is there twice; keep one")
  return found


def named(name: str, value: Any) -> str:
  """A setting and its value, written as a flag."""
  return f"--{name}" + ("" if value is True else f"={value}")


def check_needed(settings: Any, needed: Mapping[str, str]) -> None:
  """Refuses a command line that lacks something.

  Args:
    settings: the command's.
    needed: what each setting that has to be there names.

  Raises:
    UsageError: names the setting, and what to name with it.
  """
  for name, what in needed.items():
    value = getattr(settings, name)
    if not (value.strip() if isinstance(value, str) else value):
      raise command.UsageError(f"--{name} is missing; name {what}")


def check_filled(settings: Any, names: Iterable[str]) -> None:
  """Refuses settings that are given as nothing.

  Raises:
    UsageError: names the setting.
  """
  for name in names:
    if getattr(settings, name) == "":
      raise command.UsageError(f"--{name}= is empty; give a value")


def check_least(settings: Any, least: Mapping[str, float]) -> None:
  """Refuses numbers below their least, or that are none; None is unset.

  Raises:
    UsageError: names the setting, its value and the least one.
  """
  for name, bound in least.items():
    value = getattr(settings, name)
    if value is not None and not bound <= value < math.inf:
      raise command.UsageError(
        f"{named(name, value)} is out of range; give at least {bound}"
      )


def hint(name: str, known: Iterable[str], prefix: str = "") -> str:
  """A question that names what `name` is likely to stand for, or nothing."""
  close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
  return f" (did you mean {prefix}{close[0]}?)" if close else ""


def last_line(error: BaseException) -> str:
  """An error in one line: absl and Python put what matters last."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  return lines[-1] if lines else type(error).__name__
