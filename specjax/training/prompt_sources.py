"""Where prompts for training data come from: prompt files, and plain text."""

import dataclasses
import hashlib
import pathlib
import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from specjax.jobs import prompts

# Files of this ending are rows of JSON; any other is text to be continued.
ROWS = ".jsonl"
# Of a folder, files that are none of these endings, and UTF-8.
_NO_TEXT = {
  ".bin", ".gguf", ".gz", ".jpg", ".npy", ".npz", ".parquet", ".pdf", ".png",
  ".pt", ".pyc", ".safetensors", ".so", ".zip",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
  """Prompts, read.

  Attributes:
    rows: in the order of the names, ids of the form "a.jsonl:7".
    bad: rows of prompt files that cannot be read.
    digest: of all that was read.
  """

  rows: tuple[prompts.Row, ...]
  bad: tuple[prompts.BadRow, ...]
  digest: str


def read(names: Sequence[str], *, chunk_chars: int) -> Sources:
  """Reads prompt files (.jsonl), text files and folders of either.

  Args:
    names: paths; of prompt files URLs too.
    chunk_chars: text is cut into prompts of about so many characters.

  Raises:
    OSError, ValueError: one cannot be read; names it.
  """
  digest, rows, bad, seen = hashlib.sha256(), [], [], set()
  for name in names:
    for label, path in _files(name):
      while label in seen:  # a/x.jsonl and b/x.jsonl
        label += "'"
      seen.add(label)
      digest.update(f"{label}\0".encode())
      for row in _rows(path, chunk_chars, digest):
        (bad if isinstance(row, prompts.BadRow) else rows).append(
          dataclasses.replace(row, id=f"{label}:{row.id}")
        )
  return Sources(rows=tuple(rows), bad=tuple(bad), digest=digest.hexdigest())


def pieces(text: str, size: int) -> list[str]:
  """Cuts a text into pieces of at most `size` characters, at line ends.

  A longer line is cut at a blank where there is one. What would be less than a
  quarter of the size at the end is left out, where it is not all.
  """
  found, piece = [], ""
  for line in text.splitlines(keepends=True):
    if piece and len(piece) + len(line) > size:
      found.append(piece)
      piece = ""
    piece += line
    while len(piece) > size:
      cut = piece.rfind(" ", size // 2, size + 1)
      cut = size if cut < 0 else cut
      found.append(piece[:cut])
      piece = piece[cut:].lstrip(" ")
  if len(piece) > size // 4 or not found:
    found.append(piece)
  # A prompt that ends in white space is continued by odd tokens.
  return [each.rstrip() for each in found if each.strip()]


def normalised(text: str) -> str:
  """What texts that say the same have in common: words and digits alone.

  Case, white space, punctuation and the spelling of Unicode do not count; of a
  text that has no word, all of it counts.
  """
  folded = unicodedata.normalize("NFKC", text).casefold()
  return " ".join(re.findall(r"\w+", folded)) or " ".join(folded.split())


def text_of(row: prompts.Row) -> str:
  """What a row asks: its prompt, or what the user says in it."""
  if row.prompt is not None:
    return row.prompt
  said = [m["content"] for m in row.messages if m["role"] == "user"]
  return "\n".join(said)


def without(
  rows: Iterable[prompts.Row], held_out: Iterable[prompts.Row]
) -> list[prompts.Row]:
  """Rows but those that say what a held-out row says."""
  taken = {normalised(text_of(row)) for row in held_out}
  return [row for row in rows if normalised(text_of(row)) not in taken]


def distinct(rows: Iterable[prompts.Row]) -> list[prompts.Row]:
  """Of rows that say the same the first, and none that says nothing."""
  seen: dict[str, prompts.Row] = {}
  for row in rows:
    seen.setdefault(normalised(text_of(row)), row)
  seen.pop("", None)
  return list(seen.values())


def drawn(
  rows: Sequence[prompts.Row], most: int | None, seed: int
) -> Sequence[prompts.Row]:
  """So many of the rows, by the seed, in their order."""
  if most is None or most >= len(rows):
    return rows
  chosen = random.Random(seed).sample(range(len(rows)), most)
  return [rows[index] for index in sorted(chosen)]


def shuffled(rows: Sequence[prompts.Row], seed: int) -> list[prompts.Row]:
  """The rows in an order of the seed: some of them are a fair sample of all.

  So is what a run has made that is ended early.
  """
  order = list(rows)
  random.Random(seed).shuffle(order)
  return order


def _files(name: str) -> Iterator[tuple[str, str]]:
  """(label, path) of a file, or of the files of a folder."""
  path = pathlib.Path(name)
  if not path.is_dir():
    yield path.name, name
    return
  for file in sorted(path.rglob("*")):
    hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
    if file.is_file() and not hidden and file.suffix not in _NO_TEXT:
      yield f"{path.name}/{file.relative_to(path).as_posix()}", str(file)


def _rows(
  name: str, size: int, digest: Any
) -> Iterator[prompts.Row | prompts.BadRow]:
  if name.endswith(ROWS):
    yield from prompts.read(name, digest=digest)
    return
  data = pathlib.Path(name).read_bytes()
  digest.update(data)
  try:
    text = data.decode("utf-8-sig")
  except UnicodeDecodeError:
    yield prompts.BadRow(
      line=1, id="1", error=f"{name} is not UTF-8 text; leave it out"
    )
    return
  for number, piece in enumerate(pieces(text, size), start=1):
    yield prompts.Row(
      line=number, id=str(number), prompt=piece, messages=None, settings={}
    )
