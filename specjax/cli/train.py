"""Trains what drafts for a model: a small model, or heads on its states.

  specjax-train --model=TARGET --data=TEXTS --layers=0,1,29 --output=DRAFT
  specjax-train --config=configs/train_smollm2_eagle.py --output=HEAD
  specjax-generate --model=TARGET --proposer=draft_model --draft_model=DRAFT …

An encoder-decoder learns pairs of prompt and answer, and its own begin too:
--size and --loss=next_token need nothing of TARGET but its sizes and tokenizer.

The best data are the target's own answers, with its states
(specjax-distill-data --hidden); without states the target reads along, one more
pass of it for every batch. OUTPUT becomes the folder that
--draft_model of other commands names; its folder training has checkpoints, a
log of JSON lines and a picture of the losses. A run that was ended goes on with
--resume, to the very same weights. Held-out figures: acceptance is Σ min(p, q),
the share of drafts kept at temperature 1; agreement that at temperature 0. The
log's same figures without held_out_ are of the first row of each batch alone,
to save time. Exit code: 0 done, 1 failed, 2 wrong command line, 130
interrupted, 143 terminated.
"""

import dataclasses
import hashlib
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import tqdm

from specjax.cli import command, train_settings
from specjax.cli import settings as settings_lib
from specjax.jobs import stopping

PROGRAM = "specjax-train"
RUN = "training"  # the folder in the output's with all that is the run's
SETTINGS = "settings.json"


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; gives its exit code. See the module's docstring."""
  return command.run(PROGRAM, _main, argv)


def cli() -> None:
  """The console script."""
  command.leave(main())


def _main(argv: Sequence[str]) -> int:
  s = train_settings.parse(argv)
  if s is None:
    print(settings_lib.help_text(__doc__, train_settings.FIELDS))
    return 0
  output = pathlib.Path(s.output)
  _check_output(s, output)
  # jax takes a second to import: wrong command lines fail before it.
  from specjax import compilation_cache, pictures
  from specjax.training import plots, trainer

  weights = train_settings.losses_of(s)
  if s.plot is not None:
    pictures.check(s.plot)
  if s.compilation_cache == "off":
    compilation_cache.disable()
  else:
    compilation_cache.enable(s.compilation_cache)
  target, placement = _target(s)
  corpus, held_out = _corpora(s, target)
  rows, looked = _rows(s, target, corpus), _rows(s, target, held_out)
  # A run that goes on has left its beginning behind.
  fits = s.fit and not (s.resume and trainer.has_begun(output / RUN))
  objective = _objective(
    s, target, placement, corpus, weights, rows if fits else None
  )
  _claim(s, output, target, corpus)
  made = trainer.Trainer(objective, _options(s))
  _say(_summary(s, made, rows, looked, corpus.is_pairs))
  with stopping.patient() as stop, _Progress(s.steps) as progress:
    state, done = trainer.run(
      made,
      rows,
      looked,
      output / RUN,
      evaluate_batches=s.evaluate_batches,
      stop=stop,
      tell=progress,
    )
  if not done:
    _say(
      f"{stopping.NAMES[stop.signal]} after step {int(state['step'])}; go on"
      " with --resume"
    )
    return stopping.EXIT_CODES[stop.signal]
  objective.save(state["params"], output)
  plot = s.plot
  if plot is None and pictures.is_possible():
    plot = output / RUN / "loss.png"
  if plot is not None:
    title = f"{s.proposer} for {s.model}"
    plots.draw(trainer.read_log(output / RUN / trainer.LOG), plot, title)
  _say(f"wrote {output}")
  return 0


def _check_output(s: train_settings.Settings, output: pathlib.Path) -> None:
  """Refuses a folder in which something would be lost."""
  if output.exists() and not output.is_dir():
    raise command.UsageError(f"--output={output} is a file; name a folder")
  there = output.is_dir() and any(output.iterdir())
  if there and not (s.resume or s.overwrite):
    raise command.UsageError(
      f"--output={output} holds something already; name another folder, or go"
      " on with --resume, or start anew with --overwrite"
    )
  if there and s.resume and not (output / RUN).is_dir():
    raise command.UsageError(
      f"--resume: {output} holds something and no run of {PROGRAM}; name"
      " another folder in --output"
    )
  if output.resolve() == pathlib.Path(s.model).resolve():
    raise command.UsageError(
      f"--output={output} is the target's own folder; name another"
    )


def _target(s: train_settings.Settings) -> tuple[Any, Any]:
  """The target, and the placement of what is trained."""
  from specjax import pretrained

  target = pretrained.load(
    s.model, dtype=s.dtype, mesh=s.mesh, strategy=s.strategy
  )
  if target.model.reads_source:
    _check_pairs(s)
  return target, target.model.placement


def _check_pairs(s: train_settings.Settings) -> None:
  """Refuses what an encoder-decoder is not trained with."""
  if s.proposer != "draft_model":
    raise command.UsageError(
      f"--proposer={s.proposer}: --model={s.model} is an encoder-decoder, and"
      " heads on one are not trained; give --proposer=draft_model"
    )
  for name in ("learn_prompts", "fit"):
    if getattr(s, name):
      raise command.UsageError(
        f"--{name} is for decoders alone, and --model={s.model} is an"
        " encoder-decoder; leave it out"
      )


def _corpora(s: train_settings.Settings, target: Any) -> tuple[Any, Any]:
  """What to train on and what is held out."""
  from specjax.training import data

  corpus = data.join(
    [_corpus("data", name, target, s.length) for name in s.data]
  )
  # The first token of a text is never predicted, of a prompt or not.
  if s.learn_prompts and not (corpus.answer > 1).any():
    given = " ".join(f"--data={name}" for name in s.data)
    raise command.UsageError(
      f"--learn_prompts does nothing with {given}: no text there answers a"
      " prompt, so all of it is learned anyway; leave it out"
    )
  if s.held_out is not None:
    held_out = _corpus("held_out", s.held_out, target, s.length)
    data.check_alike(corpus, held_out)
    return corpus, held_out
  return corpus.split(s.held_out_share, s.length)


def _corpus(flag: str, name: str, target: Any, length: int) -> Any:
  from specjax.training import data, shards, texts

  size = target.model.config.vocab_size
  pairs = length if target.model.reads_source else None
  try:
    if (pathlib.Path(name) / shards.MANIFEST).is_file():
      return data.from_shards(name, target=target)
    return texts.corpus(name, target.tokenizer, vocab_size=size, pairs=pairs)
  except OSError as error:
    raise ValueError(f"--{flag}={name}: {error}") from None
  except ValueError as error:
    raise ValueError(f"--{flag}: {error}") from None


def _objective(s, target, placement, corpus, weights, fitted_to) -> Any:
  from specjax.training import begun, objective, recipes

  before = None
  if s.start_from is None:
    kept = recipes.kept_ids(
      corpus, target, s.vocabulary, prompts=s.learn_prompts
    )
  else:
    before = begun.read(s.start_from, s.proposer, target)
    kept = begun.check_vocabulary(before, s.vocabulary)
  if s.proposer != "draft_model":
    made = recipes.head(
      s.proposer,
      target,
      kept,
      corpus.layers,
      weights,
      seed=s.seed,
      fuses=s.eagle == 3,
      steps=train_settings.steps_of(s),
      start_layer=s.start_layer,
      decay=0.8 if s.decay is None else s.decay,
      dtype=s.save_dtype,
      fitted_to=fitted_to,
    )
    return made if before is None else begun.chain(made, before)
  law = objective.Law(
    target=target.model,
    kept=kept,
    layers=(target.model.config.layers,),
    stored=corpus.layers,
  )
  made = recipes.draft(
    target,
    law,
    weights,
    placement=placement,
    layers=s.layers and tuple(map(int, s.layers.split(","))),
    size={k: int(v) for k, _, v in (one.partition(":") for one in s.size)},
    ends=s.ends,
    dtype=s.save_dtype,
    seed=s.seed,
    fitted_to=fitted_to,
  )
  return made if before is None else begun.draft(made, before)


def _rows(s: train_settings.Settings, target: Any, corpus: Any) -> Any:
  from specjax.training import packing

  if corpus.is_pairs:
    start = target.model.config.start_id
    return packing.Pairs(corpus, s.length, start=start)
  return packing.Rows(corpus, s.length, prompts=s.learn_prompts)


def _options(s: train_settings.Settings) -> Any:
  from specjax.training import optimizer, trainer

  return trainer.Options(
    optimizer=optimizer.Options(
      learning_rate=s.learning_rate,
      steps=s.steps,
      kind=s.optimizer,
      warmup=s.steps // 20 if s.warmup is None else s.warmup,
      final=s.final_rate,
      weight_decay=s.weight_decay,
      clip=s.clip,
    ),
    batch=s.batch,
    accumulate=s.accumulate,
    seed=s.seed,
    log_every=s.log_every,
    evaluate_every=s.evaluate_every,
    save_every=s.save_every,
  )


def _claim(s, output: pathlib.Path, target, corpus) -> None:
  """Holds a resumed run to its settings; writes down those of a new one."""
  import shutil

  from specjax.jobs import manifest
  from specjax.training import shard_writer

  fields = dataclasses.asdict(s)
  said = {k: v for k, v in fields.items() if k not in train_settings.FREE}
  digest = hashlib.sha256(corpus.tokens.tobytes())
  digest.update(corpus.starts.tobytes() + corpus.answer.tobytes())
  said["data"] = digest.hexdigest()
  said["target"] = manifest.digest_of_folder(target.folder)
  said = json.loads(json.dumps(said))  # As it comes back.
  path = output / RUN / SETTINGS
  if s.resume and path.is_file():
    begun = json.loads(path.read_text())
    for name in said | begun:
      if said.get(name) != begun.get(name):
        what = f"--{name}={said.get(name)}, and it was begun with"
        if name in ("data", "target"):
          what = f"another --{'model' if name == 'target' else name} than"
        raise ValueError(
          f"--resume: {output} has a run of {what} {begun.get(name)}; give the"
          " same again, or start anew with --overwrite"
        )
    return
  shutil.rmtree(output / RUN, ignore_errors=True)
  path.parent.mkdir(parents=True, exist_ok=True)
  shard_writer.write(path, (json.dumps(said, indent=2) + "\n").encode())


def _summary(s, made, rows, looked, pairs: bool) -> str:
  text = (
    f"{s.proposer}: {made.size / 1e6:.1f}M parameters to train; {rows.tokens}"
    f" tokens in {len(rows)} rows of {s.length}, {looked.tokens} held out;"
    f" {s.steps} steps of {s.batch * s.accumulate} rows"
  )
  law = made.objective.law
  if not law.is_stored and {"kl", "tv"} & set(made.objective.weights):
    text += "; the target reads along, to say what it thinks of each token"
    if not pairs:
      layers = ",".join(map(str, sorted(set(law.layers))))
      text += f" (data of specjax-distill-data --hidden={layers} would say it)"
  return text


class _Progress:
  """A bar, and a line for each look at what is held out."""

  def __init__(self, steps: int):
    self._steps = steps
    self._bar: tqdm.tqdm | None = None

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self._bar is not None:
      self._bar.close()

  def __call__(self, row: dict[str, Any]) -> None:
    step = row["step"]
    if self._bar is None:
      self._bar = tqdm.tqdm(
        total=self._steps,
        initial=step,  # A resumed run's speed is that of its own steps.
        unit="step",
        disable=None,
        file=sys.stderr,
      )
    self._bar.update(step - self._bar.n)
    if "tokens_per_s" in row:
      shown = {"loss": f"{row['loss']:.3f}"}
      self._bar.set_postfix(
        shown | {"tokens/s": f"{row['tokens_per_s']:.0f}"}, refresh=False
      )
    held = {k: v for k, v in row.items() if k.startswith("held_out_")}
    if held:
      figures = ", ".join(
        f"{name.removeprefix('held_out_')} {value:.3f}"
        for name, value in held.items()
      )
      self._bar.write(f"step {step}: held-out {figures}", file=sys.stderr)


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
  cli()
