"""The settings of specjax-lab, and what a config says of a pair."""

import dataclasses
import pathlib
import runpy
from collections.abc import Collection, Sequence

from absl import flags

from specjax.cli import command, lab_lists, settings, table, train_settings
from specjax.lab import strategy as strategy_lib
from specjax.lab import topology as topology_lib
from specjax.models import presets
from specjax.proposers import kinds

# Of `lab.drafting`, which needs jax.
PROPOSERS = tuple(kinds.KINDS)
_HEADS = ("medusa", "eagle", "mtp")
# Settings of some proposers alone.
_ONLY = {
  "draft_layers": ("layer_skip",),
  "eagle": ("eagle",),
  "heads": ("medusa", "mtp"),
  "vocabulary": _HEADS,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Every setting by the name of its flag; `help` says what each one is."""

  config: str | None = table.setting(
    None,
    "string",
    "the pair: a config of specjax-generate, whose PRESETS name the sizes of"
    " target and draft, or whose model and draft_model are folders here; no"
    " weights are read",
  )
  topology: str | None = table.setting(
    None,
    "string",
    "slices to compile for, as in v4:2x2x4,v5e:4x4; kinds are "
    + ", ".join(topology_lib.CHIPS),
  )
  strategies: str | None = table.setting(
    None,
    "string",
    "how the pair is split, each TARGET[/DRAFT][+rows|+sequence][@DATAxMODEL],"
    " as in tensor,tensor/replicated,tensor+rows,tensor2d@4x4; the config's"
    " if not given",
  )
  proposers: str | None = table.setting(
    None,
    "string",
    f"who drafts, of {', '.join(PROPOSERS)}, as in ngram,draft_model; the"
    " config's. Heads have the sizes that specjax-train gives them",
  )
  draft_layers: str | None = table.again(settings.FIELDS, "draft_layers")
  eagle: int | None = table.again(train_settings.FIELDS, "eagle")
  heads: int | None = table.again(train_settings.FIELDS, "heads")
  vocabulary: int = table.setting(
    0,
    "integer",
    "eagle, medusa, mtp: draft only so many of the model's ids; 0 is all",
  )
  batch: str | None = table.setting(
    None, "string", "rows at once, as in 1,8,64; the config's slots"
  )
  lookahead: str | None = table.setting(
    None, "string", "drafts a step, as in 0,4,8; the config's. 0 drafts nothing"
  )
  siblings: str | None = table.setting(
    None,
    "string",
    "second guesses, checked beside the drafts, as in 0,4; the config's",
  )
  context: str | None = table.setting(
    None, "string", "most tokens of a row, as in 2048,8192; the config's"
  )
  live: str | None = table.setting(
    None,
    "string",
    "how many tokens rows have when the step runs; the context, if not given",
  )
  acceptance: str | None = table.setting(
    None,
    "string",
    "how often a draft is accepted, for the speed-ups over lookahead 0;"
    " 0.6,0.7,0.8,0.9 if not given",
  )
  dtype: str | None = table.setting(
    None,
    "choice",
    "of weights and caches; the config's",
    ("float32", "bfloat16"),
  )
  smallest: bool = table.setting(
    False,
    "switch",
    "find the smallest slice of each kind that has room, instead of --topology",
  )
  against: str | None = table.setting(
    None, "string", "another config, to be put beside the first"
  )
  json: str | None = table.setting(
    None, "string", "write all that is known of every row into this file"
  )
  csv: str | None = table.setting(
    None, "string", "write the rows into this file, for a spreadsheet"
  )
  plot: str | None = table.setting(
    None,
    "string",
    "draw memory, traffic, speed-ups and the strategies' trade-off into this"
    " file (.png, .pdf, .svg; needs matplotlib)",
  )


FIELDS = table.fields_of(Settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
  """A checked command line.

  Attributes:
    settings: as given.
    config, against: what the configs say; None where there is none.
    topologies, strategies, proposers, batch, lookahead, siblings, context,
      live, acceptance: the lists; live is None for the context, and acceptance
      for the table's own.
  """

  settings: Settings
  config: "Config"
  against: "Config | None"
  topologies: tuple[topology_lib.Topology, ...]
  strategies: tuple[strategy_lib.Strategy, ...]
  proposers: tuple[str, ...]
  batch: tuple[int, ...]
  lookahead: tuple[int, ...]
  siblings: tuple[int, ...]
  context: tuple[int, ...]
  live: tuple[int, ...] | None
  acceptance: tuple[float, ...] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """What a config file says of a pair.

  Attributes:
    name: the file's, for tables.
    settings: as specjax-generate reads them.
    target, draft: presets or folders; draft is None where the config names
      none.
  """

  name: str
  settings: settings.Settings
  target: str
  draft: str | None


def parse(argv: Sequence[str]) -> Asked | None:
  """Reads a command line.

  Args:
    argv: the command line, program name first.

  Returns:
    What it asks for; None where it asks for help.

  Raises:
    UsageError: a flag or the config is wrong; says which and how it is right.
  """
  if table.asks_for_help(argv):
    return None
  values = flags.FlagValues()
  table.define(FIELDS, values)
  given = table.read(values, argv, instead="give --config and --topology")
  s = Settings(**given)
  if s.config is None:
    raise command.UsageError(
      "--config is missing; give one, as configs/chinchilla_70b.py"
    )
  if (s.topology is None) != s.smallest:
    raise command.UsageError(
      "--topology is missing; name slices, as v4:2x2x4, or give --smallest"
      if s.topology is None
      else f"--topology={s.topology} does nothing beside --smallest, which"
      " looks through the slices of every kind; leave one out"
    )
  if s.against is not None and (s.smallest or s.csv or s.plot):
    other = "smallest" if s.smallest else "csv" if s.csv else "plot"
    raise command.UsageError(
      f"--{other} does nothing beside --against; leave one out"
    )
  config = read_config("config", s.config)
  other = None if s.against is None else read_config("against", s.against)
  table.check_filled(s, ("draft_layers",))
  proposers = table.listed(
    "proposers", s.proposers or config.settings.proposer, str
  )
  for one in filter(None, (config, other)):
    _check_proposers(s, one, proposers)
  _check_chosen(s, given, proposers)
  c = config.settings
  lookahead = _lookahead(s, config, proposers)
  _check_heads(s, proposers, lookahead)
  strategies = table.listed(
    "strategies", s.strategies or _own(c), strategy_lib.parse
  )
  if s.strategies is not None:
    _check_splits(s, strategies, proposers)
  return Asked(
    settings=s,
    config=config,
    against=other,
    topologies=table.listed("topology", s.topology, topology_lib.parse),
    strategies=strategies,
    proposers=proposers,
    batch=lab_lists.numbers("batch", s.batch, c.slots),
    lookahead=lookahead,
    siblings=lab_lists.siblings(s.siblings, c.siblings, proposers, lookahead),
    context=lab_lists.numbers(
      "context", s.context, c.capacity or 2048, least=2
    ),
    live=None if s.live is None else _live(s, c),
    acceptance=_acceptance(s, lookahead),
  )


def read_config(flag: str, path: str) -> Config:
  """What a config file says of a pair.

  Raises:
    UsageError: it cannot be read, or says of no sizes.
  """
  if not pathlib.Path(path).is_file():
    raise command.UsageError(f"--{flag}={path} is no file; name a config")
  try:
    given = settings.parse(["specjax-generate", f"--config={path}"]).settings
    named = tuple(runpy.run_path(path).get("PRESETS", ()))
  except command.UsageError as error:
    raise command.UsageError(f"--{flag}={path}: {error}") from None
  both = [given.model, given.draft_model]
  if given.proposer in _HEADS:
    both[1] = None  # The folder of a head, whose sizes the target's say.
  both[: len(named)] = named
  target, draft = both
  for name, role in ((target, "model"), (draft, "draft_model")):
    if name is None and role == "draft_model":
      continue
    folder = pathlib.Path(name or "")
    if name not in presets.PRESETS and not (folder / "config.json").exists():
      raise command.UsageError(
        f"--{flag}={path}: {role} {name!r} is neither a preset nor a folder"
        " with a config.json; put PRESETS = (target, draft) into the config,"
        f" of {', '.join(presets.PRESETS)}"
      )
  return Config(
    name=pathlib.Path(path).stem, settings=given, target=target, draft=draft
  )


def _own(c: settings.Settings) -> str:
  """The config's strategy, as --strategies has it."""
  for name in (c.strategy, c.draft_strategy):
    if name is not None and not isinstance(name, str):
      raise command.UsageError(
        "--strategies is missing, and the config has rules of its own, which"
        " have no name; name strategies"
      )
  target = c.strategy or "tensor"
  text = f"{target}/{c.draft_strategy or target}"
  return f"{text}+{c.cache_sharding}" if c.cache_sharding else text


def _check_proposers(
  s: Settings, config: Config, names: tuple[str, ...]
) -> None:
  """Refuses proposers that the lab does not know, or the config cannot have."""
  where = f"--proposers={s.proposers}"
  if s.proposers is None:
    where = f"{config.name} has proposer {names[0]!r}"
  for name in names:
    if name not in PROPOSERS:
      raise command.UsageError(
        f"{where}: the lab knows {', '.join(PROPOSERS)}; name those, as"
        " --proposers=ngram"
      )
    if name == "draft_model" and config.draft is None:
      raise command.UsageError(
        f"{where}: {config.name} names no draft model; give it one, in PRESETS"
        " or as draft_model"
      )
    if name == "layer_skip" and draft_layers(s, config) is None:
      raise command.UsageError(
        f"{where} needs --draft_layers; give how many of the first layers"
        " draft, as 8, or which, as 0,1,5,29"
      )


def draft_layers(s: Settings, config: Config) -> int | tuple[int, ...] | None:
  """How many of the first layers layer_skip drafts with, or which.

  Raises:
    UsageError: it cannot be read.
  """
  text = s.draft_layers or config.settings.draft_layers
  try:
    return None if text is None else kinds.layers(text)
  except ValueError as error:
    raise command.UsageError(f"--draft_layers={text}: {error}") from None


def _check_chosen(
  s: Settings, given: Collection[str], proposers: tuple[str, ...]
) -> None:
  """Refuses what no proposer heeds, or what cannot be."""
  for name, who in _ONLY.items():
    if name in given and not set(who) & set(proposers):
      raise command.UsageError(
        f"{table.named(name, getattr(s, name))} does nothing without"
        f" {' or '.join(who)} in --proposers={','.join(proposers)}; leave it"
        " out"
      )
  table.check_least(s, {"heads": 1, "vocabulary": 0})
  if s.eagle not in (None, 1, 3):
    raise command.UsageError(f"--eagle={s.eagle} is no EAGLE; give 1 or 3")


def _check_heads(
  s: Settings, proposers: tuple[str, ...], lookahead: tuple[int, ...]
) -> None:
  heads, most = s.heads or kinds.MEDUSA_HEADS, max(lookahead)
  if "medusa" in proposers and most > heads:
    raise command.UsageError(
      f"--lookahead={s.lookahead or most}: there are {heads} Medusa heads, each"
      f" for one draft; give at most {heads}, or --heads={most}"
    )


def _check_splits(
  s: Settings,
  strategies: tuple[strategy_lib.Strategy, ...],
  proposers: tuple[str, ...],
) -> None:
  """Refuses a strategy of a draft model's own where there is none."""
  own = [one for one in strategies if one.draft != one.target]
  if own and "draft_model" not in proposers:
    raise command.UsageError(
      f"--strategies={s.strategies}: {own[0]} splits a draft model in a way of"
      f" its own, which does nothing with --proposers={','.join(proposers)};"
      f" give {own[0].target}"
    )


def _lookahead(
  s: Settings, config: Config, proposers: tuple[str, ...]
) -> tuple[int, ...]:
  drafts = proposers != ("none",)
  default = config.settings.lookahead if drafts else 0
  found = lab_lists.numbers("lookahead", s.lookahead, default, least=0)
  if not drafts and any(found):
    raise command.UsageError(
      f"--lookahead={s.lookahead}: proposer 'none' drafts nothing; give 0"
    )
  return found


def _acceptance(
  s: Settings, lookahead: tuple[int, ...]
) -> tuple[float, ...] | None:
  if s.acceptance is None:
    return None
  if s.against is not None or min(lookahead) or not max(lookahead):
    raise command.UsageError(
      f"--acceptance={s.acceptance} does nothing without speed-ups, which are"
      " of one config and over lookahead 0; give --lookahead=0,4 and no"
      " --against"
    )
  return lab_lists.shares("acceptance", s.acceptance)


def _live(s: Settings, c: settings.Settings) -> tuple[int, ...]:
  found = lab_lists.numbers("live", s.live, 1)
  most = min(
    lab_lists.numbers("context", s.context, c.capacity or 2048, least=2)
  )
  if max(found) > most:
    raise command.UsageError(
      f"--live={s.live}: rows of a context of {most} cannot have {max(found)}"
      " tokens; give fewer"
    )
  return found
