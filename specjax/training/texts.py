"""Text files, folders of them and JSON lines, as token ids of a target."""

import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from specjax import text
from specjax.training.data import Corpus, begins, check_vocabulary

_JSON = (".jsonl", ".ndjson")
# What of a folder is read; a file that is named may end in anything.
_ENDINGS = (".txt", ".md", ".rst", *_JSON)


def files(path: str | os.PathLike) -> list[pathlib.Path]:
  """The files that a name stands for, in order.

  Raises:
    FileNotFoundError: it is neither a file nor a folder with texts in it.
  """
  path = pathlib.Path(path)
  if path.is_file():
    return [path]
  if not path.is_dir():
    raise FileNotFoundError(f"{path}: no such file or folder")
  found = sorted(p for p in path.rglob("*") if p.suffix in _ENDINGS)
  found = [p for p in found if p.is_file()]
  if not found:
    raise FileNotFoundError(
      f"{path}: no text in it; it needs files that end in "
      + ", ".join(_ENDINGS)
    )
  return found


def corpus(
  path: str | os.PathLike,
  tokenizer: text.Tokenizer,
  *,
  vocab_size: int,
  pairs: int | None = None,
) -> Corpus:
  """Texts as token ids, the end of each marked as a model marks it (EOS).

  A file is one text; of JSON lines each is one, as {"text": …}, as {"prompt":
  …, "answer": …}, or as {"messages": […]} whose last one is the answer. Of the
  last two only the answers are to be predicted, unless asked for.

  Args:
    path: a file or a folder.
    tokenizer: the target's.
    vocab_size: the target's V.
    pairs: for a target with an encoder, the most tokens that a prompt or an
      answer may have. Every line is then a pair: {"prompt": …, "answer": …}.

  Raises:
    FileNotFoundError: there are no files.
    ValueError: a file is no UTF-8, a line is none of these, or no pair where
      one is needed, or there is no text in all of them; names the file, the
      line and the field.
  """
  tokens, answers = [], []
  end = tokenizer.eos_ids[:1]
  for file in files(path):
    for ids, answer in _texts(file, tokenizer, pairs):
      if ids and ids[-1] not in tokenizer.eos_ids:
        ids = [*ids, *end]
      if len(ids) > 1:
        tokens.append(np.asarray(ids, np.int32))
        answers.append(answer)
  if not tokens:
    raise ValueError(f"{path}: no text in it; give files that hold some")
  made = Corpus(
    tokens=np.concatenate(tokens),
    starts=begins([len(ids) for ids in tokens]),
    answer=np.asarray(answers, np.int32),
    name=str(path),
    is_pairs=pairs is not None,
  )
  check_vocabulary(made, vocab_size)
  return made


def read(file: pathlib.Path) -> str:
  """The content of a text file.

  Raises:
    ValueError: it is no UTF-8; names the file and the byte.
  """
  try:
    return file.read_text(encoding="utf-8-sig")
  except UnicodeDecodeError as error:
    raise ValueError(
      f"{file}: byte {error.start} is no UTF-8; convert it, or leave it out"
    ) from None


def json_lines(file: pathlib.Path) -> Iterator[tuple[str, Any]]:
  """(what to call it, content) of each line that is not blank.

  Lines end at line feeds alone: JSON may hold Unicode's other ends as they are.

  Raises:
    ValueError: a line is no JSON, or the file no UTF-8; names both.
  """
  for number, line in enumerate(read(file).split("\n"), start=1):
    if not line.strip():
      continue
    where = f"{file}, line {number}"
    try:
      row = json.loads(line)
      if "\\u" in line:  # Only so can half a character be written.
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
      raise ValueError(
        f"{where}: it has half a surrogate pair, which is no character; leave"
        " the line out"
      ) from None
    except json.JSONDecodeError as error:
      raise ValueError(
        f"{where}: it is no JSON from character {error.pos + 1} on"
        f" ({error.msg}); mend it, or leave it out"
      ) from None
    except (ValueError, RecursionError) as error:
      raise ValueError(f"{where}: {error}") from None
    yield where, row


def _texts(
  file: pathlib.Path, tokenizer: text.Tokenizer, pairs: int | None
) -> Iterator[tuple[Sequence[int], int]]:
  """(ids, index of the answer's first) of each text of a file."""
  if file.suffix not in _JSON:
    content = read(file)
    if pairs is not None:
      raise ValueError(
        f"{file}: it is a text, and an encoder-decoder learns pairs; give a"
        ' .jsonl of lines such as {"prompt": "…", "answer": "…"}'
      )
    if content.strip():
      yield tokenizer.encode(content), 0
    return
  for where, row in json_lines(file):
    try:
      if pairs is None:
        yield _of_json(row, tokenizer)
      else:
        yield _pair(row, tokenizer, pairs)
    except (ValueError, RecursionError) as error:
      raise ValueError(f"{where}: {error}") from None


def _of_json(row: Any, tokenizer: text.Tokenizer) -> tuple[Sequence[int], int]:
  match row:
    case {"text": str(content)}:
      return tokenizer.encode(content), 0
    case {"prompt": str(prompt), "answer": str(answer)}:
      ids = tokenizer.encode(prompt)
    case {"messages": [*before, {"role": "assistant", "content": str(answer)}]}:
      ids = tokenizer.encode_chat(before)
    case _:
      keys = f"the keys {list(row)}" if isinstance(row, dict) else "no object"
      raise ValueError(
        f"it has {keys}; give text, prompt and answer, or messages of which"
        " the last is the assistant's"
      )
  return [*ids, *tokenizer.encode_more(answer)], len(ids)


def _pair(
  row: Any, tokenizer: text.Tokenizer, most: int
) -> tuple[Sequence[int], int]:
  """A source and its output, as `_of_json` gives a prompt and its answer."""
  if not isinstance(row, dict):
    raise ValueError("it is no object; give one with prompt and answer")
  ids = {}
  for name in ("prompt", "answer"):
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
      state = f"is {value!r}" if name in row else "is missing"
      raise ValueError(
        f"{name} {state}; an encoder-decoder learns pairs: give a text that is"
        " not empty"
      )
    encode = tokenizer.encode if name == "prompt" else tokenizer.encode_more
    ids[name] = encode(value)
    length = len(ids[name]) + (name == "answer")  # Its end is a token, too.
    if length > most:
      raise ValueError(
        f"{name} has {length} tokens, and --length is {most}; leave the line"
        " out, or give a longer --length"
      )
  return [*ids["prompt"], *ids["answer"]], len(ids["prompt"])
