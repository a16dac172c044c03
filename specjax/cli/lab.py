"""Compiles a pair's step for TPU slices that are not there, and counts.

  specjax-lab --config=configs/chinchilla_70b.py --topology=v4:2x2x4
  specjax-lab --config=configs/chinchilla_70b.py --topology=v4:2x2x4 \\
    --strategies=tensor,tensor/replicated,tensor2d@4x4 --batch=1,8 \\
    --lookahead=0,4,8 --json=lab.json --csv=lab.csv --plot=lab.png
  specjax-lab --config=configs/chinchilla_70b.py --topology=v4:2x2x4 \\
    --proposers=eagle,medusa,mtp,layer_skip --draft_layers=8 --lookahead=0,4 \\
    --siblings=0,3
  specjax-lab --config=configs/chinchilla_70b.py --smallest

What runs on a TPU is what is compiled here, by the TPU's own compiler (extra
`lab`), from shapes alone. The table says what fits, what moves between memory
and chip, and what chips tell each other. Nothing in it is a measured latency.
Exit code: 0 done, also where a case has no room; 1 failed, 2 wrong command
line, 130 interrupted.
"""

import dataclasses
import itertools
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

from specjax.cli import command, lab_settings, table
from specjax.proposers import kinds

PROGRAM = "specjax-lab"
_COMPILERS = 4  # at once: each takes two gigabytes for a pair of 70B


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; gives its exit code. See the module's docstring."""
  return command.run(PROGRAM, _main, argv)


def cli() -> None:
  """The console script."""
  command.leave(main())


def _main(argv: Sequence[str]) -> int:
  asked = lab_settings.parse(argv)
  if asked is None:
    lines = table.flag_help(lab_settings.FIELDS.values())
    print("\n".join([__doc__.rstrip(), "", "Flags:", "", *lines]))
    return 0
  s = asked.settings
  for name in ("json", "csv", "plot"):
    _check_file(name, getattr(s, name))
  # The compiler is all that is wanted of a TPU, were there one.
  os.environ["JAX_PLATFORMS"] = "cpu"
  from specjax import pictures
  from specjax.lab import files, plots
  from specjax.lab import table as text

  if s.plot is not None:
    pictures.check(s.plot)
  for one in filter(None, (asked.config, asked.against)):
    _check_sizes(s, one)
  if s.against is not None:
    rows = list(_rows(asked, asked.config))
    others = list(_rows(asked, asked.against))
    print(text.against(rows, others))
    rows += others
  else:
    rows = list(_smallest(asked) if s.smallest else _rows(asked, asked.config))
    print(text.table(rows, asked.acceptance or text.ACCEPTANCES))
  if s.json is not None:
    files.write_json(s.json, rows)
  if s.csv is not None:
    files.write_csv(s.csv, rows)
  if s.plot is not None:
    plots.draw(rows, s.plot)
  return 0


def _rows(asked: lab_settings.Asked, config: lab_settings.Config) -> Iterator:
  """A row of every case, as they are compiled; some of them at once."""
  cases = list(itertools.product(asked.topologies, _cases(asked)))
  pool = futures.ThreadPoolExecutor(
    min(len(cases), os.cpu_count() or 1, _COMPILERS), "compile"
  )
  try:
    yield from pool.map(lambda case: _row(asked, config, *case), cases)
  finally:
    # Whoever interrupts does not wait for what is under way.
    pool.shutdown(wait=False, cancel_futures=True)


def _smallest(asked: lab_settings.Asked) -> Iterator:
  """Of each kind the rows of its smallest slice on which a case has room."""
  from specjax.lab import topology

  for chip in topology.CHIPS.values():
    waiting = list(_cases(asked))
    for sides in chip.slices:
      last = sides == chip.slices[-1]
      slice_ = topology.parse(f"{chip.kind}:{sides}")
      left = []
      for case in waiting:
        row = _row(asked, asked.config, slice_, case)
        if row.fits or last:
          yield row
        else:
          left.append(case)
      waiting = left


def _cases(asked: lab_settings.Asked) -> Iterator[dict[str, Any]]:
  live, given = asked.live or (None,), set()
  for strategy, proposer, batch, context, now in itertools.product(
    asked.strategies, asked.proposers, asked.batch, asked.context, live
  ):
    if proposer != "draft_model":  # It has nothing to split in its own way.
      strategy = dataclasses.replace(strategy, draft=strategy.target)
    lookaheads = (0,) if proposer == "none" else asked.lookahead
    ranks = kinds.KINDS[proposer].ranks
    for lookahead, siblings in itertools.product(lookaheads, asked.siblings):
      case = dict(
        strategy=strategy,
        proposer=proposer,
        batch=batch,
        lookahead=lookahead,
        siblings=siblings if ranks and lookahead else 0,
        context=context,
        live=now or context,
      )
      if (one := tuple(case.values())) not in given:
        given.add(one)
        yield case


def _row(asked, config, topology, case) -> Any:
  """The row of a case on a slice."""
  from specjax.lab import lower, rows

  made = lower.Case(topology=topology, **case)
  _say(
    f"{config.name} {topology} {made.strategy} {made.proposer} batch"
    f" {made.batch} lookahead {made.lookahead} siblings {made.siblings}"
    f" context {made.context}"
  )
  return rows.row(_pair(config, asked.settings), made, config.name)


def _pair(config: lab_settings.Config, s: lab_settings.Settings) -> Any:
  """The pair that a config describes, and what may draft for it."""
  from specjax.lab import lower

  c = config.settings
  return lower.Pair(
    target=_sizes(config.target),
    draft=None if config.draft is None else _sizes(config.draft),
    ngram=(c.ngram_min, c.ngram_max),
    draft_layers=lab_settings.draft_layers(s, config),
    eagle=s.eagle or 1,
    heads=s.heads,
    vocabulary=s.vocabulary,
    dtype=s.dtype or c.dtype,
    scan_layers=c.scan_layers,
    pad_heads=c.pad_heads,
    verifier=_verifiers()[c.verifier],
  )


def _check_sizes(s: lab_settings.Settings, config: lab_settings.Config) -> None:
  """Refuses choices of a proposer that the target has no room for."""
  target = _sizes(config.target)
  if s.vocabulary > target.vocab_size:
    raise command.UsageError(
      f"--vocabulary={s.vocabulary} is more than the {target.vocab_size} of"
      f" {config.name}'s model; give fewer, or 0"
    )
  layers = lab_settings.draft_layers(s, config)
  if s.draft_layers is None or layers is None:
    return
  count = target.layers
  numbers = tuple(range(layers)) if isinstance(layers, int) else layers
  if max(numbers) >= count or len(numbers) == count:
    raise command.UsageError(
      f"--draft_layers={s.draft_layers}: {config.name}'s model has {count}"
      f" layers; give fewer of them, numbered 0 to {count - 1}"
    )


def _sizes(name: str) -> Any:
  """A preset's configuration, or a folder's."""
  from specjax.checkpoints import hf
  from specjax.models import presets

  if name in presets.PRESETS:
    return presets.get(name)
  return hf.read_decoder_config(pathlib.Path(name))


def _verifiers() -> Any:
  from specjax import api

  return api.VERIFIERS


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
