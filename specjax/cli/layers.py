"""Finds which of a model's own layers draft for it best, for layer_skip.

  specjax-layers --model=FOLDER --prompts=prompts.jsonl --lookahead=4

The model answers the prompts, and every candidate (the first layers, and what
is left when others are taken out one by one) is read over these answers: how
often it would be accepted, what it costs, and the speed-up that both predict.
The last line is what to give to specjax-generate. On a CPU it takes minutes:
SmolLM2-135M, 8 prompts of 24 tokens and 130 candidates took 5 on 2 busy cores.
Exit code: 0 done, 1 failed, 2 wrong command line, 130 interrupted, 143
terminated.
"""

import dataclasses
import functools
import sys
from collections.abc import Sequence

import tqdm
from absl import flags

from specjax.cli import command, streams, table
from specjax.cli import settings as settings_lib

PROGRAM = "specjax-layers"
SHOWN = 12  # candidates of the table
_as_generate = functools.partial(table.again, settings_lib.FIELDS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Every setting by the name of its flag; `help` says what each one is."""

  model: str | None = _as_generate("model")
  prompts: str | None = table.setting(
    None,
    "string",
    "the file of prompts to calibrate on: a .jsonl as specjax-generate takes"
    " it; a dozen of the kind that will be answered will do",
  )
  lookahead: int = _as_generate("lookahead")
  temperature: float = table.setting(
    0.0, "number", "of the answers and of acceptance; 0 is greedy"
  )
  max_new_tokens: int = table.setting(
    32, "integer", "the tokens of each answer that are looked at, at most"
  )
  budget: int = table.setting(
    400, "integer", "how many sets of layers are tried, at most"
  )
  chat: bool = _as_generate("chat")
  dtype: str = _as_generate("dtype")
  seed: int = table.setting(
    0, "integer", "of the answers, at a temperature above 0"
  )


FIELDS = table.fields_of(Settings)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; gives its exit code. See the module's docstring."""
  return command.run(PROGRAM, _main, argv)


def cli() -> None:
  """The console script."""
  command.leave(main())


def parse(argv: Sequence[str]) -> Settings | None:
  """Reads a command line; None where it asks for help.

  Raises:
    UsageError: a flag is unknown, not of its type, out of range or missing.
  """
  if table.asks_for_help(argv):
    return None
  values = flags.FlagValues()
  table.define(FIELDS, values)
  given = table.read(values, argv, instead="give --model and --prompts")
  settings = Settings(**given)
  table.check_needed(settings, {"model": table.MODEL, "prompts": "a .jsonl"})
  counts = ("lookahead", "max_new_tokens", "budget")
  table.check_least(settings, dict.fromkeys(counts, 1))
  if not 0 <= settings.temperature <= 1e30:  # NaN, too
    raise command.UsageError(
      f"--temperature={settings.temperature} is out of range; give 0 or more"
    )
  if "seed" in given and not settings.temperature:
    raise command.UsageError(
      "--seed does nothing at temperature 0; give --temperature, or leave it"
      " out"
    )
  return settings


def _main(argv: Sequence[str]) -> int:
  s = parse(argv)
  if s is None:
    flag_help = table.flag_help(FIELDS.values())
    streams.say("\n".join([__doc__, "Flags:", "", *flag_help]))
    return 0
  # jax takes a second to import: wrong command lines fail before it.
  from specjax import api
  from specjax.training import layer_search

  target = api.load(s.model, dtype=s.dtype)
  target.require_decoder("a search for layers")
  texts = _texts(s, target)
  scored = sum(len(text.tokens) - text.answer for text in texts)
  print(
    f"{len(texts)} answers, {scored} tokens of them, are what candidates are"
    " judged by",
    file=sys.stderr,
  )
  count = target.model.config.layers
  with tqdm.tqdm(total=_most(count, s.budget), unit="set", leave=False) as bar:
    found = layer_search.search(
      target.model,
      target.params,
      texts,
      lookahead=s.lookahead,
      temperature=s.temperature,
      budget=s.budget,
      told=lambda one: bar.update(),
    )
  streams.say("\n".join(_table(found, count)))
  best = found[0]
  if best.speed_up <= 1:
    print(
      "no layers of this model are predicted to draft faster than it decodes"
      " plainly; train a proposer instead (specjax-train)",
      file=sys.stderr,
    )
  streams.say(
    f"--proposer=layer_skip --draft_layers={spelled(best)}"
    f" --lookahead={s.lookahead}"
  )
  return 0


def _most(count: int, budget: int) -> int:
  """How many candidates a search of a model with `count` layers tries."""
  from specjax.training import layer_search

  rounds = sum(min(n, layer_search.TRIES) for n in range(3, count))
  return min(budget, count - 1 + count + rounds)


def spelled(one) -> str:
  """A candidate's layers, as --draft_layers takes them."""
  if one.is_prefix:
    return str(len(one.layers))
  return ",".join(map(str, one.layers))


def _texts(s: Settings, target):
  """What the model answers to the prompts."""
  from specjax import api
  from specjax.engine.request import Completion
  from specjax.jobs import prompts, requests
  from specjax.training.layer_search import Text

  try:
    rows = list(prompts.read(s.prompts))
  except OSError as error:
    raise ValueError(
      f"--prompts={s.prompts}: {(error.strerror or str(error)).lower()}"
    ) from None
  if bad := [row for row in rows if isinstance(row, prompts.BadRow)]:
    raise ValueError(f"--prompts={s.prompts}:{bad[0].line}: {bad[0].error}")
  if not rows:
    raise ValueError(f"--prompts={s.prompts} has no prompt")
  settings = {"temperature": s.temperature, "max_new_tokens": s.max_new_tokens}
  defaults = requests.Defaults(chat=s.chat, settings=settings)
  asked = {}
  for row in rows:
    # What a row sets of itself would make it another law than the search's.
    plain = dataclasses.replace(row, settings={})
    asked[row.id] = requests.build(plain, defaults, target.tokenizer)
  room = max(len(one.prompt) for one in asked.values()) + s.max_new_tokens
  capacity = min(room, target.model.config.max_position)
  engine = api.Engine(
    target, slots=min(8, len(asked)), capacity=capacity, seed=s.seed
  )
  texts = []
  for event in engine.run(asked.values()):
    if isinstance(event, Completion):
      if event.error is not None:
        raise ValueError(f"--prompts={s.prompts}: {event.id}: {event.error}")
      prompt = asked[event.id].prompt
      texts.append(
        (
          list(asked).index(event.id),
          Text(tokens=(*prompt, *event.token_ids), answer=len(prompt)),
        )
      )
  return [text for _, text in sorted(texts, key=lambda pair: pair[0])]


def _table(found, count: int) -> list[str]:
  """The most promising candidates, line by line."""
  lines = [f"{'speed-up':>8}  {'alpha':>5}  {'c':>4}  layers of {count}"]
  for one in found[:SHOWN]:
    shown = f"0-{len(one.layers) - 1}" if one.is_prefix else spelled(one)
    numbers = f"{one.acceptance:>5.3f}  {one.cost:>4.2f}"
    lines.append(f"{one.speed_up:>7.2f}x  {numbers}  {shown}")
  if rest := max(0, len(found) - SHOWN):
    lines.append(f"and {rest} more, from {found[-1].speed_up:.2f}x up")
  return lines


if __name__ == "__main__":
  cli()
