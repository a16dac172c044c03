"""Puts the outputs of jobs that shared a prompt file into one, in its order.

  specjax-merge --prompts=in.jsonl out-0.jsonl out-1.jsonl --output=out.jsonl

The outputs are those of specjax-generate with --shard_index and --num_shards;
each may be a file or a gs:// name with numbered parts. Every answer must be
there exactly once, all samples too: what is missing or there twice is named and
nothing is written. Exit code: 0 done, 1 failed, 2 wrong command line, 130
interrupted, 143 terminated.
"""

import contextlib
import dataclasses
import hashlib
import os
import sys
from collections.abc import Sequence

from absl import flags

from specjax.cli import command, streams, table

PROGRAM = "specjax-merge"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Every flag; `help` says what each one is."""

  prompts: str | None = table.setting(
    None, "string", "the file of prompts, or its URL, that the jobs shared"
  )
  output: str | None = table.setting(
    None,
    "string",
    "the file of all answers; standard output if not given, parts at a URL",
  )
  overwrite: bool = table.setting(
    False, "switch", "replace an output file that holds something"
  )


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; gives its exit code. See the module's docstring."""
  return command.run(PROGRAM, _main, argv)


def cli() -> None:
  """The console script."""
  command.leave(main())


def parse(argv: Sequence[str]) -> tuple[Settings, tuple[str, ...]]:
  """Reads a command line: the flags, and the outputs to merge.

  Raises:
    UsageError: it is wrong; names how.
  """
  values = flags.FlagValues()
  table.define(table.fields_of(Settings), values)
  given, words = table.read_all(values, argv)
  settings = Settings(**given)
  if settings.prompts is None:
    raise command.UsageError(
      "--prompts is missing; name the prompt file that the jobs shared"
    )
  if not words:
    raise command.UsageError(
      "there is no output to merge; name those of all jobs, as in"
      " out-0.jsonl out-1.jsonl"
    )
  if twice := [word for word in words if words.count(word) > 1]:
    raise command.UsageError(f"{twice[0]} is given twice; leave out one")
  if settings.output in words or any(_same(settings.output, w) for w in words):
    raise command.UsageError(
      f"--output={settings.output} is one of the outputs to merge; name"
      " another file"
    )
  if settings.overwrite and settings.output is None:
    raise command.UsageError(
      "--overwrite does nothing without --output; leave it out"
    )
  return settings, tuple(words)


def _same(one: str | None, other: str) -> bool:
  """Whether two names are of one file."""
  with contextlib.suppress(OSError, TypeError):
    return os.path.samefile(one, other)
  return False


def _main(argv: Sequence[str]) -> int:
  if table.asks_for_help(argv):
    fields = table.fields_of(Settings).values()
    streams.say("\n".join([__doc__, "Flags:", "", *table.flag_help(fields)]))
    return 0
  settings, names = parse(argv)
  from specjax.jobs import merge, output, prompts

  digest = hashlib.sha256()
  rows = list(prompts.read(settings.prompts, digest=digest))
  with contextlib.ExitStack() as stack:
    sources = {
      name: stack.enter_context(output.reading(name)) for name in names
    }
    manifests = {name: each.manifest() for name, each in sources.items()}
    job = merge.job_of(manifests, digest.hexdigest(), len(rows))
    answers = stack.enter_context(merge.Answers(rows))
    for source in sources.values():
      answers.add(source.read())
    missing = merge.describe(answers.missing(merge.defaults_of(job)))
    if missing is not None:
      raise ValueError(
        f"{missing}; give the outputs of all shards, and let each end (--resume"
        " goes on with one that has not)"
      )
    out = stack.enter_context(
      output.claim(
        settings.output, overwrite=settings.overwrite, source=settings.prompts
      )
    )
    count = merge.write(out, job, answers)
  files = f"{len(names)} output{'s' * (len(names) > 1)}"
  print(f"{count} rows of {files} written to {out.name}", file=sys.stderr)
  return 0


if __name__ == "__main__":
  cli()
