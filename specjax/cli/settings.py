"""The settings of specjax-generate: one table for flags, config and help."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from specjax.cli import command, table
from specjax.proposers import kinds
from specjax.sharding import rules

_TYPES = {"string": str, "integer": int, "number": float, "switch": bool}
_WANTED = {
  "string": "a text",
  "integer": "a whole number",
  "number": "a number",
  "switch": "True or False",
  "texts": "a text or a list of texts",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Every setting by the name of its flag; `help` says what each one is."""

  model: str | None = table.setting(
    None,
    "string",
    "the model to decode with: a folder, a hub id (org/name) or a gs:// path",
  )
  proposer: str = table.setting(
    "none",
    "choice",
    "who drafts: "
    + ", ".join(f"{name} {kind.help}" for name, kind in kinds.KINDS.items()),
    tuple(kinds.KINDS),
  )
  draft_model: str | None = table.setting(
    None,
    "string",
    "the folder of whatever drafts, a small model or a head, named like"
    " --model; for mtp the model's own if not given",
  )
  draft_layers: str | None = table.setting(
    None,
    "string",
    "the layers of the model that layer_skip drafts with: the first 8, as 8, or"
    " those with these numbers, as 0,1,5,29; specjax-layers looks for the best",
  )
  draft_weights: str | None = table.setting(
    None,
    "choice",
    "what the draft multiplies with, rounded: half the bytes of bfloat16 are"
    " read, and it guesses about as well. As it is if not given",
    kinds.WEIGHTS,
  )
  lookahead: int = table.setting(4, "integer", "tokens drafted a step, at most")
  siblings: int = table.setting(
    0,
    "integer",
    "second guesses: so many likely tokens beside the drafts are checked in the"
    " same pass, where wider passes cost little (bfloat16 at batch 1)",
  )
  ngram_min: int = table.setting(
    2, "integer", "shortest run of tokens that ngram looks up"
  )
  ngram_max: int = table.setting(
    4, "integer", "longest run of tokens that ngram looks up; it wins"
  )
  verifier: str = table.setting(
    "token",
    "choice",
    "how drafts are checked: token by token, or a block at once (keeps more"
    " when sampling); both are exact",
    ("token", "block"),
  )
  temperature: float = table.setting(
    0.0, "number", "0 takes the likeliest token, 1 draws from the model as is"
  )
  top_k: int = table.setting(
    0, "integer", "draw from the k likeliest; 0 is off"
  )
  top_p: float = table.setting(
    1.0, "number", "draw from the likeliest that make up this mass; 1 is off"
  )
  min_p: float = table.setting(
    0.0,
    "number",
    "draw from tokens at least this share as likely as the likeliest; 0 is off",
  )
  seed: int | None = table.setting(
    None, "integer", "the same seed draws the same tokens again; 0 if not given"
  )
  repetition_penalty: float = table.setting(
    1.0,
    "number",
    "make tokens of prompt and answer less likely, by dividing their logits;"
    " 1 is off",
  )
  presence_penalty: float = table.setting(
    0.0, "number", "take this off the logit of every token in the answer"
  )
  frequency_penalty: float = table.setting(
    0.0, "number", "the same, times how often the token is there"
  )
  logit_bias: tuple[str, ...] = table.setting(
    (),
    "texts",
    "add to a token's logit, as ID:BIAS (198:-100 bans token 198); may be given"
    " several times",
  )
  n: int = table.setting(1, "integer", "answers to each prompt, sampled")
  logprobs: int | None = table.setting(
    None,
    "integer",
    "write the log-probability of every token, and of so many of the likeliest"
    " in its place",
  )
  max_new_tokens: int = table.setting(
    128, "integer", "the longest answer, in tokens"
  )
  stop: tuple[str, ...] = table.setting(
    (), "texts", "end before this text; may be given several times"
  )
  dtype: str = table.setting(
    "float32",
    "choice",
    "of weights and cache",
    ("float32", "bfloat16"),
  )
  slots: int = table.setting(1, "integer", "prompts decoded side by side")
  capacity: int | None = table.setting(
    None,
    "integer",
    "tokens a slot can hold, prompt and answer together; the model's context,"
    " at most 2048, if not given",
  )
  max_memory: str | None = table.setting(
    None,
    "string",
    "the most that models, caches and steps may take, as 8GB, 8GiB or 500MB;"
    " what is free, if not given",
  )
  scan_layers: bool = table.setting(
    False,
    "switch",
    "stack the layers and loop over them: quick to compile, slow on a CPU",
  )
  mesh: str | None = table.setting(
    None,
    "string",
    "split the models over all devices, laid out along these axes, as in"
    " data:2,model:4",
  )
  strategy: str | Mapping[str, Any] | None = table.setting(
    None,
    "rules",
    "what is split over the mesh: tensor (rows over data, heads, MLP and"
    " vocabulary over model; if not given), tensor2d (the model over both),"
    " fsdp (as tensor, weights over data too and gathered), replicated (rows"
    " over data alone); or rules of your own in a config",
    tuple(rules.STRATEGIES),
  )
  draft_strategy: str | Mapping[str, Any] | None = table.setting(
    None,
    "rules",
    "the draft model's; that of --strategy if not given",
    tuple(rules.STRATEGIES),
  )
  cache_sharding: str | None = table.setting(
    None,
    "choice",
    "split caches by heads (as the strategy says; if not given), by rows or by"
    " positions",
    rules.CACHES,
  )
  pad_heads: bool = table.setting(
    False,
    "switch",
    "add heads of zeros, or repeat key heads, where they do not divide over the"
    " mesh; the result is the same",
  )
  compilation_cache: str | None = table.setting(
    None,
    "string",
    "the folder that keeps compiled programs for the next start, or off;"
    " if not given, $JAX_COMPILATION_CACHE_DIR, or xla in $SPECJAX_CACHE"
    " (~/.cache/specjax)",
  )
  profile_dir: str | None = table.setting(
    None,
    "string",
    "trace some 20 steps into this folder, for xprof or TensorBoard;"
    " draft, verify and commit are named in it",
  )
  coordinator_address: str | None = table.setting(
    None,
    "string",
    "HOST:PORT of process 0, for a job of many processes elsewhere than on a"
    " TPU pod, which needs no flag; with --num_processes and --process_id, each"
    " also in the environment, as $JAX_COORDINATOR_ADDRESS and so on",
  )
  num_processes: int | None = table.setting(
    None, "integer", "how many processes run the job together"
  )
  process_id: int | None = table.setting(
    None, "integer", "which of them this is, from 0; 0 writes the output"
  )
  prompt: str | None = table.setting(
    None, "string", "a prompt; its answer is printed"
  )
  prompts: str | None = table.setting(
    None,
    "string",
    'a file of prompts or its URL, a JSON object a line: {"prompt": "…"} or'
    ' {"messages": […]}, with id and settings of its own if wished',
  )
  output: str | None = table.setting(
    None,
    "string",
    "the file of answers, a JSON object a line, as they finish; standard"
    " output if not given. A URL (gs://bucket/out.jsonl) gets numbered parts:"
    " out.jsonl.part-00000, …",
  )
  overwrite: bool = table.setting(
    False, "switch", "replace an output file that holds something"
  )
  resume: bool = table.setting(
    False,
    "switch",
    "go on with an output that an ended run of the same job has left: its rows"
    " are kept, a half-written line is dropped; from the beginning where there"
    " is none",
  )
  shard_index: int | None = table.setting(
    None,
    "integer",
    "answer only every --num_shards-th row, from this one (0, 1, …) on: for"
    " jobs that share a prompt file; specjax-merge puts their outputs together",
  )
  num_shards: int | None = table.setting(
    None, "integer", "how many jobs share the prompt file"
  )
  chat: bool = table.setting(
    False, "switch", "put prompts through the model's chat template"
  )
  stream: bool = table.setting(
    False, "switch", "print the answer to --prompt as it comes"
  )


FIELDS = table.fields_of(Settings)
DEFAULTS = Settings()
Fields = Mapping[str, dataclasses.Field]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
  """The settings and where they come from.

  Attributes:
    settings: what holds: a flag wins over the config, the config over defaults.
    flags: names given as flags.
    config: names that the config sets, be it to their default.
    base: the settings without the flags, which the config must agree with.
  """

  settings: Settings
  flags: frozenset[str]
  config: frozenset[str]
  base: Settings


def parse(argv: Sequence[str]) -> Given | None:
  """Reads a command line.

  Args:
    argv: the command line, program name first.

  Returns:
    What it sets; None where it asks for help.

  Raises:
    UsageError: if a flag or a config field is unknown or not of its type.
  """
  if table.asks_for_help(argv):
    return None
  given, config = read(
    FIELDS, argv, instead="prompts go in --prompt or --prompts"
  )
  base = dataclasses.replace(DEFAULTS, **config)
  return Given(
    settings=dataclasses.replace(base, **given),
    flags=frozenset(given),
    config=frozenset(config),
    base=base,
  )


def read(
  fields: Fields, argv: Sequence[str], *, instead: str
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Reads a command line of any command that has a --config.

  Args:
    fields: the command's settings by name.
    argv: the command line, program name first.
    instead: what to do instead of giving a word that is no flag.

  Returns:
    What flags set and what the config sets, by name.

  Raises:
    UsageError: a flag or a config field is unknown or not of its type.
  """
  values = flags.FlagValues()
  table.define(fields, values)
  config_flags.DEFINE_config_file(
    "config",
    None,
    "a Python file whose get_config() gives settings by these names",
    flag_values=values,
    lock_config=True,
    sys_argv=list(argv),
  )
  try:
    found = table.read(values, argv, instead=instead)
  except command.UsageError:
    raise
  except Exception as error:  # Whatever a config file raises is its author's.
    name = type(error).__name__
    raise command.UsageError(
      f"--config: {name}: {table.last_line(error)}"
    ) from None
  config = _config(values, fields)
  return {n: value for n, value in found.items() if n in fields}, config


def help_text(usage: str, fields: Fields | None = None) -> str:
  """The usage, and each flag with its default and what it is."""
  return "\n".join(
    [
      usage.rstrip(),
      "",
      "Flags (a flag wins over the config; --noNAME turns a switch off):",
      "",
      *table.flag_help((FIELDS if fields is None else fields).values()),
      "  --config=FILE",
      "      a Python file whose get_config() gives settings by these names",
    ]
  )


def _config(values: flags.FlagValues, known: Fields) -> dict[str, Any]:
  """The config's fields, held to the names and types of the settings."""
  if values["config"].value is None:
    if values["config"].present:
      raise command.UsageError(
        "--config names a file whose get_config() returns nothing; return a"
        " ConfigDict"
      )
    return {}
  try:
    fields = dict(values["config"].value.items())
  except (OSError, AttributeError) as error:
    path = config_flags.get_config_filename(values["config"])
    raise command.UsageError(
      f"--config={path}: {table.last_line(error)}; name a Python file with a"
      " get_config() that returns a ConfigDict"
    ) from None
  unknown = [name for name in fields if name not in known]
  if unknown:
    raise command.UsageError(
      f"--config sets {unknown[0]!r}, which is no setting"
      f"{table.hint(unknown[0], known)}; there are {', '.join(known)}"
    )
  return {
    name: _typed(name, value, known[name])
    for name, value in fields.items()
    if value is not None
  }


def _typed(name: str, value: Any, field: dataclasses.Field) -> Any:
  kind = field.metadata["kind"]
  choices = field.metadata["choices"]
  if kind == "texts":
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, Iterable):
      texts = tuple(texts)
      if all(isinstance(text, str) for text in texts):
        return texts
  elif kind == "rules" and isinstance(value, Mapping | ConfigDict):
    return value.to_dict() if isinstance(value, ConfigDict) else dict(value)
  elif kind in ("choice", "rules"):
    if isinstance(value, str) and value in choices:
      return value
  elif kind == "number" and type(value) in (int, float):
    return float(value)
  elif kind != "number" and type(value) is _TYPES[kind]:
    return value
  wanted = _WANTED.get(kind) or "one of " + ", ".join(choices)
  if isinstance(value, str) and kind in ("integer", "number", "switch"):
    wanted += ", without quotes"
  raise command.UsageError(f"config.{name}={value!r}: give {wanted}")
