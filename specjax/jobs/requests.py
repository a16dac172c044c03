"""From a row of a prompt file to a request of the engine."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from specjax.engine import request as request_lib
from specjax.jobs import prompts

# What shapes a random draw, and so does nothing at temperature 0.
RANDOM = tuple(request_lib.RANDOM)
# Settings of a request; the others are of its sampling.
_OWN = ("max_new_tokens", "stop", "n", "logprobs")


class Encoder(Protocol):
  """What a job needs of a tokenizer (`specjax.text.Tokenizer` is one)."""

  def encode(self, text: str) -> list[int]:
    """The ids of a text."""

  def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The ids of a chat, up to where the answer begins."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
  """What holds for rows that do not say otherwise.

  Attributes:
    chat: whether a row's prompt is put through the chat template, as what the
      user says. Rows of messages always are.
    settings: values for names of `prompts.SETTINGS`. The engine's own defaults
      hold for names that are left out.
    lookahead: the engine's lookahead, the most a row may ask for; 0 without a
      proposer.
  """

  chat: bool = False
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  lookahead: int = 0


def build(
  row: prompts.Row, defaults: Defaults, encoder: Encoder
) -> request_lib.Request:
  """Makes the request of a row.

  Args:
    row: the row; what it sets wins over the defaults.
    defaults: the job's settings.
    encoder: the target's tokenizer.

  Returns:
    The request, under the row's id.

  Raises:
    ValueError: if a setting is out of its range, or would do nothing.
  """
  settings = {**defaults.settings, **row.settings}
  if settings.get("temperature", 0) == 0:
    for name in RANDOM:
      if name in row.settings:
        raise ValueError(
          f"{name} does nothing at temperature 0;"
          " give the row a temperature, or leave it out"
        )
      settings.pop(name, None)
  lookahead = row.settings.get("lookahead")
  if lookahead is not None and not 0 <= lookahead <= defaults.lookahead:
    if not defaults.lookahead:
      raise ValueError(
        "lookahead does nothing without a proposer; leave it out"
      )
    raise ValueError(
      f"lookahead={lookahead} is not in 0…{defaults.lookahead}, what the"
      " engine is compiled for; raise --lookahead"
    )
  own = {name: settings.pop(name) for name in _OWN if name in settings}
  settings.pop("lookahead", None)
  if "logit_bias" in settings:
    settings["logit_bias"] = _bias(settings["logit_bias"])
  return request_lib.Request(
    prompt=tuple(_encode(row, defaults.chat, encoder)),
    id=row.id,
    sampling=request_lib.SamplingParams(**settings),
    lookahead=lookahead,
    **own,
  )


def samples(row: prompts.Row, defaults: Defaults) -> int:
  """How many answers a row asks for; 1 at least, also where that is wrong."""
  settings = {**defaults.settings, **row.settings}
  if settings.get("temperature", 0) == 0:
    return 1
  n = settings.get("n", 1)
  return n if 1 <= n <= request_lib.MAX_SAMPLES else 1


def top_logprobs(rows: Iterable[prompts.Row], defaults: Defaults) -> int:
  """The most of the likeliest tokens that any row may ask for."""
  asked = [defaults.settings.get("logprobs")]
  asked += [row.settings.get("logprobs") for row in rows]
  most = request_lib.MAX_LOGPROBS  # Whoever wants more is refused, alone.
  return max((k for k in asked if k and 0 < k <= most), default=0)


def _bias(value: Mapping[Any, float]) -> dict[int, float]:
  """A bias by token id; JSON's names are texts."""
  made = {}
  for name, bias in value.items():
    text = str(name)
    if not (text.isascii() and text.isdecimal()):
      raise ValueError(
        f"logit_bias has the name {name!r}; give token ids, as in"
        ' {"198": -100}'
      )
    if int(text) in made:
      raise ValueError(f"logit_bias has id {int(text)} twice; keep one")
    made[int(text)] = bias
  return made


def _encode(row: prompts.Row, chat: bool, encoder: Encoder) -> list[int]:
  if row.messages is not None:
    return encoder.encode_chat(row.messages)
  if chat:
    return encoder.encode_chat([{"role": "user", "content": row.prompt}])
  return encoder.encode(row.prompt)
