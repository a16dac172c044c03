"""Prompt files: one JSON object a line, read strictly, failing row by row.

A row holds `prompt` (text) or `messages` (a chat: objects of `role` and
`content`), and may carry an `id` and settings of its own, which win over the
job's. A row that cannot be read becomes a BadRow with its line number, so one
typing error does not cost the night's run.
"""

import dataclasses
import difflib
import json
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from specjax.jobs import urls

# Row settings and the types that JSON may give them.
SETTINGS: Mapping[str, tuple[type, ...]] = {
  "temperature": (int, float),
  "top_k": (int,),
  "top_p": (int, float),
  "min_p": (int, float),
  "seed": (int,),
  "max_new_tokens": (int,),
  "stop": (str, list),
  "lookahead": (int,),
  "repetition_penalty": (int, float),
  "presence_penalty": (int, float),
  "frequency_penalty": (int, float),
  "logit_bias": (dict,),
  "n": (int,),
  "logprobs": (int,),
}
FIELDS = ("prompt", "messages", "id", *SETTINGS)

_NAMES = {
  str: "a string",
  int: "a whole number",
  float: "a number",
  list: "a list",
  dict: "an object",
  bool: "true or false",
  type(None): "null",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """A prompt to run.

  Attributes:
    line: its line in the file, from 1.
    id: the row's own id as text, else its line number.
    prompt: the text to continue; None where messages are given.
    messages: the chat to answer; None where a prompt is given.
    settings: what the row itself sets, of SETTINGS.
    named: whether the row brought its id.
  """

  line: int
  id: str
  prompt: str | None
  messages: tuple[Mapping[str, str], ...] | None
  settings: Mapping[str, Any]
  named: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadRow:
  """A row that cannot run.

  Attributes:
    line: its line in the file, from 1.
    id: its id where that could be read, else its line number.
    error: one line that names the fault and the remedy.
  """

  line: int
  id: str
  error: str


def read(
  path: str | pathlib.Path, *, digest: Any = None
) -> Iterator[Row | BadRow]:
  """Reads a prompt file, one JSON object a line; empty lines are skipped.

  Args:
    path: a file of UTF-8 text, or a URL of fsspec's.
    digest: of hashlib's; gets all bytes that are read, or None.

  Yields:
    A Row or a BadRow for each line, in order.

  Raises:
    OSError, ImportError, ValueError: if the file cannot be read.
  """
  seen: dict[str, int] = {}
  with urls.reading(path) as file:
    for line, data in enumerate(file, start=1):
      if digest is not None:
        digest.update(data)
      if line == 1:
        data = data.removeprefix(b"\xef\xbb\xbf")  # an editor's UTF-8 mark
      if not data.strip():
        continue
      row = parse(data, line)
      if isinstance(row, BadRow):
        yield row  # It never runs, so its id stays free.
        continue
      if row.id in seen and not row.named:
        # Somebody else's id happens to be this line's number.
        row = dataclasses.replace(row, id=f"line {line}")
      first = seen.setdefault(row.id, line)
      if first != line:
        error = f"id {row.id!r} is taken by line {first}; give each row its own"
        row = BadRow(line=line, id=row.id, error=error)
      yield row


def parse(data: bytes, line: int) -> Row | BadRow:
  """Reads one line of a prompt file.

  Args:
    data: the line's bytes.
    line: its number, from 1.

  Returns:
    The row, or why it is none.
  """
  id = str(line)
  try:
    fields = _object(data)
    if "id" in fields:
      id = _id(fields["id"])
    return _row(fields, line, id)
  except ValueError as error:
    return BadRow(line=line, id=id, error=str(error))


def _object(data: bytes) -> dict[str, Any]:
  try:
    text = data.decode("utf-8")
  except UnicodeDecodeError as error:
    raise ValueError(
      f"not UTF-8: byte {data[error.start]:#04x} at column {error.start + 1};"
      " save the file as UTF-8"
    ) from None
  try:
    fields = json.loads(
      text,
      object_pairs_hook=_once,
      parse_constant=_no_constant,
      parse_int=_integer,
    )
  except json.JSONDecodeError as error:
    raise ValueError(
      f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno};"
      " write one JSON object a line"
    ) from None
  except RecursionError:
    raise ValueError("not usable JSON: nested too deeply") from None
  if not isinstance(fields, dict):
    raise ValueError(
      f"the line is {_NAMES[type(fields)]}; write a JSON object,"
      ' {"prompt": "…"}'
    )
  return fields


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  fields = dict(pairs)
  if len(fields) != len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f"{twice!r} is given twice; keep one")
  return fields


def _integer(digits: str) -> int:
  if len(digits) > 100:
    raise ValueError(f"a number of {len(digits)} digits; give a shorter one")
  return int(digits)


def _no_constant(name: str):
  raise ValueError(f"{name} is not a JSON value; write a number")


def _id(value: Any) -> str:
  if isinstance(value, bool) or not isinstance(value, (str, int)):
    raise ValueError(_mismatch("id", value, (str, int)))
  return _text("id", str(value))


def _row(fields: dict[str, Any], line: int, id: str) -> Row:
  unknown = [name for name in fields if name not in FIELDS]
  if unknown:
    close = difflib.get_close_matches(unknown[0], FIELDS, n=1, cutoff=0.7)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ValueError(
      f"unknown field {unknown[0]!r}{hint}; a row may have {', '.join(FIELDS)}"
    )
  if ("prompt" in fields) == ("messages" in fields):
    both = "both" if "prompt" in fields else "neither"
    raise ValueError(f"{both} of prompt and messages given; give one of them")
  prompt = messages = None
  if "prompt" in fields:
    prompt = _text("prompt", fields["prompt"])
  else:
    messages = _messages(fields["messages"])
  return Row(
    line=line,
    id=id,
    prompt=prompt,
    messages=messages,
    settings={
      name: _setting(name, fields[name]) for name in SETTINGS if name in fields
    },
    named="id" in fields,
  )


def _messages(value: Any) -> tuple[Mapping[str, str], ...]:
  if not isinstance(value, list) or not value:
    raise ValueError(
      'messages must be a list of {"role": "user", "content": "…"}, one or more'
    )
  messages = []
  for index, message in enumerate(value):
    name = f"messages[{index}]"
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
      raise ValueError(f"{name} must be an object of role and content alone")
    messages.append(
      {key: _text(f"{name}.{key}", part) for key, part in message.items()}
    )
  return tuple(messages)


def _setting(name: str, value: Any) -> Any:
  kinds = SETTINGS[name]
  if isinstance(value, bool) or not isinstance(value, kinds):
    raise ValueError(_mismatch(name, value, kinds))
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(f"{name} is {value}; give a finite number")
  if name == "stop":
    stops = [value] if isinstance(value, str) else value
    return tuple(_text("stop", stop) for stop in stops)
  return value


def _text(name: str, value: Any) -> str:
  if not isinstance(value, str):
    raise ValueError(_mismatch(name, value, (str,)))
  try:
    value.encode("utf-8")
  except UnicodeEncodeError:
    raise ValueError(
      f"{name} holds half of a surrogate pair, which is no text;"
      " write the character itself"
    ) from None
  return value


def _mismatch(name: str, value: Any, kinds: tuple[type, ...]) -> str:
  wanted = " or ".join(_NAMES[kind] for kind in kinds if kind is not float)
  if float in kinds:
    wanted = _NAMES[float]
  return f"{name} must be {wanted}, not {_NAMES[type(value)]}"
