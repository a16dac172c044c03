"""Generates text from a prompt, or answers for a file of prompts.

  specjax-generate --model=FOLDER --prompt="The capital of France is" --stream
  specjax-generate --model=FOLDER --chat --prompts=in.jsonl --output=out.jsonl
  specjax-generate --config=configs/smollm2.py --prompt="…"

A proposer (--proposer=ngram, or eagle with --draft_model=FOLDER, and so on)
drafts --lookahead tokens a step for the model to check at once: the same text
sooner.
Answers go to standard output or --output; progress, the summary and errors go
to standard error. A row of the file that cannot run is answered with its error
and line number, and the run goes on. A run that was ended by Ctrl-C, SIGTERM or
a kill goes on with --resume. On a slice of a TPU pod the same command runs on
every worker, and process 0 writes. Exit code: 0 done (even where some rows
failed), 1 failed or every row did, 2 wrong command line, 130 interrupted, 141
the reader of standard output has gone, 143 terminated.
"""

import contextlib
import functools
import gc
import hashlib
import time
from collections.abc import Iterator, Sequence

from specjax.cli import (
  checks,
  command,
  processes,
  profiling,
  resuming,
  streams,
)
from specjax.cli import settings as settings_lib
from specjax.proposers import kinds
from specjax.sharding import hosts

PROGRAM = "specjax-generate"


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; gives its exit code. See the module's docstring."""
  return command.run(PROGRAM, _main, argv)


def cli() -> None:
  """The console script."""
  command.leave(main())


def _main(argv: Sequence[str]) -> int:
  given = settings_lib.parse(argv)
  if given is None:
    streams.say(settings_lib.help_text(__doc__))
    return 0
  checks.check(given)
  checks.check_draft(
    checks.named(given, "draft_model"), given.settings.draft_model
  )
  if given.settings.profile_dir is not None:
    profiling.check(given.settings.profile_dir)
  with processes.joined(given.settings, PROGRAM) as group:
    if given.settings.prompts is None:
      processes.agree(given, None)
      code = _answer(given.settings)
    else:
      code = _job(given)
    return group.finish(code)


def _job(given: settings_lib.Given) -> int:
  """Answers a file of prompts."""
  # jax takes a second to import: wrong command lines fail before it.
  from specjax.jobs import output, prompts, shards

  s = given.settings
  whole, digest = _rows(given)
  rows = shards.part(whole, s.shard_index, s.num_shards)
  processes.agree(given, digest)
  if hosts.current().is_first:
    claim = output.claim(
      s.output, overwrite=s.overwrite, resume=s.resume, source=s.prompts
    )
  else:
    claim = output.Nowhere()
  with claim as out:
    # Of the whole file: every shard of it has the same flags.
    checks.check_rows(
      given, [row for row in whole if isinstance(row, prompts.Row)]
    )
    return _answer_rows(s, rows, resuming.Plan(s, rows, digest, out), out)


def _rows(given: settings_lib.Given):
  """The rows of the prompt file, and the file's digest."""
  from specjax.jobs import prompts

  named = checks.named(given, "prompts")
  processes.check_prompts(given.settings.prompts, named)
  digest = hashlib.sha256()
  try:
    rows = list(prompts.read(given.settings.prompts, digest=digest))
  except OSError as error:
    missing = isinstance(error, FileNotFoundError)
    why = "no such file" if missing else (error.strerror or str(error)).lower()
    raise ValueError(f"{named}: {why}") from None
  if not rows:
    raise ValueError(f"{named} is empty; write a row a line")
  return rows, digest.hexdigest()


def _answer_rows(s: settings_lib.Settings, rows, plan, out) -> int:
  """Answers the rows that are not done, and sums up."""
  from specjax import metrics
  from specjax.jobs import prompts, requests, resume, run, stopping

  group, defaults = hosts.current(), _defaults(s)
  found = group.share(plan.done.to_json())  # Process 0 alone has looked.
  done = run.asked(rows, defaults, resume.from_json(found))
  total = run.total(rows, defaults)
  if s.resume:
    processes.report(_found(done, total))
  if len(done.keys) == total:
    plan.start()
    if s.profile_dir is not None:
      processes.report("nothing is left to run, so there is no trace")
    return 1 if done.errors == total else 0
  readable = [row for row in rows if isinstance(row, prompts.Row)]
  top = requests.top_logprobs(readable, defaults)
  engine, encoder = _engine(s, plan.models, top)
  with stopping.patient() as asked:
    stop = processes.stop_of(asked)
    plan.start()
    group.before_leaving = out.flush
    result = run.run(
      engine,
      rows,
      encoder=encoder,
      defaults=defaults,
      out=out,
      done=done,
      stop=stop,
      quiet=not group.is_first,
    )
    out.flush()
  processes.report(metrics.table(result.summary))
  failed = result.failed + done.errors
  processes.report(
    f"{result.before + result.written} of {result.total} rows written to"
    f" {out.name}"
    + (f", {result.before} of them before" if result.before else "")
    + (f", {failed} of them errors" if failed else "")
    + (f", {stopping.NAMES[stop.signal]}" if result.interrupted else "")
    + ("; --resume goes on" if result.interrupted and out.keeps else "")
  )
  # On standard output the rows themselves have just said so.
  if s.output is not None:
    for line, why in result.errors:
      processes.report(f"line {line}: {' '.join(why.split())}")
    if result.failed > len(result.errors):
      processes.report(f"… and {result.failed - len(result.errors)} more")
  if result.interrupted:
    return stopping.EXIT_CODES[stop.signal]
  return 1 if failed == result.total else 0


def _found(done, total: int) -> str:
  """What a resumed job has found, in a line."""
  count, dropped = len(done.keys), done.dropped
  left = f"{count} of {total} rows done"
  if not count:
    left = "nothing done yet, so from the beginning"
  elif count == total:
    left += ", nothing left to do"
  if dropped:
    left += f", {dropped} half-written line{'s' * (dropped > 1)} dropped"
  return f"resuming: {left}"


def _answer(s: settings_lib.Settings) -> int:
  """Answers one prompt."""
  from specjax import metrics
  from specjax.engine import request as request_lib
  from specjax.jobs import prompts, requests

  first = hosts.current().is_first
  row = prompts.Row(line=1, id="0", prompt=s.prompt, messages=None, settings={})
  asked = functools.partial(requests.build, row, _defaults(s))
  engine, encoder = _engine(s, asked=asked)
  request = asked(encoder)
  start = time.perf_counter()
  done = {}
  for event in engine.run([request]):
    if isinstance(event, request_lib.Completion):
      done[event.sample] = event
    elif s.stream and first:
      streams.say(event.text, end="")
  wall_s = time.perf_counter() - start
  for sample, completion in sorted(done.items()):
    if completion.finish_reason == "error":
      return command.fail(PROGRAM, completion.error, code=1)
    if s.n > 1 and first:
      streams.say(f"[{sample + 1} of {s.n}]")
    if first:
      streams.say("" if s.stream else completion.text)
  processes.report(metrics.table(metrics.summarize(done.values(), wall_s)))
  return 0


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
  """Without Python's garbage collector, which finds none in a start.

  It walks the millions of objects of modules and traces again and again: 5
  to 10% of a warm start's CPU time. What is there afterwards stays, so it is
  not walked in the run either.
  """
  gc.disable()
  try:
    yield
    gc.freeze()
  finally:
    gc.enable()


@_no_collection()
def _engine(
  s: settings_lib.Settings, check_models=None, top_logprobs=0, asked=None
):
  """Loads and compiles; gives the engine and the target's tokenizer.

  Args:
    s: the settings.
    check_models: called with digests of the models' files, before their
      weights are loaded.
    top_logprobs: see `engine.loop.Engine`.
    asked: gives the only request, of the target's tokenizer. One that cannot
      run is refused before anything compiles.
  """
  names = f"{s.model}{f' and {s.draft_model}' if s.draft_model else ''}"
  processes.report(f"loading {names} …")
  start = time.perf_counter()
  from specjax import api, compilation_cache
  from specjax.engine import memory

  kept = s.compilation_cache != "off"
  if kept:
    compilation_cache.enable(s.compilation_cache)
  else:
    compilation_cache.disable()
  target, draft = _models(s)
  if check_models is not None:
    digests = _digests(target, draft)
    check_models(digests)
    named = {f"digest of --{role}": one for role, one in digests.items()}
    hosts.current().agree(named, "give all processes the same models")
  engine = api.Engine(
    target,
    proposer=s.proposer,
    draft=draft,
    draft_layers=s.draft_layers and kinds.layers(s.draft_layers),
    draft_weights=s.draft_weights,
    lookahead=None if s.proposer == "none" else s.lookahead,
    siblings=s.siblings,
    verifier=s.verifier,
    slots=s.slots,
    capacity=s.capacity,
    seed=s.seed or 0,
    ngram_min=s.ngram_min if s.proposer == "ngram" else None,
    ngram_max=s.ngram_max if s.proposer == "ngram" else None,
    max_memory=s.max_memory,
    top_logprobs=top_logprobs,
  )
  if asked is not None:
    refused = engine.refusal(asked(target.tokenizer))
    if refused is not None:
      raise ValueError(refused)
  processes.report(memory.line(engine.memory, engine.memory_limit))
  loaded = time.perf_counter()
  after = " the first time, seconds after" if kept else ""
  processes.report(f"compiling (about a minute{after}) …")
  engine.warmup()
  compiled = time.perf_counter()
  processes.report(
    f"{target.name}: loaded in {loaded - start:.1f} s,"
    f" compiled in {compiled - loaded:.1f} s"
  )
  if s.profile_dir is not None:
    engine = profiling.Profiled(engine, s.profile_dir, processes.report)
  return engine, target.tokenizer


def _models(s: settings_lib.Settings):
  """The target and what drafts, or None for it; nothing is read yet."""
  from specjax import api

  mesh = processes.mesh(s.mesh)
  how = dict(dtype=s.dtype, scan_layers=s.scan_layers, mesh=mesh)
  how |= dict(cache_sharding=s.cache_sharding, pad_heads=s.pad_heads)
  target, draft = api.load(s.model, strategy=s.strategy, **how), None
  if kinds.KINDS[s.proposer].reads:
    strategy = s.draft_strategy or s.strategy
    draft = api.load_draft(
      s.proposer, s.draft_model, target, strategy=strategy, **how
    )
  if s.pad_heads and not any(
    one.is_padded for one in (target, draft) if one is not None
  ):
    raise command.UsageError(
      f"--pad_heads does nothing: all heads divide over --mesh={mesh};"
      " leave it out"
    )
  return target, draft


def _digests(target, draft) -> dict[str, str]:
  """Of each model, by the flag that names it, a digest of its files."""
  from specjax.jobs import manifest

  models = {"model": target, "draft_model": draft}
  return {
    role: manifest.digest_of_folder(model.folder)
    for role, model in models.items()
    # What the target carries itself is in its own digest.
    if model is not None and (model is target or model.name != target.name)
  }


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
      "repetition_penalty": s.repetition_penalty,
      "presence_penalty": s.presence_penalty,
      "frequency_penalty": s.frequency_penalty,
      "logit_bias": checks.logit_bias(s.logit_bias),
      "n": s.n,
      "logprobs": s.logprobs,
      "max_new_tokens": s.max_new_tokens,
      "stop": s.stop,
    },
  )


if __name__ == "__main__":
  cli()
