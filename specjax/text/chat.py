"""Chat templates: a list of messages becomes the prompt's text.

The dialect of Jinja is the one that transformers documents ("Chat templates"),
so that a template made for it renders the same here.
"""

import datetime
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

# Bits of a whole number, items of a text or list, that a template may multiply
# up to.
_MOST = 1_000_000


def find_template(
  folder: pathlib.Path, config: Mapping[str, Any]
) -> str | None:
  """The chat template of a model folder, or None.

  Args:
    folder: the model folder; its chat_template.jinja comes first.
    config: the parsed tokenizer_config.json, whose `chat_template` may be a
      text, or a list of named ones of which the default counts.

  Raises:
    ValueError: the config's entry is neither, or the file is not UTF-8.
  """
  file = folder / "chat_template.jinja"
  if file.is_file():
    try:
      return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
      raise ValueError(f"{file}: not UTF-8 text ({error})") from None
  template = config.get("chat_template")
  if isinstance(template, list):
    named = [
      entry.get("template")
      for entry in template
      if isinstance(entry, Mapping) and entry.get("name") == "default"
    ]
    template = named[-1] if named else None
  if template is not None and not isinstance(template, str):
    raise ValueError(
      f"{folder / 'tokenizer_config.json'}: chat_template must be a text or a "
      f"list of named ones, found {type(template).__name__}"
    )
  return template


def render(
  template: str,
  messages: Sequence[Mapping[str, str]],
  special_tokens: Mapping[str, str],
) -> str:
  """The prompt's text, up to where the assistant's answer begins.

  Args:
    template: Jinja source.
    messages: [{"role": …, "content": …}, …] in order.
    special_tokens: role to text, such as {"bos_token": "<s>"}.

  Raises:
    ValueError: a message is malformed, or the template fails, in whatever
      way: it is malformed, refuses the conversation, divides by zero, …
  """
  _check(messages)
  import jinja2  # only chats pay for it

  try:
    return _compile(template).render(
      messages=[dict(message) for message in messages],
      tools=None,
      documents=None,
      add_generation_prompt=True,
      **special_tokens,
    )
  except Exception as error:  # a template is a program, and may do anything
    reason = " ".join(str(error).split())
    # Jinja's own messages are sentences; of others the type says more.
    if not isinstance(error, jinja2.TemplateError) or not reason:
      reason = f"{type(error).__name__}: {reason}".removesuffix(": ")
    raise ValueError(
      f"the chat template failed on the messages: {reason}"
    ) from None


def _check(messages: Sequence[Mapping[str, str]]) -> None:
  if isinstance(messages, (str, Mapping)) or not messages:
    raise ValueError(
      f"messages={messages!r} must be a non-empty list of "
      '{"role": …, "content": …}'
    )
  for i, message in enumerate(messages):
    for key in ("role", "content"):
      if not isinstance(message, Mapping) or not isinstance(
        message.get(key), str
      ):
        raise ValueError(
          f"messages[{i}]={message!r} must have the text fields "
          "'role' and 'content'"
        )


@functools.lru_cache(maxsize=8)
def _compile(template: str):
  """The compiled template, sandboxed: it comes with a downloaded model."""
  from jinja2 import ext

  environment = _sandbox()(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[ext.loopcontrols, _generation_tag()],
  )
  environment.filters["tojson"] = _to_json
  environment.globals["raise_exception"] = _raise_exception
  environment.globals["strftime_now"] = _strftime_now
  return environment.from_string(template)


def _sandbox():
  """Jinja's sandbox, which also refuses products that take for ever."""
  from jinja2 import sandbox

  class Sandbox(sandbox.ImmutableSandboxedEnvironment):
    """Looks at operands before they are multiplied."""

    # What is intercepted is not computed while compiling either.
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context, operator, left, right):
      if _size(operator, left, right) > _MOST:
        raise OverflowError(f"the result of {operator} is too large")
      return super().call_binop(context, operator, left, right)

  return Sandbox


def _size(operator: str, left: Any, right: Any) -> int:
  """About how large a product or power will be, in bits or items."""
  whole = isinstance(left, int), isinstance(right, int)
  if operator == "**":
    if not all(whole) or left.bit_length() < 2:  # -1, 0 and 1 stay small.
      return 0
    return left.bit_length() * right
  if all(whole):
    return left.bit_length() + right.bit_length()
  if any(whole):
    times, what = (left, right) if whole[0] else (right, left)
    return times * len(what) if hasattr(what, "__len__") else 0
  return 0


def _generation_tag():
  """A Jinja extension for {% generation %}, which marks text for training."""
  from jinja2 import ext, nodes

  class Generation(ext.Extension):
    """Renders the block's body as if the tags were not there."""

    tags = {"generation"}

    def parse(self, parser):
      line = next(parser.stream).lineno
      body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
      return nodes.Scope(body, lineno=line)

  return Generation


def _to_json(value: Any, ensure_ascii: bool = False, **options) -> str:
  # Jinja's own filter escapes HTML, which a prompt must not be.
  return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str):
  import jinja2

  raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
  return datetime.datetime.now().strftime(pattern)
