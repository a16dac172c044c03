"""Prompts that the target makes up itself (Magpie: Xu et al. 2024).

A chat model that is given its template up to where a user's turn begins goes on
with what users say. So its own training distribution is asked for at
temperature 1, and no file of prompts is needed. Given the first words of a turn
as well, it says what users ask who begin so: kinds that it rarely thinks of.
"""

import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from specjax.engine import request as request_lib
from specjax.jobs import prompts
from specjax.training import prompt_sources

FILE = "self_prompts.jsonl"
TEMPERATURE = 1.0
# Beginnings that no tokenizer merges with what is before them in one way.
_PROBES = ("A", "7", "(")
# So often more is asked for than is wanted, if the target repeats itself.
_PATIENCE = 4


class Tokenizer(Protocol):
  """What is needed of one; `text.Tokenizer` is one."""

  eos_ids: Sequence[int]

  def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The ids of a chat."""

  def encode_more(self, text: str) -> list[int]:
    """The ids of a text that follows others."""

  def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
    """The text of ids, without control tokens or with them."""


class Journal:
  """What has been asked for, a line each, so that a kill costs little.

  Attributes:
    texts: by number, what the target said; None where that is no prompt.
  """

  def __init__(self, folder: str | os.PathLike):
    """Reads what is there, without a line that is half-written."""
    self._path = pathlib.Path(folder) / FILE
    self.texts: dict[int, str | None] = {}
    data = self._path.read_bytes() if self._path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    for line, text in enumerate(whole.splitlines(), start=1):
      try:
        fields = json.loads(text)
        self.texts[fields["number"]] = fields["prompt"]
      except (ValueError, KeyError, TypeError):
        raise ValueError(
          f"{self._path}, line {line}: not what was written; remove the line"
        ) from None
    if len(whole) < len(data):
      os.truncate(self._path, len(whole))

  def add(self, number: int, text: str | None) -> None:
    """Writes one down."""
    self.texts[number] = text
    line = json.dumps({"number": number, "prompt": text}, ensure_ascii=False)
    with open(self._path, "ab") as file:
      file.write((line + "\n").encode())


def opening(tokenizer: Tokenizer) -> tuple[int, ...]:
  """The chat template's ids up to where a user's first turn begins.

  Raises:
    ValueError: there is no template, or it says nothing before that.
  """
  chats = [
    tokenizer.encode_chat([{"role": "user", "content": text}])
    for text in _PROBES
  ]
  same = 0
  while all(ids[same : same + 1] == chats[0][same : same + 1] for ids in chats):
    same += 1
    if same >= min(map(len, chats)):
      break
  if not same:
    raise ValueError(
      "the chat template has nothing before what a user says, so the target"
      " cannot be asked for prompts; give --prompts"
    )
  return tuple(chats[0][:same])


def check(
  tokenizer: Tokenizer, first_words: Iterable[str], capacity: int | None
) -> None:
  """Refuses what the target cannot be asked to go on with.

  Args:
    tokenizer: the target's.
    first_words: see `ask`.
    capacity: tokens that there is room for, where that is known.

  Raises:
    ValueError: names the first words and what is wrong with them; or see
      `opening`.
  """
  start = opening(tokenizer)
  for words in first_words:
    ids = tokenizer.encode_more(words)
    if tokenizer.decode(ids) != tokenizer.decode(ids, skip_special=False):
      raise ValueError(
        f"--first_words={words!r} has a control token, which no prompt can"
        " have; leave it out"
      )
    size = len(start) + len(ids)
    if capacity is not None and size >= capacity:
      raise ValueError(
        f"--first_words={words[:40]!r}… comes to {size} tokens with the chat"
        f" template's, and the capacity is {capacity}; shorten it, or raise"
        " --capacity"
      )


def ask(
  engine: Any,
  tokenizer: Tokenizer,
  journal: Journal,
  *,
  count: int,
  max_new_tokens: int,
  first_words: Sequence[str] = ("",),
  held_out: Iterable[prompts.Row] = (),
  stop: Callable[[], bool],
  tell: Callable[[int], None],
) -> list[prompts.Row]:
  """Has the target make up prompts.

  Which ones depends on the engine's seed, `count` and `first_words` alone: they
  are numbered, and kept in the order of their numbers, whoever is first.

  Args:
    engine: runs requests.
    tokenizer: the target's.
    journal: of what an earlier run has asked for.
    count: how many are wanted, all different.
    max_new_tokens: longer ones are dropped, of what it says itself.
    first_words: how prompts begin, in turn; "" is as the target likes.
    held_out: prompts that must not be among them.
    stop: whether to end early.
    tell: called with how many there are, after each that was asked for.

  Returns:
    The prompts, ids "self:NUMBER"; fewer where the target repeats itself, or
    `stop` said so.
  """
  start, stops = opening(tokenizer), frozenset(tokenizer.eos_ids)
  begun = [tuple(tokenizer.encode_more(text)) for text in first_words]
  held_out = list(held_out)
  asked = 0
  while True:
    kept = _distinct(journal.texts, asked, held_out)
    missing = count - len(kept)
    if missing <= 0 or stop() or asked >= _PATIENCE * count:
      return kept[:count]
    numbers = range(asked, asked + missing)
    asked += missing
    todo = [number for number in numbers if number not in journal.texts]
    events = engine.run(
      request_lib.Request(
        prompt=start + begun[number % len(begun)],
        id=f"self:{number}",
        sampling=request_lib.SamplingParams(temperature=TEMPERATURE),
        max_new_tokens=max_new_tokens,
      )
      for number in todo
      if not stop()
    )
    try:
      for event in events:
        if isinstance(event, request_lib.Completion):
          number, text = int(event.id.partition(":")[2]), None
          if event.token_ids and event.token_ids[-1] in stops:
            said = begun[number % len(begun)] + event.token_ids[:-1]
            text = tokenizer.decode(said).strip() or None
          if event.error is not None:
            raise ValueError(f"the target cannot be asked: {event.error}")
          journal.add(number, text)
          tell(sum(said is not None for said in journal.texts.values()))
        if stop():
          break
    finally:
      events.close()


def _distinct(texts, asked: int, held_out) -> list[prompts.Row]:
  rows = [
    prompts.Row(
      line=number + 1,
      id=f"self:{number}",
      prompt=None,
      messages=({"role": "user", "content": texts[number]},),
      settings={},
    )
    for number in range(asked)
    if texts.get(number)
  ]
  return prompt_sources.distinct(prompt_sources.without(rows, held_out))
