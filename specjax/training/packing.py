"""Texts packed into rows, and rows into batches whose order a seed decides.

Texts are packed whole into rows of T tokens; those that are longer are cut,
each piece beginning with the last token of the one before, so that every token
but a text's first is predicted once. In a row no text sees another: `positions`
begin anew with each (see `models.attend.attend_block`).

Beside an encoder texts are pairs of a source and an output (`Pairs`): a row has
several, and no output sees the source of another.

The order is Grain's: batch number n is a function of the seed and of n alone.
"""

from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

import ml_dtypes
import numpy as np

from specjax.training.data import Corpus

Batch = dict[str, np.ndarray]


def pack(lengths: np.ndarray, width: int) -> list[list[int]]:
  """Which texts share a row: the longest first, each where least is left over.

  Args:
    lengths: int [texts], at most `width` each.
    width: T.

  Returns:
    The texts of each row.
  """
  rows: list[list[int]] = []
  room: list[list[int]] = [
    [] for _ in range(width + 1)
  ]  # rows, by what is left
  for text in np.argsort(-lengths, kind="stable"):
    length = int(lengths[text])
    fits = next((n for n in range(length, width + 1) if room[n]), None)
    if fits is None:
      rows.append([])
      row, fits = len(rows) - 1, width
    else:
      row = room[fits].pop()
    rows[row].append(int(text))
    room[fits - length].append(row)
  return rows


class Rows:
  """Packed rows, made as they are asked for: a source of Grain's.

  A row has, all [T] unless said otherwise:
    tokens: int32; positions: int32, within each text; next: int32, the token
    after each; weight: float32, 1 where it is to be predicted; and where there
    are states, hidden: bfloat16 [T, n, D], of the target after each token.
  """

  def __init__(self, corpus: Corpus, width: int, *, prompts: bool = False):
    """Packs texts.

    Args:
      corpus: the texts.
      width: T, at least 2.
      prompts: whether tokens of prompts are predicted too.

    Raises:
      ValueError: nothing in the corpus is to be predicted.
    """
    self._corpus = corpus.cut(width)
    self._width = width
    self._prompts = prompts
    long = self._corpus.lengths
    first = np.maximum(self._corpus.answer, 1)
    if prompts:
      first = np.ones_like(first)
    self.predicted = int(np.maximum(long - first, 0).sum())
    if not self.predicted:
      raise ValueError(
        f"{corpus.name}: none of its {len(corpus.tokens)} tokens is to be"
        " predicted; give longer texts"
      )
    # Texts in which nothing is predicted would only take room.
    useful = np.flatnonzero(long > first)
    packed = pack(long[useful], width)
    self._rows = [[int(useful[i]) for i in row] for row in packed]
    self.tokens = int(long[useful].sum())

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index) -> Batch:
    corpus, width = self._corpus, self._width
    row = {
      "tokens": np.zeros(width, np.int32),
      "positions": np.zeros(width, np.int32),
      "next": np.zeros(width, np.int32),
      "weight": np.zeros(width, np.float32),
    }
    at = 0
    for text in self._rows[int(index)]:
      start, stop = corpus.starts[text], corpus.starts[text + 1]
      tokens, length = corpus.tokens[start:stop], int(stop - start)
      here = slice(at, at + length)
      row["tokens"][here] = tokens
      row["positions"][here] = np.arange(length)
      row["next"][at : at + length - 1] = tokens[1:]
      first = 1 if self._prompts else max(int(corpus.answer[text]), 1)
      row["weight"][at + first - 1 : at + length - 1] = 1.0
      if corpus.layers:
        states = corpus.hidden(text, 0, length)
        if "hidden" not in row:
          shape = (width, *states.shape[1:])
          row["hidden"] = np.zeros(shape, ml_dtypes.bfloat16)
        row["hidden"][here] = states
      at += length
    return row


class Pairs:
  """Packed pairs of a source and an output, made as they are asked for.

  A row has, all [T] unless said otherwise:
    source: int32, sources one behind the other; source_text: int32, which of
    the row's pairs each is of, from 1 on, and 0 for padding; tokens: int32,
    what the decoder reads: of each pair its start token and the output without
    its last; text: int32, of which pair each is; positions: int32, in each
    output; next: int32, the output's token that comes; weight: float32, 1 where
    one does.
  """

  def __init__(self, corpus: Corpus, width: int, *, start: int):
    """Packs pairs.

    Args:
      corpus: of pairs.
      width: T, of sources and of outputs.
      start: the id that every output begins with.

    Raises:
      ValueError: a pair has no output, or is longer than `width`; names it.
    """
    sources = corpus.answer.astype(np.int64)
    outputs = corpus.lengths - sources
    for name, sizes in (("prompt", sources), ("answer", outputs)):
      if sizes.min() < 1:
        pair = int(np.argmin(sizes)) + 1
        raise ValueError(
          f"{corpus.name}: the {name} of pair {pair} has no token; give pairs"
          " with both, or leave it out"
        )
      if sizes.max() > width:
        pair, most = int(np.argmax(sizes)) + 1, int(sizes.max())
        raise ValueError(
          f"{corpus.name}: the {name} of pair {pair} has {most} tokens, and"
          f" --length is {width}; give --length={most}, or leave it out"
        )
    self._corpus, self._width, self._start = corpus, width, start
    self._rows = pack(np.maximum(sources, outputs), width)
    self.predicted = int(outputs.sum())
    self.tokens = len(corpus.tokens)

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index) -> Batch:
    corpus = self._corpus
    fields = ("source", "source_text", "tokens", "text", "positions", "next")
    row = {name: np.zeros(self._width, np.int32) for name in fields}
    row["weight"] = np.zeros(self._width, np.float32)
    at = behind = 0
    for number, pair in enumerate(self._rows[int(index)], start=1):
      first, last = corpus.starts[pair], corpus.starts[pair + 1]
      middle = first + corpus.answer[pair]
      source, output = corpus.tokens[first:middle], corpus.tokens[middle:last]
      here = slice(at, at + len(source))
      row["source"][here] = source
      row["source_text"][here] = number
      there = slice(behind, behind + len(output))
      row["tokens"][there] = np.concatenate([[self._start], output[:-1]])
      row["text"][there] = number
      row["positions"][there] = np.arange(len(output))
      row["next"][there] = output
      row["weight"][there] = 1.0
      at, behind = here.stop, there.stop
    return row


class Batches:
  """Batch number n of a training run, for any n; the next is made ahead."""

  def __init__(
    self, rows: Rows | Pairs, *, batch: int, accumulate: int, seed: int
  ):
    """Orders rows.

    Args:
      rows: where they come from.
      batch: B of a pass.
      accumulate: passes of a step.
      seed: of the order; each epoch has another.
    """
    import grain

    order = grain.MapDataset.source(rows).seed(seed % 2**32).shuffle().repeat()
    self._order = order
    self._shape = (accumulate, batch)
    self._ahead: dict[int, futures.Future] = {}
    self._pool = futures.ThreadPoolExecutor(1)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._pool.shutdown(cancel_futures=True)

  def __getitem__(self, step: int) -> Batch:
    """Of each field [accumulate, batch, T, …]."""
    future = self._ahead.pop(step, None) or self._pool.submit(self._make, step)
    self._ahead = {step + 1: self._pool.submit(self._make, step + 1)}
    return future.result()

  def _make(self, step: int) -> Batch:
    passes, batch = self._shape
    first = step * passes * batch
    rows = [self._order[first + n] for n in range(passes * batch)]
    return stacked(rows, self._shape)


def stacked(rows: Sequence[Batch], shape: tuple[int, ...]) -> Batch:
  """Rows as one batch: of each field [*shape, T, …]."""
  return {
    name: np.stack([row[name] for row in rows]).reshape(
      *shape, *rows[0][name].shape
    )
    for name in rows[0]
  }


def in_order(rows: Rows | Pairs, batch: int, most: int) -> Iterator[Batch]:
  """Held-out rows, always the same: [batch, T, …], the last one filled up.

  Args:
    rows: where they come from.
    batch: B.
    most: how many batches at most.
  """
  count = min(len(rows), most * batch)
  # Spread evenly: the packed rows are sorted by the length of their texts.
  places = np.linspace(0, len(rows) - 1, count).round().astype(int)
  for first in range(0, count, batch):
    part: list[Any] = [rows[i] for i in places[first : first + batch]]
    empty = {name: np.zeros_like(value) for name, value in part[0].items()}
    part += [empty] * (batch - len(part))
    yield stacked(part, (batch,))
