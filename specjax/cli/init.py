"""Writes a model folder with random weights, to rehearse without a download.

  specjax-init --preset=chinchilla_tiny --output=FOLDER --seed=0
  specjax-init --preset=chinchilla_tiny_draft --output=DRAFT_FOLDER
  specjax-init --preset=t5_small --size=d_model:384 --tokenizer=FOLDER \\
    --output=START

The folder holds what a real model's does: config.json, the weights as
safetensors and a tokenizer, of bytes unless --tokenizer names another. What it
writes means nothing, but it is decoded, sharded, saved, resumed and trained as
any model. Weights are written one tensor
at a time. Exit code: 0 done, 1 failed, 2 wrong command line, 130 interrupted.
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Sequence

from absl import flags

from specjax.cli import command, convert, table
from specjax.models import presets

PROGRAM = "specjax-init"
# More must be asked for: nobody wants 129 GB by accident.
MAX_BYTES = 4_000_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Every setting by the name of its flag; `help` says what each one is."""

  preset: str | None = table.setting(
    None, "choice", "the sizes to take", tuple(presets.PRESETS)
  )
  size: tuple[str, ...] = table.setting(
    (),
    "texts",
    "changes the preset's config.json, as num_hidden_layers:2; may be given"
    " several times",
  )
  tokenizer: str | None = table.setting(
    None,
    "string",
    "a folder whose tokenizer goes with it; one of bytes if not given",
  )
  output: str | None = table.setting(None, "string", "the folder to write")
  seed: int = table.setting(0, "integer", "the same seed, the same weights")
  dtype: str = table.setting(
    "float32", "choice", "of the weights in the folder", convert.DTYPES
  )
  overwrite: bool = table.setting(
    False, "switch", "write into a folder that already holds files"
  )
  yes: bool = table.setting(
    False, "switch", f"write even more than {MAX_BYTES / 1e9:.0f} GB"
  )


FIELDS = table.fields_of(Settings)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; gives its exit code. See the module's docstring."""
  return command.run(PROGRAM, _main, argv)


def cli() -> None:
  """The console script."""
  command.leave(main())


def parse(argv: Sequence[str]) -> Settings | None:
  """Reads a command line.

  Args:
    argv: the command line, program name first.

  Returns:
    What it sets; None where it asks for help.

  Raises:
    UsageError: a flag is unknown, not of its type, out of range or missing.
  """
  if table.asks_for_help(argv):
    return None
  values = flags.FlagValues()
  table.define(FIELDS, values)
  given = table.read(
    values, argv, instead="give --preset and the folder in --output"
  )
  if "preset" not in given:
    raise command.UsageError(
      f"--preset is missing; give one of {', '.join(presets.PRESETS)}"
    )
  if not given.get("output", "").strip():
    state = (
      f"--output={given['output']} is empty"
      if "output" in given
      else ("--output is missing")
    )
    raise command.UsageError(f"{state}; name the folder to write")
  if not 0 <= given.get("seed", 0) < 2**64:
    raise command.UsageError(
      f"--seed={given['seed']} is out of range; give a number from 0 to"
      f" {2**64 - 1}"
    )
  if not given.get("tokenizer", "-").strip():
    raise command.UsageError("--tokenizer= is empty; name a folder")
  for one in given.get("size", ()):
    key, _, value = one.partition(":")
    if not key.strip() or not (value.isascii() and value.isdigit()):
      raise command.UsageError(
        f"--size={one}: give a key of config.json and a whole number, as"
        " num_hidden_layers:2"
      )
  return Settings(**given)


def _main(argv: Sequence[str]) -> int:
  s = parse(argv)
  if s is None:
    print(
      "\n".join(
        [__doc__.rstrip(), "", "Flags:", "", *table.flag_help(FIELDS.values())]
      )
    )
    return 0
  # jax takes a second to import: wrong command lines fail before it.
  from specjax.checkpoints import folders, random_folder

  folder, dtype = pathlib.Path(s.output), convert.dtype_of(s.dtype)
  made = random_folder.plan(
    s.preset,
    size={k: int(v) for k, _, v in (one.partition(":") for one in s.size)},
    tokenizer=s.tokenizer,
  )
  size = made.size(dtype)
  if size > MAX_BYTES and not s.yes:
    raise command.UsageError(
      f"--preset={s.preset} takes {size / 1e9:.1f} GB in {s.dtype}; give --yes"
      " to write it all the same"
    )
  try:
    folders.check(folder, overwrite=s.overwrite)
  except FileExistsError as error:
    raise FileExistsError(f"--output={error}") from None
  free = shutil.disk_usage(_existing(folder)).free
  if size > free:
    raise OSError(
      f"--output={s.output}: {s.preset} takes {size / 1e9:.1f} GB in {s.dtype}"
      f" and {free / 1e9:.1f} GB are free there; name a folder with more room"
    )
  made.write(folder, seed=s.seed, dtype=dtype, overwrite=s.overwrite)
  shown = f"{size / 1e9:.1f} GB" if size > 1e9 else f"{size / 1e6:.1f} MB"
  print(f"wrote {s.output} ({s.preset}, {shown}, {s.dtype})")
  return 0


def _existing(folder: pathlib.Path) -> pathlib.Path:
  """The folder, or the nearest above it that exists."""
  return next(
    p for p in (folder.absolute(), *folder.absolute().parents) if p.exists()
  )


if __name__ == "__main__":
  cli()
