"""Makes training data for a proposer: the target itself answers prompts.

  specjax-distill-data --model=FOLDER --self_prompts=500 --output=DATA
  specjax-distill-data --model=FOLDER --prompts=a.jsonl --chat --output=DATA
  specjax-distill-data --model=FOLDER --prompts=texts/ --output=DATA --hidden=30
  specjax-distill-data --config=configs/distill_smollm2.py --output=DATA

Each prompt is answered at each of --temperatures, by the same engine as
specjax-generate. DATA gets shards of rows (prompt and answer as tokens, where
the answer begins and, with --hidden, the target's hidden states) and a manifest
that says whose they are; specjax-train reads them. Of an encoder-decoder they
are pairs of a source and an output. Prompts come in an order of the seed, so
that what an ended run has made is a fair sample of them. A run that was ended
by Ctrl-C, SIGTERM or a kill goes on with --resume; a kill costs the rows of
five seconds, which come out the same again. Exit code: 0 done (even where some
prompts could not be answered), 1 failed or none could, 2 wrong command line,
130 interrupted, 143 terminated.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import tqdm

from specjax.cli import command, distill_settings
from specjax.cli import settings as settings_lib

PROGRAM = "specjax-distill-data"
# Of the prompts that cannot be answered so many are named.
NAMED = 5


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; gives its exit code. See the module's docstring."""
  return command.run(PROGRAM, _main, argv)


def cli() -> None:
  """The console script."""
  command.leave(main())


def _main(argv: Sequence[str]) -> int:
  s = distill_settings.parse(argv)
  if s is None:
    print(settings_lib.help_text(__doc__, distill_settings.FIELDS))
    return 0
  # jax takes a second to import: wrong command lines fail before it.
  from specjax import api
  from specjax.training import self_prompts, shard_writer

  sources, held_out, held_digest = _prompts(s)
  target = api.load(s.model, dtype=s.dtype)
  if target.model.reads_source:
    _check_pairs(s)
  if s.self_prompts:
    self_prompts.check(target.tokenizer, s.first_words, s.capacity)
  about = _about(s, target, sources.digest, held_digest)
  with shard_writer.Writer(
    s.output, about, overwrite=s.overwrite, resume=s.resume
  ) as writer:
    if s.resume:
      _say(f"resuming: {len(writer.ids)} rows are there")
    if writer.complete:
      _say(f"{s.output} is complete: nothing left to do")
      return 0
    return _fill(s, target, sources, held_out, writer)


def _check_pairs(s: distill_settings.Settings) -> None:
  """Refuses what an encoder-decoder cannot make."""
  named = {
    "hidden": ",".join(map(str, s.hidden)),
    "self_prompts": s.self_prompts,
  }
  for name, value in named.items():
    if value:
      raise command.UsageError(
        f"--{name}={value} is for decoders alone, and --model={s.model} is an"
        " encoder-decoder, of which pairs are made; leave it out"
      )


def _prompts(s: distill_settings.Settings):
  """The prompts of files, the held-out ones, and a digest of these."""
  from specjax.training import prompt_sources

  try:
    sources = prompt_sources.read(s.prompts, chunk_chars=s.chunk_chars)
  except OSError as error:
    raise ValueError(
      f"--prompts={error.filename}: {(error.strerror or str(error)).lower()}"
    ) from None
  if s.prompts and not sources.rows:
    why = f": {sources.bad[0].error}" if sources.bad else ""
    raise ValueError(f"--prompts={','.join(s.prompts)} has no prompt{why}")
  if s.exclude is None:
    return sources, (), None
  try:
    held = prompt_sources.read([s.exclude], chunk_chars=s.chunk_chars)
  except OSError as error:
    raise ValueError(
      f"--exclude={s.exclude}: {(error.strerror or str(error)).lower()}"
    ) from None
  if held.bad or not held.rows:
    why = held.bad[0].error if held.bad else "there is no prompt in it"
    raise ValueError(f"--exclude={s.exclude}: {why}")
  return sources, held.rows, held.digest


def _about(s, target, digest: str, held_digest: str | None) -> dict[str, Any]:
  """What shapes the rows; where things lie and --slots may change."""
  from specjax.jobs import manifest

  config = target.model.config
  for layer in s.hidden:
    if layer > config.layers:
      raise command.UsageError(
        f"--hidden={','.join(map(str, s.hidden))}: {target.name} has"
        f" {config.layers} layers; give numbers from 0 to {config.layers}"
      )
  return {
    "target": {
      "files": manifest.digest_of_folder(target.folder),
      "tokenizer": target.tokenizer.fingerprint(),
      "vocab_size": config.vocab_size,
      "layers": config.layers,
      "d_model": config.d_model,
    },
    "settings": {
      "prompts": digest if s.prompts else None,
      "exclude": held_digest,
      "self_prompts": s.self_prompts,
      **({"first_words": list(s.first_words)} if s.first_words else {}),
      "temperatures": list(s.temperatures),
      "samples": s.samples,
      "max_new_tokens": s.max_new_tokens,
      "chat": s.chat,
      "chunk_chars": s.chunk_chars,
      "max_prompts": s.max_prompts,
      "dtype": s.dtype,
      "capacity": s.capacity,
      "seed": s.seed,
      # Another proposer draws other answers from the same law.
      "proposer": s.proposer,
      "lookahead": s.lookahead if s.proposer != "none" else 0,
    },
    "hidden": list(s.hidden),
  }


def _fill(s, target, sources, held_out, writer) -> int:
  """Makes the rows that are missing, and sums up."""
  from specjax import metrics
  from specjax.jobs import stopping
  from specjax.training import distill, prompt_sources

  engine = _engine(s, target)
  answers = distill.Answers(
    temperatures=s.temperatures,
    samples=s.samples,
    max_new_tokens=s.max_new_tokens,
    chat=s.chat,
    lookahead=s.lookahead if s.proposer != "none" else 0,
  )
  with stopping.patient() as stop:
    made = _self_prompts(s, engine, target, held_out, writer, stop)
    rows = prompt_sources.without(sources.rows, held_out)
    if dropped := len(sources.rows) - len(rows):
      _say(f"{dropped} prompts left out, which --exclude holds")
    rows = [*prompt_sources.drawn(rows, s.max_prompts, s.seed), *made]
    rows = prompt_sources.shuffled(rows, s.seed)
    result = distill.run(
      engine,
      rows,
      answers,
      encoder=target.tokenizer,
      writer=writer,
      hidden=distill.Hidden(engine.loop) if s.hidden else None,
      stop=stop,
    )
  for bad in sources.bad[:NAMED]:
    _say(f"{bad.id}, line {bad.line}: {bad.error}")
  for name, why in result.failed[:NAMED]:
    _say(f"{name}: {why}")
  if not result.interrupted:
    writer.finish()
  _say(metrics.table(result.summary))
  mean = result.answer_tokens / max(result.rows, 1)
  _say(
    f"{result.rows} of {result.wanted} rows in {s.output}: {result.tokens}"
    f" tokens, {result.answer_tokens} of them answers ({mean:.0f} a row)"
    + (f"; {len(sources.bad)} prompts unreadable" if sources.bad else "")
    + (f"; {len(result.failed)} not answered" if result.failed else "")
    + ("; --resume goes on" if result.interrupted else "")
  )
  if result.interrupted:
    return stopping.EXIT_CODES[stop.signal]
  return 0 if result.rows else 1


def _self_prompts(s, engine, target, held_out, writer, stop):
  """What the target makes up, where that is asked for."""
  from specjax.training import self_prompts

  if not s.self_prompts:
    return []
  journal = self_prompts.Journal(writer.folder)
  _say(f"asking {target.name} for {s.self_prompts} prompts …")
  with tqdm.tqdm(
    total=s.self_prompts,
    unit="prompt",
    file=sys.stderr,
    mininterval=0.2 if sys.stderr.isatty() else 10.0,
  ) as bar:

    def tell(count: int) -> None:
      bar.n = min(count, s.self_prompts)
      bar.update(0)

    rows = self_prompts.ask(
      engine,
      target.tokenizer,
      journal,
      count=s.self_prompts,
      max_new_tokens=s.max_new_tokens,
      first_words=s.first_words or ("",),
      held_out=held_out,
      stop=stop,
      tell=tell,
    )
  asked = len(journal.texts)
  if not stop():
    _say(f"{len(rows)} different prompts of {asked} that it was asked for")
  return rows


def _engine(s: distill_settings.Settings, target):
  """Loads and compiles."""
  from specjax import api, compilation_cache
  from specjax.engine import memory
  from specjax.proposers.recorder import Recorder

  if s.compilation_cache == "off":
    compilation_cache.disable()
  else:
    compilation_cache.enable(s.compilation_cache)
  start = time.perf_counter()
  _say(f"loading {target.name} …")
  proposer: Any = s.proposer
  if s.hidden:
    width = target.model.config.d_model
    proposer = Recorder(features=s.hidden, width=width)
  engine = api.Engine(
    target,
    proposer=proposer,
    lookahead=s.lookahead if s.proposer != "none" else None,
    slots=s.slots,
    capacity=s.capacity,
    seed=s.seed,
    max_memory=s.max_memory,
  )
  _say(memory.line(engine.memory, engine.memory_limit))
  engine.warmup()
  _say(f"loaded and compiled in {time.perf_counter() - start:.1f} s")
  return engine


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
  cli()
