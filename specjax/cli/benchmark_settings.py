"""The settings of specjax-benchmark, and which of them go together."""

import dataclasses
import functools
from collections.abc import Sequence

from absl import flags

from specjax.benchmark import asked
from specjax.cli import command, settings, table
from specjax.proposers import kinds

# By name only: their modules import jax, and wrong command lines fail before.
PEERS = ("transformers", "llama_cpp")
SWEEPS = ("none", "batch", "live", "capacity", "startup")
_as_generate = functools.partial(table.again, settings.FIELDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Every setting by the name of its flag; `help` says what each one is."""

  model: str | None = table.setting(
    None, "string", "the model: a folder, a hub id (org/name) or a gs:// path"
  )
  draft_model: str | None = table.setting(
    None,
    "string",
    "the folder of the runs that draft with one and name none of their own, and"
    " of a peer's assistant; named like --model, or by the name of what specjax"
    " brings",
  )
  draft_layers: str | None = table.setting(
    None,
    "string",
    "the layers of the runs layer_skip that name none of their own: the first"
    " 8, as 8, or which, as 0,1,5,29",
  )
  prompts: str | None = table.setting(
    None, "string", "a file of prompts, as specjax-generate takes it"
  )
  chat: bool = table.setting(
    False, "switch", "put prompts through the model's chat template"
  )
  runs: tuple[str, ...] = table.setting(
    "plain,ngram",
    "string",
    "what to measure, with commas between; plain always is, and else "
    + ", ".join(kind for kind in asked.KINDS if kind != asked.PLAIN)
    + ". A run may name its own folder (or layers) and lookahead, and how many"
    " siblings beside: eagle:FOLDER@4,eagle:FOLDER@3+4,layer_skip:8@3,"
    "layer_skip:0+1+5@3,ngram@6",
  )
  lookahead: tuple[int, ...] = table.setting(
    "4",
    "string",
    "tokens drafted a step, at most, by runs that do not say; several with"
    " commas between are a run each",
  )
  draft_weights: str | None = _as_generate("draft_weights")
  ngram_min: int = _as_generate("ngram_min")
  ngram_max: int = _as_generate("ngram_max")
  verifier: str = _as_generate("verifier")
  dtype: str = _as_generate("dtype")
  temperature: float = _as_generate("temperature")
  seed: int | None = _as_generate("seed")
  max_new_tokens: int = table.setting(
    64, "integer", "the longest answer, in tokens"
  )
  slots: int = _as_generate("slots")
  capacity: int | None = table.setting(
    None,
    "integer",
    "tokens a slot can hold; the model's context, at most 2048, if not given,"
    " and 4096 for the sweeps live and capacity",
  )
  rounds: int = table.setting(
    5, "integer", "how often everything is measured; medians are reported"
  )
  peer: tuple[str, ...] = table.setting(
    (),
    "texts",
    "transformers or llama_cpp: measured beside ours on the same weights,"
    " prompts and lengths; may be given several times",
  )
  gguf: str | None = table.setting(
    None,
    "string",
    "the model for llama_cpp; written from --model into the user's cache"
    " folder if not given",
  )
  sweep: str = table.setting(
    "none",
    "choice",
    "instead of runs: tokens a second against the slots, a step against live"
    " tokens or the capacity, or seconds to the first token",
    SWEEPS,
  )
  json: str | None = table.setting(
    None, "string", "the file for all results, written as they come"
  )
  plot: str | None = table.setting(
    None, "string", "the file for a picture of the results: .png, .pdf or .svg"
  )
  compilation_cache: str | None = _as_generate("compilation_cache")


FIELDS = table.fields_of(Settings)
# What each sweep heeds, beside the settings that hold for all.
_ALWAYS = {"model", "dtype", "rounds", "sweep", "json", "plot", "capacity"}
_SWEPT = {
  "batch": {
    "prompts", "chat", "lookahead", "ngram_min", "ngram_max", "temperature",
    "seed", "max_new_tokens", "compilation_cache",
  },
  "live": {"compilation_cache"},
  "capacity": {"compilation_cache"},
  "startup": set(),
}  # fmt: skip
# What names something, and so is not empty.
_NAMED = (
  "json", "plot", "compilation_cache", "gguf", "draft_model", "draft_layers",
)  # fmt: skip
_LEAST = {
  "ngram_min": 1,
  "temperature": 0,
  "max_new_tokens": 2,
  "slots": 1,
  "capacity": 2,
  "rounds": 1,
}


def parse(argv: Sequence[str]) -> Settings | None:
  """Reads a command line.

  Args:
    argv: the command line, program name first.

  Returns:
    What it sets, with lists taken apart; None where it asks for help.

  Raises:
    UsageError: names the flag, its value and the fix.
  """
  if table.asks_for_help(argv):
    return None
  values = flags.FlagValues()
  table.define(FIELDS, values)
  given = table.read(values, argv, instead="prompts go in --prompts")
  s = Settings(**given)

  def count(part: str) -> int:
    if not (part.isascii() and part.isdigit() and int(part)):
      raise ValueError(
        f"--lookahead={s.lookahead}: give whole numbers above 0, with commas"
        " between"
      )
    return int(part)

  lookahead = table.listed("lookahead", s.lookahead, count)
  runs = [part.strip() for part in s.runs.split(",")]
  try:
    asked.every(runs, lookahead)
  except ValueError as error:
    raise command.UsageError(f"--runs={s.runs}: {error}") from None
  s = dataclasses.replace(
    s,
    runs=tuple(dict.fromkeys(("plain", *runs))),
    lookahead=lookahead,
  )
  _check(s, given)
  return s


def _check(s: Settings, given: dict) -> None:
  """Refuses what cannot be or does nothing."""

  def named(name: str) -> str:
    return table.named(name, given.get(name, getattr(s, name)))

  table.check_needed(s, {"model": table.MODEL})
  table.check_least(s, {**_LEAST, "ngram_max": s.ngram_min})
  for name in s.peer:
    if name not in PEERS:
      raise command.UsageError(
        f"--peer={name} is unknown{table.hint(name, PEERS)}; give"
        f" {' or '.join(PEERS)}"
      )
  if len(set(s.peer)) < len(s.peer):
    raise command.UsageError(f"--peer={s.peer[0]} is given twice; keep one")
  table.check_filled(s, _NAMED)
  for name, reason in _idle(s).items():
    if name in given:
      raise command.UsageError(
        f"{named(name)} does nothing {reason}; leave it out"
      )
  if s.sweep in ("none", "batch") and not s.prompts:
    raise command.UsageError("--prompts is missing; name a file of prompts")
  if s.sweep == "batch" and len(s.lookahead) > 1:
    raise command.UsageError(
      f"{named('lookahead')}: --sweep=batch takes one; keep one"
    )
  if s.sweep == "none":
    _check_drafts(s, given)
  if s.peer and s.temperature:
    raise command.UsageError(
      f"--peer={s.peer[0]} is compared greedily; leave out"
      f" {named('temperature')}, or the peer"
    )
  if s.peer and s.slots > 1:
    raise command.UsageError(
      f"--peer={s.peer[0]} answers one prompt at a time; leave out"
      f" {named('slots')}, or the peer"
    )


def _check_drafts(s: Settings, given: dict) -> None:
  """Refuses runs that do not know what they draft with."""
  runs = [asked.parse(text) for text in s.runs]
  if s.draft_layers is not None:
    try:
      kinds.layers(s.draft_layers)
    except ValueError as error:
      raise command.UsageError(
        f"--draft_layers={s.draft_layers}: {error}"
      ) from None
  needing = asked.folderless(runs)
  for kind in needing:
    reads, optional = kinds.KINDS[kind].reads, kinds.KINDS[kind].optional
    if s.draft_model is None and not optional:
      raise command.UsageError(
        f"--runs={given['runs']}: {kind} needs --draft_model, or {kind}:FOLDER;"
        f" name {reads}"
      )
  if s.draft_model is not None and len(needing) > 1:
    raise command.UsageError(
      f"--draft_model={s.draft_model} cannot be for {' and '.join(needing)};"
      f" say in --runs which each drafts with, as {needing[0]}:FOLDER"
    )
  if s.draft_layers is None and any(map(_is_bare_skip, runs)):
    raise command.UsageError(
      f"--runs={given['runs']}: layer_skip needs --draft_layers, or"
      " layer_skip:8 for the first 8 layers"
    )


def _is_bare_skip(run: asked.Asked) -> bool:
  return run.kind == "layer_skip" and run.what is None


def _idle(s: Settings) -> dict[str, str]:
  """Flags that the others leave without effect, and beside what."""
  if s.sweep != "none":
    heeded = _ALWAYS | _SWEPT[s.sweep]
    idle = {n: f"with --sweep={s.sweep}" for n in FIELDS if n not in heeded}
  else:
    idle = {}
    runs = [asked.parse(text) for text in s.runs]
    drafting = [run for run in runs if run.kind != asked.PLAIN]
    some = f"without a run that drafts (--runs={','.join(s.runs)})"
    if not drafting:
      idle |= {"verifier": some}
    # An assistant of transformers tries them too.
    if not ("transformers" in s.peer and s.draft_model):
      if not drafting:
        idle["lookahead"] = some
      elif all(run.lookahead is not None for run in drafting):
        idle["lookahead"] = "where every run has its own"
    if all(run.kind != "ngram" for run in runs):
      idle |= dict.fromkeys(
        ("ngram_min", "ngram_max"), "without ngram in --runs"
      )
    if not asked.folderless(runs) and "transformers" not in s.peer:
      idle["draft_model"] = "without a run that drafts with it"
    if not any(run.reads for run in runs):
      idle["draft_weights"] = "without a run that has weights of its own"
    if not any(map(_is_bare_skip, runs)):
      idle["draft_layers"] = "without a run layer_skip that has none of its own"
    if "llama_cpp" not in s.peer:
      idle["gguf"] = "without --peer=llama_cpp"
  if not s.temperature and "seed" not in idle:
    idle["seed"] = "at temperature 0"
  return idle
