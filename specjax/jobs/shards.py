"""A prompt file shared out among jobs that know nothing of each other."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def part(rows: Sequence[T], index: int | None, count: int | None) -> list[T]:
  """The rows of one job: every `count`-th, from `index` on.

  Not a run of rows: files are often sorted, by length or by kind, and jobs
  should end at about the same time.

  Args:
    rows: of the prompt file, whole.
    index: of the job, from 0; None where there is one alone.
    count: of jobs; None as well.

  Raises:
    ValueError: no row is left for it.
  """
  if index is None or count is None:
    return list(rows)
  mine = list(rows[index::count])
  if not mine:
    raise ValueError(
      f"--shard_index={index} of --num_shards={count} has no row: there are"
      f" {len(rows)} in the prompt file; give at most as many shards"
    )
  return mine
