"""Outputs of jobs that shared a prompt file, put together in its order."""

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from specjax.jobs import (
  lines,
  manifest,
  output,
  prompts,
  requests,
  resume,
  run,
)

# Of the answers that are missing so many are named.
NAMED = 3


class Answers:
  """Answers by prompt and sample, kept in a file of their own until written."""

  def __init__(self, rows: Sequence[prompts.Row | prompts.BadRow]):
    """Holds none yet.

    Args:
      rows: the prompt file, read whole.
    """
    self._rows = rows
    self._keys = resume.Keys(rows)
    self._file = tempfile.TemporaryFile()
    self._places: dict[tuple[int, int], tuple[int, str]] = {}
    self._refused: set[int] = set()

  def __enter__(self) -> "Answers":
    return self

  def __exit__(self, *_) -> None:
    self._file.close()

  def add(self, held: Iterable[tuple[str, bytes]]) -> None:
    """Takes the lines of an output; see `output.Output.read`.

    Half-written lines are left out.

    Raises:
      ValueError: a line is no answer to these prompts, or there twice.
    """
    for where, data in held:
      if not data.strip() or not data.endswith(b"\n"):
        continue
      try:
        row = lines.decode(data)
      except ValueError as error:
        raise ValueError(f"{where}: {error}, so no answer; mend it") from None
      key = self._keys.of(row)
      if key is None:
        raise ValueError(
          f"{where}: id {row['id']!r} is not in the prompt file; give --prompts"
          " as the jobs had it"
        )
      if key in self._places:
        raise ValueError(
          f"{where}: id {row['id']!r} is answered already in"
          f" {self._places[key][1]}; give every output once, and of jobs with"
          " different --shard_index"
        )
      self._places[key] = self._file.tell(), where
      self._file.write(data)
      if row["finish_reason"] == "error" and "sample" not in row:
        self._refused.add(key[0])

  def missing(
    self, defaults: requests.Defaults
  ) -> Iterator[tuple[prompts.Row | prompts.BadRow, int]]:
    """Prompts and samples that have no answer.

    Args:
      defaults: the jobs' settings, which say how many samples a prompt has.

    Raises:
      ValueError: a sample is there that no prompt asks for.
    """
    done = resume.Done(
      keys=frozenset(self._places), refused=frozenset(self._refused)
    )
    done = run.asked(self._rows, defaults, done)
    for row in self._rows:
      for sample in range(run.samples(row, defaults)):
        if (row.line, sample) not in done.keys:
          yield row, sample

  def in_order(self) -> Iterator[Mapping[str, Any]]:
    """The answers in the order of the prompts, samples in theirs."""
    for key in sorted(self._places):
      self._file.seek(self._places[key][0])
      yield lines.decode(self._file.readline())


def job_of(
  data: Mapping[str, bytes | None], prompts_digest: str, rows: int
) -> manifest.Manifest:
  """The whole job whose shards left these manifests.

  Args:
    data: of each output, by name, its manifest.
    prompts_digest: of the prompt file.
    rows: how many there are in the prompt file.

  Raises:
    ValueError: one is missing or damaged, or they are not of one job; names
      what differs.
  """
  whole: manifest.Manifest | None = None
  first = ""
  for name, each in data.items():
    beside = f"{name}{lines.MANIFEST}"
    if each is None:
      raise ValueError(
        f"{beside} is missing, which says how {name} was made; put it back"
      )
    try:
      job = manifest.from_bytes(each)
    except ValueError as error:
      raise ValueError(f"{beside}: {error}; give a whole one") from None
    if job.prompts != prompts_digest:
      raise ValueError(
        f"{name} answers other prompts than --prompts; give the file that its"
        " job was started with"
      )
    shared = {**job.settings, "shard_index": None, "num_shards": None}
    job = dataclasses.replace(job, settings=shared, rows=rows)
    if whole is None:
      whole, first = job, name
    elif found := manifest.differences(job, whole):
      raise ValueError(
        f"{name} was made with {'; '.join(found)} in {first}; merge outputs of"
        " one job"
      )
  if whole is None:
    raise ValueError("there is no output to merge; name one or more")
  return whole


def defaults_of(job: manifest.Manifest) -> requests.Defaults:
  """What says how many samples a row asks for."""
  names = ("temperature", "n")
  settings = {name: job.settings[name] for name in names}
  return requests.Defaults(settings=settings)


def describe(
  missing: Iterable[tuple[prompts.Row | prompts.BadRow, int]],
) -> str | None:
  """What is missing, in words; None where nothing is."""
  count, named = 0, []
  for row, sample in missing:
    count += 1
    if count <= NAMED:
      which = f" sample {sample}" if sample else ""
      named.append(f"line {row.line} (id {row.id!r}){which}")
  if not count:
    return None
  more = f" and {count - NAMED} more" if count > NAMED else ""
  return f"{count} missing: {', '.join(named)}{more}"


def write(out: output.Output, job: manifest.Manifest, answers: Answers) -> int:
  """Writes all answers; gives how many.

  Raises:
    OSError: one cannot be written.
  """
  out.begin(job.to_bytes())
  for row in answers.in_order():
    out.write(row)
  out.flush()
  return out.count
