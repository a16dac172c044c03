"""Rows of tokens on disk: a folder of shards that grows and survives kills.

FOLDER/manifest.json says whose tokens they are, how they were made and which
shards there are, each with its sha256. A shard is an .npz, not compressed, so
that its arrays are mapped and not read:

  tokens       int32 [sum of T]        the rows, one after another
  starts       int64 [rows + 1]        where each begins, and the last ends
  answer       int32 [rows]            of each, its first token that was drawn
  temperature  float32 [rows]          at which it was
  ids          text                    a JSON list of the rows' names
  hidden       uint16 [sum of T, n, D] bits of bfloat16, where asked for

`hidden[i]` is what the target's n asked layers were after it had read token i:
the state that predicts token i + 1. Nobody has read a row's last token; there
it is 0, and there is nothing for it to predict.

Everything is written beside its place and moved there, the manifest last: what
it does not name does not count. Rows that do not fill a shard yet lie in
open-NNNNN.npz, which the next one replaces.
"""

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

VERSION = 1
MANIFEST = "manifest.json"
_DTYPES = {
  "tokens": np.int32,
  "starts": np.int64,
  "answer": np.int32,
  "temperature": np.float32,
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Row:
  """A prompt and what the target answered.

  Attributes:
    id: its name, of which a folder has one.
    tokens: int32 [T], prompt and answer.
    answer: index of the first token of the answer, in [0, T).
    temperature: at which the answer was drawn.
    hidden: bfloat16 [T, n, D], or None; see the module's docstring.
  """

  id: str
  tokens: np.ndarray
  answer: int
  temperature: float
  hidden: np.ndarray | None = None

  @property
  def bytes(self) -> int:
    """What it takes in a shard."""
    hidden = 0 if self.hidden is None else self.hidden.nbytes
    return self.tokens.nbytes + hidden


class Reader(Sequence[Row]):
  """A folder's rows, mapped from its shards as they are asked for.

  Attributes:
    folder: where.
    manifest: the parsed manifest.json.
    layers: numbers of the target's layers in `hidden`, () where it has none.
  """

  def __init__(self, folder: str | os.PathLike, *, only: str | None = None):
    """Reads the manifest and every shard's table of rows.

    Args:
      folder: where.
      only: the name of the one shard to read.

    Raises:
      ValueError: the folder is none of these, or damaged; names the file.
    """
    self.folder = pathlib.Path(folder)
    self.manifest = _manifest(self.folder / MANIFEST)
    self.layers = tuple(self.manifest.get("hidden") or ())
    self._listed = [
      one for one in self.manifest["shards"] if only in (None, one["file"])
    ]
    self._shards = [self._open(one) for one in self._listed]
    sizes = [len(shard["answer"]) for shard in self._shards]
    self._firsts = np.cumsum([0, *sizes])

  def __len__(self) -> int:
    return int(self._firsts[-1])

  def __getitem__(self, index):
    if isinstance(index, slice):
      return [self[i] for i in range(*index.indices(len(self)))]
    at = index + len(self) if index < 0 else index
    if not 0 <= at < len(self):
      raise IndexError(f"row {index} of {len(self)}")
    shard = int(np.searchsorted(self._firsts, at, side="right")) - 1
    return self._row(self._shards[shard], at - int(self._firsts[shard]))

  def __iter__(self) -> Iterator[Row]:
    for shard in self._shards:
      for row in range(len(shard["answer"])):
        yield self._row(shard, row)

  @property
  def about(self) -> dict[str, Any]:
    """What was given to the writer."""
    ours = ("version", "complete", "rows", "tokens", "answer_tokens", "shards")
    return {k: v for k, v in self.manifest.items() if k not in ours}

  @property
  def complete(self) -> bool:
    """Whether all the rows are there that were to be made."""
    return bool(self.manifest["complete"])

  @property
  def lengths(self) -> np.ndarray:
    """int64 [rows], tokens of each row, without reading any."""
    each = [np.diff(shard["starts"]) for shard in self._shards]
    return np.concatenate(each) if each else np.zeros((0,), np.int64)

  def verify(self) -> None:
    """Reads every byte and holds it against the manifest.

    Raises:
      ValueError: a shard is not what was written; names it.
    """
    for one in self._listed:
      with open(self.folder / one["file"], "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
      if found != one["sha256"]:
        raise _damaged(self.folder / one["file"], "other bytes than written")

  def _open(self, listed: Mapping[str, Any]) -> dict[str, Any]:
    path = self.folder / listed["file"]
    try:
      arrays = _mapped(path)
      starts, answer = arrays["starts"], arrays["answer"]
      total, rows = len(arrays["tokens"]), len(answer)
      names = json.loads(str(arrays["ids"][()]))
    except FileNotFoundError:
      raise _damaged(path, "it is missing") from None
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
      raise _damaged(path, " ".join(str(error).split())) from None
    for name, dtype in _DTYPES.items():
      if arrays[name].dtype != dtype:
        raise _damaged(path, f"{name} is {arrays[name].dtype}")
    lengths = np.diff(starts)
    good = (
      (rows, total) == (listed["rows"], listed["tokens"])
      and len(starts) == rows + 1
      and len(names) == len(arrays["temperature"]) == rows
      and starts[0] == 0
      and starts[-1] == total
      and (lengths > 0).all()
      and (answer >= 0).all()
      and (answer < lengths).all()
    )
    if not good:
      raise _damaged(path, "its arrays do not fit each other or the manifest")
    hidden = arrays.get("hidden")
    if self.layers:
      if hidden is None or hidden.shape[:2] != (total, len(self.layers)):
        raise _damaged(path, f"hidden states of layers {self.layers} are not")
    return arrays | {"names": names}

  def _row(self, shard: Mapping[str, Any], row: int) -> Row:
    part = slice(int(shard["starts"][row]), int(shard["starts"][row + 1]))
    hidden = None
    if self.layers:
      hidden = shard["hidden"][part].view(ml_dtypes.bfloat16)
    return Row(
      id=shard["names"][row],
      tokens=shard["tokens"][part],
      answer=int(shard["answer"][row]),
      temperature=float(shard["temperature"][row]),
      hidden=hidden,
    )


def encode(rows: Sequence[Row]) -> bytes:
  """A shard of rows, at least one."""
  tokens = [row.tokens for row in rows]
  arrays = {
    "tokens": np.concatenate(tokens).astype(np.int32),
    "starts": np.cumsum([0, *map(len, tokens)], dtype=np.int64),
    "answer": np.asarray([row.answer for row in rows], np.int32),
    "temperature": np.asarray([row.temperature for row in rows], np.float32),
    "ids": np.asarray(json.dumps([row.id for row in rows])),
  }
  if rows[0].hidden is not None:
    hidden = np.concatenate([row.hidden for row in rows])
    arrays["hidden"] = hidden.astype(ml_dtypes.bfloat16).view(np.uint16)
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  return buffer.getvalue()


def _mapped(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of an .npz that is not compressed; numpy itself reads them."""
  arrays = {}
  with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
    for member in archive.infolist():
      if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename} is compressed")
      # The local header repeats the name, beside an extra part of its own.
      file.seek(member.header_offset + 26)
      name, extra = np.frombuffer(file.read(4), "<u2").tolist()
      file.seek(member.header_offset + 30 + name + extra)
      version = np.lib.format.read_magic(file)
      read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
      }[version]
      shape, _, dtype = read(file)
      arrays[member.filename.removesuffix(".npy")] = (
        np.memmap(file, dtype, "r", offset=file.tell(), shape=shape)
        if np.prod(shape)
        else np.zeros(shape, dtype)
      )
  return arrays


def _manifest(path: pathlib.Path) -> dict[str, Any]:
  try:
    fields = json.loads(path.read_bytes())
    version = fields["version"]
  except FileNotFoundError:
    raise ValueError(
      f"{path} is missing; name a folder that specjax-distill-data has written"
    ) from None
  except (ValueError, KeyError, TypeError):
    raise _damaged(path, "it is not what was written") from None
  if version != VERSION:
    raise ValueError(f"{path}: it is of version {version!r}, not {VERSION}")
  listed = fields.get("shards")
  keys = {"file", "open", "rows", "tokens", "sha256"}
  if not isinstance(listed, list) or not all(
    isinstance(one, dict) and keys <= set(one) for one in listed
  ):
    raise _damaged(path, "its list of shards is none")
  return fields


def _damaged(path: pathlib.Path, why: str) -> ValueError:
  return ValueError(f"{path} is damaged: {why}; make the data again")
