"""What an interrupted job has left, held against its prompts."""

import dataclasses
from collections.abc import Iterable, Sequence

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


NOTHING = Done()


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
  ids = {row.line: row.id for row in rows}
  lines_of = {row.id: row.line for row in rows if isinstance(row, prompts.Row)}
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
    error = row["finish_reason"] == "error"
    line = row.get("line") if error else lines_of.get(row["id"])
    if line not in ids or ids[line] != row["id"]:
      raise ValueError(
        f"{where}: id {row['id']!r} is not in the prompt file; give the"
        " prompts that this output is of, or --overwrite to start anew"
      )
    key = line, row.get("sample", 0)
    if key in where_of:
      raise ValueError(
        f"{where}: id {row['id']!r} is answered already in {where_of[key]};"
        " remove one of the two"
      )
    where_of[key] = where
    errors += error
    if error and "sample" not in row:
      refused.add(line)
  return Done(
    keys=frozenset(where_of),
    refused=frozenset(refused),
    errors=errors,
    dropped=dropped,
  )
