"""Measures plain and speculative decoding, and peers beside them.

  specjax-benchmark --model=FOLDER --prompts=in.jsonl --chat --json=out.json
  specjax-benchmark --model=FOLDER --prompts=in.jsonl --lookahead=4,8 \\
    --peer=transformers --peer=llama_cpp
  specjax-benchmark --model=FOLDER --prompts=in.jsonl \\
    --runs=ngram@8,eagle:FOLDER@4,draft_model:FOLDER@3,layer_skip:8@3
  specjax-benchmark --model=FOLDER --sweep=live --plot=live.png

Everything runs in one process, in rounds: each goes through all runs, in an
order that rotates, and each run answers all prompts. What a figure means is in
the JSON file, under "definitions". A benchmark that is killed leaves what it
has, with "complete": false. Exit code: 0 done, 1 failed, 2 wrong command line,
130 interrupted.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from specjax.benchmark import asked
from specjax.cli import benchmark_settings, checks, command, table

PROGRAM = "specjax-benchmark"


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; gives its exit code. See the module's docstring."""
  return command.run(PROGRAM, _main, argv)


def cli() -> None:
  """The console script."""
  command.leave(main())


def _main(argv: Sequence[str]) -> int:
  s = benchmark_settings.parse(argv)
  if s is None:
    lines = table.flag_help(benchmark_settings.FIELDS.values())
    print("\n".join([__doc__.rstrip(), "", "Flags:", "", *lines]))
    return 0
  _check_files(s)
  checks.check_draft(f"--draft_model={s.draft_model}", s.draft_model)
  for text in s.runs:
    if (run := asked.parse(text)).reads:
      checks.check_draft(f"--runs={text}", run.what)
  # jax takes a second to import: wrong command lines fail before it.
  from specjax import compilation_cache, pictures
  from specjax.benchmark import plots, record, report, sweep

  if s.plot is not None:
    pictures.check(s.plot)
  rows = None if s.prompts is None else _rows(s)
  if s.compilation_cache == "off":
    compilation_cache.disable()
  else:
    compilation_cache.enable(s.compilation_cache)

  def write(result: dict[str, Any]) -> None:
    if s.json is not None:
      record.write(s.json, result)

  result = _measure(s, rows, write)
  write(result)
  swept = s.sweep != "none"
  print(sweep.table(result) if swept else report.table(result))
  if s.plot is not None:
    (sweep.plot if swept else plots.runs)(result, s.plot)
  return 0


def _measure(s: benchmark_settings.Settings, rows, write) -> dict[str, Any]:
  from specjax import compilation_cache
  from specjax.benchmark import (
    measure,
    plan,
    sweep_batch,
    sweep_startup,
    sweep_steps,
  )

  what = plan.Plan(
    model=s.model,
    draft_model=s.draft_model,
    draft_layers=s.draft_layers,
    prompts=s.prompts,
    chat=s.chat,
    runs=s.runs,
    lookahead=s.lookahead,
    draft_weights=s.draft_weights,
    ngram_min=s.ngram_min,
    ngram_max=s.ngram_max,
    verifier=s.verifier,
    seed=s.seed,
    dtype=s.dtype,
    temperature=s.temperature,
    max_new_tokens=s.max_new_tokens,
    slots=s.slots,
    capacity=s.capacity,
    rounds=s.rounds,
    peer=s.peer,
    gguf=s.gguf,
  )
  how = {"write": write, "say": _say}
  match s.sweep:
    case "batch":
      return sweep_batch.measure(what, rows, **how)
    case "live":
      return sweep_steps.live(what, **how)
    case "capacity":
      return sweep_steps.capacity(what, **how)
    case "startup":
      return sweep_startup.measure(what, **how)
  cache = compilation_cache.default_folder().parent / "gguf"
  return measure.measure(what, rows, cache=cache, **how)


def _rows(s: benchmark_settings.Settings) -> list[Any]:
  from specjax.jobs import prompts

  try:
    rows = list(prompts.read(s.prompts))
  except OSError as error:
    why = (error.strerror or str(error)).lower()
    raise ValueError(f"--prompts={s.prompts}: {why}; name a file") from None
  if not rows:
    raise ValueError(f"--prompts={s.prompts} is empty; write a row a line")
  return rows


def _check_files(s: benchmark_settings.Settings) -> None:
  """Refuses files to write that are another one of the command's."""
  known: dict[pathlib.Path, str] = {}
  for name in ("prompts", "gguf", "json", "plot"):
    path = getattr(s, name)
    if name in ("json", "plot"):
      _check_file(name, path)
    if path is None:
      continue
    other = known.setdefault(pathlib.Path(path).resolve(), name)
    if other != name:
      raise command.UsageError(
        f"--{name}={path} is the file of --{other} too; name another"
      )


def _check_file(name: str, path: str | None) -> None:
  """Refuses a file that could not be written in the end."""
  if path is None:
    return
  where = pathlib.Path(path)
  if where.is_dir() or not where.parent.is_dir():
    what = "a folder" if where.is_dir() else "in no folder that is there"
    raise command.UsageError(f"--{name}={path} is {what}; name a file in one")


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
  cli()
