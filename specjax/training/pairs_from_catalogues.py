"""Sentences and their translations, from gettext catalogues of free software.

  apt-get download gimp-data gnucash-common …      # any packages with texts
  for d in *.deb; do dpkg-deb -x $d debs/${d%%_*}; done
  python -m specjax.training.pairs_from_catalogues --folder=debs \\
    --output=.cache/translate

Reads the catalogues (.mo, .po) of --language below each --folder, whose
folders name the packages, and writes into --output:
  train.jsonl       {"prompt": sentence, "answer": translation}, to train on
  held_out.jsonl    the same, of which nothing is like any in train.jsonl
  prompts.jsonl     the sentences of train.jsonl, for specjax-distill-data
  sentences.jsonl   --sentences of the held-out ones, for specjax-benchmark
Kept are whole sentences of a few words without placeholders and markup, each
once. A hash of its words says whether a sentence is held out, so it stays so
when packages are added; what shares most of its words with a held-out one, in
either language, is left out of training. Needs polib.
"""

import argparse
import collections
import dataclasses
import hashlib
import json
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

from specjax.training import prompt_sources

# Letters, digits, blanks, and what stands in and around sentences.
_PLAIN = re.compile(r"[A-Za-zÀ-ž0-9 .,;:!?'’‘“”„«»‚()/–—-]+")
_ACCELERATOR = re.compile(r"(?<!\w)_(?=\w)|&(?=\w)|~(?=\w)")
_FILES = ("train.jsonl", "held_out.jsonl", "prompts.jsonl", "sentences.jsonl")
_LETTERS = 0.85  # of all characters but blanks, at least
_ALIKE = 0.6  # shared words of all words, from which two say the same


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
  """A sentence and its translation.

  Attributes:
    source, answer: the two.
    package: whose catalogue has it.
  """

  source: str
  answer: str
  package: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
  """What a sentence is; see `sentence`.

  Attributes:
    least, most: words of it.
    characters: of it, at most.
  """

  least: int = 4
  most: int = 16
  characters: int = 110


def sentence(text: str, limits: Limits) -> str | None:
  """The text in one line without marks of keys; None where it is no sentence.

  It begins with a capital letter and is of letters, but for a few digits and
  the marks of sentences: a placeholder or a tag would be copied and teach
  nothing.
  """
  flat = " ".join(_ACCELERATOR.sub("", text).split())
  if len(flat) > limits.characters or not _PLAIN.fullmatch(flat):
    return None
  words = flat.split(" ")
  if not limits.least <= len(words) <= limits.most:
    return None
  letters = sum(c.isalpha() for c in flat)
  if letters < _LETTERS * (len(flat) - len(words) + 1):
    return None
  capitals = sum(word.isupper() and len(word) > 1 for word in words)
  return flat if flat[0].isupper() and capitals <= len(words) // 3 else None


def read(path: pathlib.Path, package: str, limits: Limits) -> Iterator[Pair]:
  """The sentences of a catalogue, with their translations.

  Raises:
    ValueError: it is no catalogue; names it.
    ImportError: polib is not installed.
  """
  try:
    import polib
  except ImportError:
    raise ImportError(
      f"{path}: reading catalogues needs polib: pip install 'specjax[pairs]'"
    ) from None
  opened = polib.mofile if path.suffix == ".mo" else polib.pofile
  try:
    entries = list(opened(str(path)))
  except Exception as error:  # of many kinds; polib has none of its own
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ValueError(f"{path}: no gettext catalogue: {reason}") from None
  for entry in entries:
    if entry.obsolete or "fuzzy" in entry.flags:
      continue
    source, answer = entry.msgid, entry.msgstr
    if entry.msgid_plural:
      source = entry.msgid_plural
      answer = entry.msgstr_plural.get(1, "")
    source, answer = sentence(source, limits), sentence(answer, limits)
    if source is None or answer is None or source == answer:
      continue
    if 0.5 <= len(answer) / len(source) <= 2.2:
      yield Pair(source=source, answer=answer, package=package)


def catalogues(
  folder: pathlib.Path, language: str
) -> list[tuple[str, pathlib.Path]]:
  """(package, file) of the catalogues of a language below a folder, in order.

  Raises:
    FileNotFoundError: there is none, or no folder.
  """
  if not folder.is_dir():
    raise FileNotFoundError(f"--folder={folder}: no such folder")
  found = []
  for ending in ("mo", "po"):
    for path in folder.rglob(f"*.{ending}"):
      inner = path.relative_to(folder)
      if language in inner.parts or path.stem == language:
        # /usr/share/locale/de/LC_MESSAGES/tar.mo, of a machine's own, has the
        # package's name at its end.
        package = inner.parts[0] if len(inner.parts) > 3 else path.stem
        found.append((package, path))
  if not found:
    raise FileNotFoundError(
      f"--folder={folder}: no catalogue of {language} in it; unpack packages"
      " that have translations into it (dpkg-deb -x)"
    )
  return sorted(found)


def distinct(pairs: Iterable[Pair]) -> list[Pair]:
  """Of pairs whose sentences say the same the first, in order of a hash."""
  seen: dict[str, Pair] = {}
  for pair in pairs:
    seen.setdefault(prompt_sources.normalised(pair.source), pair)
  return [seen[key] for key in sorted(seen, key=_hash)]


def split(
  pairs: Sequence[Pair], held_out: int
) -> tuple[list[Pair], list[Pair]]:
  """What to train on, and what is held out: the first by their hash.

  Args:
    pairs: from `distinct`.
    held_out: how many.

  Returns:
    Both; what is like a held-out one is in neither, and of held-out ones that
    are alike the first is kept.

  Raises:
    ValueError: there are too few.
  """
  held: list[Pair] = []
  likes = [_Like(), _Like()]
  rest: list[Pair] = []
  for pair in pairs:
    both = (pair.source, pair.answer)
    if any(like.has(text) for like, text in zip(likes, both, strict=True)):
      continue
    if len(held) < held_out:
      held.append(pair)
      for like, text in zip(likes, both, strict=True):
        like.add(text)
    else:
      rest.append(pair)
  if not rest:
    raise ValueError(
      f"--held_out={held_out}: there are {len(pairs)} pairs; give more"
      " catalogues, or hold out fewer"
    )
  return rest, held


class _Like:
  """Which texts share most of their words with one of some."""

  def __init__(self):
    self._texts: list[frozenset[str]] = []
    self._with: dict[str, list[int]] = collections.defaultdict(list)

  def add(self, text: str) -> None:
    words = _words(text)
    for word in words:
      self._with[word].append(len(self._texts))
    self._texts.append(words)

  def has(self, text: str) -> bool:
    words = _words(text)
    shared = collections.Counter(
      n for w in words for n in self._with.get(w, ())
    )
    return any(
      count >= _ALIKE * len(words | self._texts[n])
      for n, count in shared.items()
    )


def _words(text: str) -> frozenset[str]:
  """Words of a text; all numbers are one word."""
  return frozenset(re.sub(r"\d+", "0", prompt_sources.normalised(text)).split())


def _hash(key: str) -> bytes:
  return hashlib.sha256(key.encode()).digest()


def _check(s: argparse.Namespace) -> None:
  """Raises ValueError, naming the flag, or FileExistsError."""
  for name in ("held_out", "sentences", "least"):
    if getattr(s, name) < 1:
      raise ValueError(f"--{name}={getattr(s, name)}: give 1 or more")
  if s.least > s.most:
    raise ValueError(
      f"--least={s.least} --most={s.most}: no sentence has both; give --most"
      " no smaller"
    )
  for name in _FILES:
    path = pathlib.Path(s.output) / name
    if path.exists():
      raise FileExistsError(
        f"{path} is there already; name another --output, or delete it"
      )


def write(path: pathlib.Path, rows: Iterable[dict[str, str]]) -> None:
  """Writes lines of JSON; FileExistsError where the file is there."""
  with path.open("x", encoding="utf-8") as file:
    for row in rows:
      file.write(json.dumps(row, ensure_ascii=False) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
  """Writes the files; gives the exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--folder", required=True, action="append")
  parser.add_argument("--output", required=True, help="a folder")
  parser.add_argument("--language", default="de")
  parser.add_argument("--held_out", type=int, default=500, help="how many")
  parser.add_argument("--sentences", type=int, default=100, help="of these")
  parser.add_argument("--least", type=int, default=Limits.least, help="words")
  parser.add_argument("--most", type=int, default=Limits.most, help="words")
  parser.add_argument(
    "--characters", type=int, default=Limits.characters, help="at most"
  )
  s = parser.parse_args(argv)
  limits = Limits(least=s.least, most=s.most, characters=s.characters)
  try:
    _check(s)
    found = [
      pair
      for folder in s.folder
      for package, path in catalogues(pathlib.Path(folder), s.language)
      for pair in read(path, package, limits)
    ]
    pairs = distinct(found)
    train, held = split(pairs, s.held_out)
    output = pathlib.Path(s.output)
    output.mkdir(parents=True, exist_ok=True)
    as_pair = lambda p: {"prompt": p.source, "answer": p.answer}
    write(output / "train.jsonl", map(as_pair, train))
    write(output / "held_out.jsonl", map(as_pair, held))
    write(output / "prompts.jsonl", ({"prompt": p.source} for p in train))
    numbered = enumerate(held[: s.sentences], start=1)
    rows = ({"id": f"{p.package}-{n}", "prompt": p.source} for n, p in numbered)
    write(output / "sentences.jsonl", rows)
  except (OSError, ValueError, ImportError) as error:
    print(f"pairs_from_catalogues: error: {error}", file=sys.stderr)
    return 1
  packages = len({pair.package for pair in pairs})
  print(
    f"{len(train)} pairs to train on and {len(held)} held out in {output}, of"
    f" {len(found)} in {packages} packages"
  )
  return 0


if __name__ == "__main__":
  sys.exit(main())
