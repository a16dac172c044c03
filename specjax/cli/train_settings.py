"""The settings of specjax-train, and which of them go together."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.cli import command, table
from specjax.cli import settings as settings_lib
from specjax.proposers import kinds

OPTIMIZERS = ("adamw", "muon")
KINDS = ("draft_model", "eagle", "medusa", "mtp")
DTYPES = settings_lib.FIELDS["dtype"].metadata["choices"]
_as_generate = functools.partial(table.again, settings_lib.FIELDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Every setting by the name of its flag; `help` says what each one is."""

  model: str | None = table.setting(
    None,
    "string",
    "the target, for which something is trained: a folder, a hub id (org/name)"
    " or a gs:// path",
  )
  proposer: str = table.setting(
    "draft_model", "choice", "what is trained", KINDS
  )
  output: str | None = table.setting(
    None,
    "string",
    "the folder for it, which --draft_model of other commands then names; the"
    " run's checkpoints and log lie in its folder training",
  )
  data: tuple[str, ...] = table.setting(
    (),
    "texts",
    "what to train on: a folder of specjax-distill-data; or text files, .jsonl"
    ' ({"text": "…"}, {"prompt": "…", "answer": "…"} or {"messages": […]}) or'
    " folders of both, of which .txt, .md, .rst and .jsonl are read; an"
    " encoder-decoder learns pairs of prompt and answer alone; may be given"
    " several times",
  )
  held_out: str | None = table.setting(
    None,
    "string",
    "what to look at and not to train on, named like --data; a share of --data"
    " if not given",
  )
  held_out_share: float = table.setting(
    0.02, "number", "how much of --data is held out"
  )
  learn_prompts: bool = table.setting(
    False, "switch", "train on the tokens of prompts too, not on answers alone"
  )
  loss: str | None = table.setting(
    None,
    "string",
    "losses and their weights, as kl:1,next_token:0.1: next_token (the token"
    " that came), kl (KL divergence from the target's law), tv (total"
    " variation: what is not accepted), feature (eagle: the state that came);"
    " if not given, kl, and for EAGLE-1 feature:1,kl:0.1",
  )
  layers: str | None = table.setting(
    None,
    "string",
    "draft_model: begin as these layers of the target, with commas between, as"
    " 0,1,29; one that is repeated adds nothing at first, so 0,0,1,1 begins as"
    " 0,1 does, in twice the layers",
  )
  size: tuple[str, ...] = table.setting(
    (),
    "texts",
    "draft_model: begin at random, with the target's config.json changed by"
    " this, as num_hidden_layers:2; may be given several times",
  )
  ends: str | None = table.setting(
    None,
    "choice",
    "draft_model: whose embedding and head it has: the target's, neither"
    " trained nor written; or its own; or the target's embedding and a head of"
    " its own. target if not given, where the width is the same",
    ("target", "own", "head"),
  )
  vocabulary: int = table.setting(
    0,
    "integer",
    "draft only so many ids, the most frequent ones in the data; 0 is all",
  )
  eagle: int | None = table.setting(
    None, "integer", "eagle: 1 (EAGLE-1, if not given) or 3 (EAGLE-3)"
  )
  start_layer: int | None = table.setting(
    None,
    "integer",
    "mtp and EAGLE-3: begin as this layer of the target; -1 is its last. At"
    " random if not given",
  )
  start_from: str | None = table.setting(
    None,
    "string",
    "begin with what was trained before: a folder of the same form, or the name"
    " of what specjax brings. Its list of ids stays",
  )
  fit: bool = table.setting(
    False,
    "switch",
    "begin with what least squares can fit to --data: EAGLE-1's first product,"
    " a draft_model's --ends=head",
  )
  unroll: int | None = table.setting(
    None,
    "integer",
    "eagle: train on so many of its own steps, each reading what the one before"
    " made; 1 if not given, 3 for EAGLE-3",
  )
  heads: int | None = table.setting(
    None,
    "integer",
    "medusa: how many heads, 4 if not given; mtp: how many modules, 1 if not"
    " given",
  )
  decay: float | None = table.setting(
    None,
    "number",
    "eagle, medusa, mtp: the weight of each further step, as a share of the"
    " one before; 0.8 if not given",
  )
  steps: int = table.setting(1000, "integer", "steps of the optimizer")
  batch: int = table.setting(8, "integer", "rows of a pass")
  length: int = table.setting(
    256,
    "integer",
    "tokens of a row; texts are packed into rows. Of pairs, of both sides, and"
    " the most that one may have",
  )
  accumulate: int = table.setting(
    1, "integer", "passes of a step, whose gradients are summed"
  )
  optimizer: str = table.setting(
    "adamw",
    "choice",
    "who steps matrices: adamw, or muon, which learns more from few tokens;"
    " norms, biases and tables of ids are Adam's",
    OPTIMIZERS,
  )
  learning_rate: float = table.setting(
    1e-3, "number", "the highest; it rises in a line and falls as a cosine"
  )
  warmup: int | None = table.setting(
    None,
    "integer",
    "steps in which the learning rate rises; a twentieth of --steps if not"
    " given",
  )
  final_rate: float = table.setting(
    0.1, "number", "the last learning rate, as a share of the highest"
  )
  weight_decay: float = table.setting(
    0.0,
    "number",
    "of matrices alone; with --optimizer=muon, of those that it steps",
  )
  clip: float = table.setting(
    1.0, "number", "the largest norm of all gradients together; 0 is none"
  )
  seed: int = table.setting(
    0, "integer", "of the data's order and of what begins at random"
  )
  dtype: str = table.setting(
    "float32",
    "choice",
    "of the arithmetic; the weights that are trained are float32 beside it",
    DTYPES,
  )
  save_dtype: str = table.setting(
    "float32", "choice", "of the weights that are written", DTYPES
  )
  log_every: int = table.setting(10, "integer", "steps of a line of the log")
  evaluate_every: int = table.setting(
    100, "integer", "steps between looks at what is held out"
  )
  evaluate_batches: int = table.setting(
    8, "integer", "batches of it that are looked at, at most"
  )
  save_every: int = table.setting(100, "integer", "steps between checkpoints")
  plot: str | None = table.setting(
    None,
    "string",
    "the file for a picture of the losses: .png, .pdf or .svg; loss.png beside"
    " the log, where matplotlib is installed, if not given",
  )
  mesh: str | None = _as_generate("mesh")
  strategy: str | Mapping[str, Any] | None = _as_generate("strategy")
  compilation_cache: str | None = _as_generate("compilation_cache")
  overwrite: bool = table.setting(
    False, "switch", "start anew in a folder that holds files"
  )
  resume: bool = table.setting(
    False,
    "switch",
    "go on with a run that was ended, from its last checkpoint; from the"
    " beginning where there is none",
  )


FIELDS = table.fields_of(Settings)
_NEEDED = {
  "model": table.MODEL,
  "output": "the folder to write",
  "data": "a folder of specjax-distill-data, or texts",
}
# Settings of some kinds alone.
_ONLY = {
  "layers": ("draft_model",),
  "size": ("draft_model",),
  "ends": ("draft_model",),
  "eagle": ("eagle",),
  "unroll": ("eagle",),
  "fit": ("eagle", "draft_model"),
  "start_layer": ("eagle", "mtp"),
  "heads": ("medusa", "mtp"),
  "decay": ("eagle", "medusa", "mtp"),
}
_LEAST = {
  "vocabulary": 0,
  "unroll": 1,
  "heads": 1,
  "steps": 1,
  "batch": 1,
  "length": 8,
  "accumulate": 1,
  "warmup": 0,
  "weight_decay": 0,
  "clip": 0,
  "seed": 0,
  "final_rate": 0,
  "log_every": 1,
  "evaluate_every": 1,
  "evaluate_batches": 1,
  "save_every": 1,
}
# What a resumed run may have otherwise: it changes no parameter.
FREE = (
  "output", "plot", "compilation_cache", "overwrite", "resume", "log_every",
  "evaluate_every", "evaluate_batches", "save_every", "save_dtype", "mesh",
  "strategy", "model", "data", "held_out",
)  # fmt: skip


def parse(argv: Sequence[str]) -> Settings | None:
  """Reads a command line.

  Args:
    argv: the command line, program name first.

  Returns:
    What it and its --config set; None where it asks for help.

  Raises:
    UsageError: names the flag, its value and the fix.
  """
  if table.asks_for_help(argv):
    return None
  given, config = settings_lib.read(
    FIELDS, argv, instead="what to train on goes in --data"
  )
  s = Settings(**{**config, **given})
  _check(s, {**config, **given})
  return s


def steps_of(s: Settings) -> int:
  """How many are trained: EAGLE's own steps, Medusa's heads, or modules."""
  default = {
    "eagle": 1 if _predicts_states(s) else 3,
    "medusa": kinds.MEDUSA_HEADS,
    "mtp": kinds.MTP_MODULES,
  }
  return s.unroll or s.heads or default.get(s.proposer, 1)


def losses_of(s: Settings) -> dict[str, float]:
  """The losses and their weights; errors as `parse`."""
  from specjax.training import losses

  text = s.loss
  if text is None:
    text = "feature:1,kl:0.1" if _predicts_states(s) else "kl:1"
  try:
    found = losses.parse(text)
  except ValueError as error:
    raise command.UsageError(f"--loss={s.loss}: {error}") from None
  if "feature" in found and not _predicts_states(s):
    raise command.UsageError(
      f"--loss={s.loss}: feature is EAGLE-1's; leave it out"
    )
  return found


def _predicts_states(s: Settings) -> bool:
  """Whether it is EAGLE-1."""
  return s.proposer == "eagle" and s.eagle != 3


def _check(s: Settings, given: Mapping[str, Any]) -> None:
  """Refuses what cannot be or does nothing."""

  def named(name: str) -> str:
    return table.named(name, given.get(name, getattr(s, name)))

  table.check_needed(s, _NEEDED)
  for name, whose in _ONLY.items():
    if name in given and s.proposer not in whose:
      raise command.UsageError(
        f"{named(name)} does nothing with --proposer={s.proposer}; leave it out"
      )
  table.check_least(s, _LEAST)
  for name, most in (("held_out_share", 0.5), ("decay", 1.0)):
    value = getattr(s, name)
    if value is not None and not 0 < value <= most:
      raise command.UsageError(
        f"{named(name)} is out of range; give more than 0 and at most {most}"
      )
  if not 0 < s.learning_rate < math.inf:
    raise command.UsageError(
      f"{named('learning_rate')} is out of range; give more than 0"
    )
  if s.warmup is not None and s.warmup >= s.steps:
    raise command.UsageError(
      f"{named('warmup')} is no less than --steps={s.steps}; give a"
      " smaller one, or more --steps"
    )
  if s.final_rate > 1:
    raise command.UsageError(
      f"{named('final_rate')} is out of range; give at most 1"
    )
  if s.eagle not in (None, 1, 3):
    raise command.UsageError(f"{named('eagle')} is no EAGLE; give 1 or 3")
  if s.start_layer is not None and _predicts_states(s):
    raise command.UsageError(
      f"{named('start_layer')} is for EAGLE-3: EAGLE-1's layer reads what no"
      " layer of the target does; leave it out, or give --eagle=3"
    )
  if s.fit and s.proposer == "eagle" and not _predicts_states(s):
    raise command.UsageError(
      f"{named('fit')} is for EAGLE-1: EAGLE-3 predicts tokens and no states;"
      " leave it out"
    )
  if s.fit and s.proposer == "draft_model" and s.ends != "head":
    raise command.UsageError(
      f"{named('fit')} fits a draft_model's own head; leave it out, or give"
      " --ends=head"
    )
  if s.start_from is not None:
    for name in ("fit", "start_layer"):
      if getattr(s, name) not in (None, False):
        raise command.UsageError(
          f"{named(name)} and {named('start_from')} are two beginnings; leave"
          " out one of the two"
        )
  if s.held_out is not None and "held_out_share" in given:
    raise command.UsageError(
      f"{named('held_out_share')} does nothing with --held_out; leave it out"
    )
  if s.resume and s.overwrite:
    raise command.UsageError(
      "--overwrite and --resume exclude each other; keep one"
    )
  if s.strategy is not None and s.mesh is None:
    raise command.UsageError(
      f"{named('strategy')} does nothing without --mesh; leave it out"
    )
  if s.decay is not None and steps_of(s) == 1:
    raise command.UsageError(
      f"{named('decay')} does nothing where one step is trained; leave it out,"
      f" or give more with --{'unroll' if s.proposer == 'eagle' else 'heads'}"
    )
  table.check_filled(
    s, ("plot", "held_out", "compilation_cache", "loss", "start_from")
  )
  if s.proposer == "draft_model":
    _check_draft(s, named)


def _check_draft(s: Settings, named) -> None:
  if (s.layers is None) == (not s.size):
    what = "are both given" if s.size else "are both missing"
    raise command.UsageError(
      f"--layers and --size {what}; a draft model begins as layers of the"
      " target (--layers=0,1,29), or at random (--size=num_hidden_layers:2)"
    )
  for one in s.size:
    key, _, value = one.partition(":")
    if not key.strip() or not value.strip().isdigit():
      raise command.UsageError(
        f"--size={one}: give a key of config.json and a whole number, as"
        " num_hidden_layers:2"
      )
  if s.layers is not None:
    parts = [part.strip() for part in s.layers.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
      raise command.UsageError(
        f"--layers={s.layers}: give numbers from 0 with commas between, as"
        " 0,1,29"
      )
