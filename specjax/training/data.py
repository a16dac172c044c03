"""Texts of token rows, from files and from shards, cut and held out.

A corpus is many texts of token ids, from files (`training.texts`) or distilled
(`training.shards`), with the target's states or without.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from specjax.training import shards

_FEW = 20  # texts, below which pieces are held out instead


def begins(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
  """Where texts of these lengths begin, and the end: int64 [texts + 1]."""
  return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
  """Texts of token ids, one after another.

  Attributes:
    tokens: int32 [sum of lengths].
    starts: int64 [texts + 1], where each begins, and the last ends.
    answer: int32 [texts], of each the first token that an answer has: those
      before it are its prompt.
    readers: where the target's states of texts are, () for nowhere.
    source: int64 [texts], of each which of the readers has it.
    rows: int64 [texts], the text's row in that one.
    skipped: int64 [texts], tokens of that row before the text's first.
    name: what errors call it.
    is_pairs: whether prompts are an encoder's sources, and answers a decoder's
      outputs: such texts are never cut.
  """

  tokens: np.ndarray
  starts: np.ndarray
  answer: np.ndarray
  name: str
  readers: tuple[shards.Reader, ...] = ()
  source: np.ndarray | None = None
  rows: np.ndarray | None = None
  skipped: np.ndarray | None = None
  is_pairs: bool = False

  def __len__(self) -> int:
    return len(self.answer)

  @property
  def layers(self) -> tuple[int, ...]:
    """Layers of the target whose states are there; () for none."""
    return self.readers[0].layers if self.readers else ()

  @property
  def lengths(self) -> np.ndarray:
    """int64 [texts]."""
    return np.diff(self.starts)

  def hidden(self, text: int, first: int, last: int) -> np.ndarray:
    """The target's states after tokens first .. last - 1: bfloat16 [_, n, D].

    The last token of a distilled row has none: they are zeros.
    """
    skip = int(self.skipped[text])
    row = self.readers[int(self.source[text])][int(self.rows[text])]
    return row.hidden[skip + first : skip + last]

  def take(self, texts: np.ndarray) -> "Corpus":
    """These texts alone, in this order."""
    parts = [self.tokens[self.starts[i] : self.starts[i + 1]] for i in texts]
    pick = lambda x: None if x is None else x[texts]
    lengths = self.lengths[texts]
    return dataclasses.replace(
      self,
      tokens=np.concatenate(parts) if parts else self.tokens[:0],
      starts=begins(lengths),
      answer=self.answer[texts],
      source=pick(self.source),
      rows=pick(self.rows),
      skipped=pick(self.skipped),
    )

  def cut(self, width: int) -> "Corpus":
    """The same with no text longer than `width`; see the module's docstring."""
    if self.is_pairs:
      return self
    texts, firsts = [], []
    for text, length in enumerate(self.lengths):
      at = np.arange(0, max(length - 1, 1), width - 1)
      texts.append(np.full(len(at), text))
      firsts.append(at)
    texts, firsts = np.concatenate(texts), np.concatenate(firsts)
    lasts = np.minimum(firsts + width, self.lengths[texts])
    begin = self.starts[texts]
    parts = [
      self.tokens[b + first : b + last]
      for b, first, last in zip(begin, firsts, lasts, strict=True)
    ]
    more = {}
    if self.readers:
      more = dict(
        source=self.source[texts],
        rows=self.rows[texts],
        skipped=self.skipped[texts] + firsts,
      )
    answer = np.maximum(self.answer[texts] - firsts, 0)
    lengths = lasts - firsts
    return dataclasses.replace(
      self,
      tokens=np.concatenate(parts),
      starts=begins(lengths),
      # A piece may end before the answer begins.
      answer=np.minimum(answer, lengths).astype(np.int32),
      **more,
    )

  def split(self, fraction: float, width: int) -> "tuple[Corpus, Corpus]":
    """What to train on, and what is held out: evenly spread texts.

    All answers to one prompt are on one side.

    Args:
      fraction: of the texts that is held out; at least one is. Where texts are
        few, of pieces of `width` tokens.
      width: T.

    Raises:
      ValueError: there is too little to hold anything out.
    """
    whole = self if len(self) >= _FEW else self.cut(width)
    count = len(whole)
    if count < 2:
      raise ValueError(
        f"{self.name}: {len(self.tokens)} tokens are too few to hold some out;"
        " give more text, or --held_out"
      )
    held = max(1, round(fraction * count))
    places = np.unique(np.linspace(0, count - 1, held).round().astype(int))
    if held == 1:
      places = np.asarray([count // 2])
    # Answers to one prompt are alike: what has one has seen the others.
    prompts = [whole._prompt(text) for text in range(count)]
    chosen, taken = set(places), {prompts[text] for text in places} - {None}
    places = np.asarray(
      [n for n in range(count) if n in chosen or prompts[n] in taken]
    )
    kept = np.setdiff1d(np.arange(count), places)
    if not len(kept):
      raise ValueError(
        f"{self.name}: all its texts answer one prompt, so none can be held"
        " out; give more, or --held_out"
      )
    return whole.take(kept), whole.take(places)

  def _prompt(self, text: int) -> bytes | None:
    """What a text answers; None where it is no answer."""
    start, size = self.starts[text], int(self.answer[text])
    return self.tokens[start : start + size].tobytes() if size else None

  def counts(self, vocab_size: int, *, prompts: bool) -> np.ndarray:
    """How often each id is a token that is to be predicted: int64 [V]."""
    total = np.zeros(vocab_size, np.int64)
    for start, stop, answer in zip(
      self.starts[:-1], self.starts[1:], self.answer, strict=True
    ):
      first = start + (1 if prompts else max(answer, 1))
      part = self.tokens[first:stop]
      total += np.bincount(part, minlength=vocab_size)
    return total


def from_shards(folder: str | os.PathLike, *, target: Any) -> Corpus:
  """A folder of distilled rows, whose states are mapped and not read.

  Args:
    folder: where.
    target: a Pretrained.

  Raises:
    ValueError: the folder is damaged, empty, or another target's.
  """
  reader = shards.Reader(folder)
  said = reader.about.get("target") or {}
  ours = {
    "tokenizer": target.tokenizer.fingerprint(),
    "vocab_size": target.model.config.vocab_size,
    "layers": target.model.config.layers,
    "d_model": target.model.config.d_model,
  }
  # Of rows without states only the ids matter.
  keys = ours if reader.layers else ("tokenizer", "vocab_size")
  for key in keys:
    if key in said and said[key] != ours[key]:
      raise ValueError(
        f"{folder}: the rows are of a target with {key} {said[key]}, and that"
        f" of {target.name} is {ours[key]}; make the data with this target"
      )
  rows = list(reader)
  if not rows:
    raise ValueError(
      f"{folder}: no rows in it yet; let specjax-distill-data write some"
    )
  corpus = Corpus(
    tokens=np.concatenate([row.tokens for row in rows]),
    starts=begins(reader.lengths),
    answer=np.asarray([row.answer for row in rows], np.int32),
    name=str(folder),
    is_pairs=target.model.reads_source,
    **_found_in(reader, len(rows)),
  )
  check_vocabulary(corpus, target.model.config.vocab_size)
  return corpus


def check_vocabulary(corpus: Corpus, vocab_size: int) -> None:
  """Refuses ids that the target does not have.

  Raises:
    ValueError: names the data, the id and the target's vocabulary.
  """
  wrong = corpus.tokens[(corpus.tokens < 0) | (corpus.tokens >= vocab_size)]
  if wrong.size:
    raise ValueError(
      f"{corpus.name}: there is a token {int(wrong[0])}, and the target's"
      f" vocabulary is {vocab_size}; make the data with this target"
    )


def join(parts: Sequence[Corpus]) -> Corpus:
  """Several corpora as one.

  Raises:
    ValueError: not all have states of the same layers.
  """
  if len(parts) == 1:
    return parts[0]
  for part in parts:
    check_alike(parts[0], part)
  more = {}
  if parts[0].readers:
    firsts = np.cumsum([0, *(len(part.readers) for part in parts)])
    more = dict(
      readers=tuple(reader for part in parts for reader in part.readers),
      source=np.concatenate(
        [part.source + n for part, n in zip(parts, firsts, strict=False)]
      ),
      rows=np.concatenate([part.rows for part in parts]),
      skipped=np.concatenate([part.skipped for part in parts]),
    )
  lengths = np.concatenate([part.lengths for part in parts])
  return Corpus(
    tokens=np.concatenate([part.tokens for part in parts]),
    starts=begins(lengths),
    answer=np.concatenate([part.answer for part in parts]),
    name=f"{parts[0].name} and {len(parts) - 1} more",
    is_pairs=parts[0].is_pairs,
    **more,
  )


def check_alike(one: Corpus, other: Corpus) -> None:
  """Refuses data of which some have states that others lack.

  Raises:
    ValueError: names both, and their layers.
  """
  if one.layers != other.layers:
    states = lambda c: f"layers {list(c.layers)}" if c.layers else "none"
    have = [f"{c.name} has states of {states(c)}" for c in (one, other)]
    raise ValueError(
      f"{', and '.join(have)}; give data that are alike (specjax-distill-data"
      " --hidden)"
    )


def _found_in(reader: shards.Reader, rows: int) -> dict[str, Any]:
  """A corpus's fields that say where its states are."""
  if not reader.layers:
    return {}
  return dict(
    readers=(reader,),
    source=np.zeros(rows, np.int64),
    rows=np.arange(rows),
    skipped=np.zeros(rows, np.int64),
  )
