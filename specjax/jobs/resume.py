"""What an interrupted job has left, held against its prompts."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specjax.jobs import lines, prompts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Done:
  """Rows that an output holds already.

  Attributes:
    keys: of each its prompt's line in the prompt file, and which sample of
      the prompt it is. An id is not enough: an unreadable row is answered
      under its line number, which may be somebody else's id.
    refused: lines of prompts that one error row answers, whatever their n.
    errors: rows that ended in an error. They count as done.
    dropped: lines that are half-written.
  """

  keys: frozenset[tuple[int, int]] = frozenset()
  refused: frozenset[int] = frozenset()
  errors: int = 0
  dropped: int = 0

  def to_json(self) -> dict[str, Any]:
    """What JSON can hold of it, for another process."""
    fields = vars(self)
    return fields | {name: sorted(fields[name]) for name in ("keys", "refused")}


def from_json(fields: Mapping[str, Any]) -> Done:
  """What `to_json` gave."""
  keys = frozenset((line, sample) for line, sample in fields["keys"])
  refused = frozenset(fields["refused"])
  return Done(**{**fields, "keys": keys, "refused": refused})


NOTHING = Done()


class Keys:
  """Which prompt, by its line, and which sample of it an answer is of."""

  def __init__(self, rows: Sequence[prompts.Row | prompts.BadRow]):
    """Of these prompts."""
    self._ids = {row.line: row.id for row in rows}
    self._lines = {
      row.id: row.line for row in rows if isinstance(row, prompts.Row)
    }

  def of(self, row: Mapping[str, Any]) -> tuple[int, int] | None:
    """The key of an answer; None where it answers none of the prompts."""
    error = row["finish_reason"] == "error"
    line = row.get("line") if error else self._lines.get(row["id"])
    if line not in self._ids or self._ids[line] != row["id"]:
      return None
    return line, row.get("sample", 0)


def look(
  held: Iterable[tuple[str, bytes]],
  rows: Sequence[prompts.Row | prompts.BadRow],
) -> Done:
  """Reads an output; see `output.Output.read`.

  Args:
    held: its lines.
    rows: the prompt file, read.

  Raises:
    ValueError: a row is none, or no answer to these prompts, or there twice.
  """
  keys = Keys(rows)
  where_of: dict[tuple[int, int], str] = {}
  refused: set[int] = set()
  errors = dropped = 0
  for where, data in held:
    if data.isspace() and data.endswith(b"\n"):
      continue
    if not data.endswith(b"\n"):
      dropped += 1
      continue
    try:
      row = lines.decode(data)
    except ValueError as error:
      raise ValueError(
        f"{where}: {error}, so no answer of this job; mend it, or give"
        " --overwrite to start anew"
      ) from None
    key = keys.of(row)
    if key is None:
      raise ValueError(
        f"{where}: id {row['id']!r} is not in the prompt file; give the"
        " prompts that this output is of, or --overwrite to start anew"
      )
    if key in where_of:
      raise ValueError(
        f"{where}: id {row['id']!r} is answered already in {where_of[key]};"
        " remove one of the two"
      )
    where_of[key] = where
    error = row["finish_reason"] == "error"
    errors += error
    if error and "sample" not in row:
      refused.add(key[0])
  return Done(
    keys=frozenset(where_of),
    refused=frozenset(refused),
    errors=errors,
    dropped=dropped,
  )
