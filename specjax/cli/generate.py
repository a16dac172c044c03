"""Generates text from a prompt, or answers for a file of prompts.

  specjax-generate --model=FOLDER --prompt="The capital of France is" --stream
  specjax-generate --model=FOLDER --chat --prompts=in.jsonl --output=out.jsonl
  specjax-generate --config=configs/smollm2.py --prompt="…"

A proposer (--proposer=ngram, or draft_model with --draft_model=FOLDER) drafts
--lookahead tokens a step for the model to check at once: the same text sooner.
Answers go to standard output or --output; progress, the summary and errors go
to standard error. A row of the file that cannot run is answered with its error
and line number, and the run goes on. Exit code: 0 done (even where some rows
failed), 1 failed or every row did, 2 wrong command line, 130 interrupted.
"""

import sys
import time
from collections.abc import Sequence

from specjax.cli import checks, command
from specjax.cli import settings as settings_lib

PROGRAM = "specjax-generate"
_ERRORS_SHOWN = 3


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; gives its exit code. See the module's docstring."""
  return command.run(PROGRAM, _main, argv)


def cli() -> None:
  """The console script."""
  sys.exit(main())


def _main(argv: Sequence[str]) -> int:
  given = settings_lib.parse(argv)
  if given is None:
    print(settings_lib.help_text(__doc__))
    return 0
  checks.check(given)
  if given.settings.prompts is None:
    return _answer(given.settings)
  return _job(given)


def _job(given: settings_lib.Given) -> int:
  """Answers a file of prompts."""
  # jax takes a second to import: wrong command lines fail before it.
  from specjax.jobs import output, prompts

  s = given.settings
  named = checks.named(given, "prompts")
  try:
    rows = list(prompts.read(s.prompts))
  except OSError as error:
    missing = isinstance(error, FileNotFoundError)
    why = "no such file" if missing else (error.strerror or str(error)).lower()
    raise ValueError(f"{named}: {why}") from None
  if s.output is not None:
    output.check(s.output, overwrite=s.overwrite, source=s.prompts)
  checks.check_rows(
    given, [row for row in rows if isinstance(row, prompts.Row)]
  )
  if not rows:
    raise ValueError(f"{named} is empty; write a row a line")

  from specjax import metrics
  from specjax.jobs import run

  engine, encoder = _engine(s)
  with output.open_rows(s.output) as out:
    result = run.run(
      engine, rows, encoder=encoder, defaults=_defaults(s), out=out
    )
  _report(metrics.table(metrics.summarize(result.completions, result.wall_s)))
  where = s.output or "standard output"
  _report(
    f"{len(result.completions)} of {result.total} rows written to {where}"
    + (f", {result.failed} of them errors" if result.failed else "")
    + (", interrupted" if result.interrupted else "")
  )
  # On standard output the rows themselves have just said so.
  if s.output is not None:
    for line, why in result.errors[:_ERRORS_SHOWN]:
      _report(f"line {line}: {' '.join(why.split())}")
    if result.failed > _ERRORS_SHOWN:
      _report(f"… and {result.failed - _ERRORS_SHOWN} more")
  if result.interrupted:
    return 130
  return 1 if result.failed == result.total else 0


def _answer(s: settings_lib.Settings) -> int:
  """Answers one prompt."""
  from specjax import metrics
  from specjax.engine import request as request_lib
  from specjax.jobs import prompts, requests

  engine, encoder = _engine(s)
  row = prompts.Row(line=1, id="0", prompt=s.prompt, messages=None, settings={})
  request = requests.build(row, _defaults(s), encoder)
  start = time.perf_counter()
  for event in engine.run([request]):
    if isinstance(event, request_lib.Completion):
      completion = event
    elif s.stream:
      print(event.text, end="", flush=True)
  wall_s = time.perf_counter() - start
  if completion.finish_reason == "error":
    return command.fail(PROGRAM, completion.error, code=1)
  print("" if s.stream else completion.text)
  _report(metrics.table(metrics.summarize([completion], wall_s)))
  return 0


def _engine(s: settings_lib.Settings):
  """Loads and compiles; gives the engine and the target's tokenizer."""
  drafts = s.proposer == "draft_model"
  _report(f"loading {s.model}{f' and {s.draft_model}' if drafts else ''} …")
  start = time.perf_counter()
  from specjax import api, compilation_cache

  kept = s.compilation_cache != "off"
  if kept:
    compilation_cache.enable(s.compilation_cache)
  else:
    compilation_cache.disable()
  target = api.load(s.model, dtype=s.dtype, scan_layers=s.scan_layers)
  draft = None
  if drafts:
    draft = api.load(s.draft_model, dtype=s.dtype, scan_layers=s.scan_layers)
  engine = api.Engine(
    target,
    proposer=s.proposer,
    draft=draft,
    lookahead=None if s.proposer == "none" else s.lookahead,
    verifier=s.verifier,
    slots=s.slots,
    capacity=s.capacity,
    seed=s.seed or 0,
    ngram_min=s.ngram_min if s.proposer == "ngram" else None,
    ngram_max=s.ngram_max if s.proposer == "ngram" else None,
  )
  loaded = time.perf_counter()
  after = " the first time, seconds after" if kept else ""
  _report(f"compiling (about a minute{after}) …")
  engine.warmup()
  compiled = time.perf_counter()
  _report(
    f"{target.name}: loaded in {loaded - start:.1f} s,"
    f" compiled in {compiled - loaded:.1f} s"
  )
  return engine, target.tokenizer


def _defaults(s: settings_lib.Settings):
  """What holds for rows that do not say otherwise.

  The seed is the engine's: a row folds its id into it, so that rows of one
  prompt differ.
  """
  from specjax.jobs import requests

  return requests.Defaults(
    chat=s.chat,
    lookahead=0 if s.proposer == "none" else s.lookahead,
    settings={
      "temperature": s.temperature,
      "top_k": s.top_k,
      "top_p": s.top_p,
      "min_p": s.min_p,
      "max_new_tokens": s.max_new_tokens,
      "stop": s.stop,
    },
  )


def _report(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
  cli()
