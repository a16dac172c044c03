"""Turns a GGUF file into a Hugging Face model folder.

  specjax-convert --gguf=model.gguf --output=folder --dtype=float32

The folder holds config.json, generation_config.json, model.safetensors,
tokenizer.json and tokenizer_config.json with the chat template. Exit code: 0
done, 1 failed, 2 wrong command line, 130 interrupted.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence

from absl import flags

from specjax.cli import command, table

PROGRAM = "specjax-convert"
# What loaders take instead of, or beside, the files that are written here.
_STALE = (
  "*.safetensors",
  "*.safetensors.index.json",
  "adapter_config.json",
  "added_tokens.json",
  "additional_chat_templates/*.jinja",
  "chat_template.jinja",
  "chat_template.json",
  "special_tokens_map.json",
)
DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Every setting by the name of its flag; `help` says what each one is."""

  gguf: str | None = table.setting(None, "string", "the GGUF file")
  output: str | None = table.setting(None, "string", "the folder to write")
  dtype: str = table.setting(
    "float32", "choice", "of the weights in the folder", DTYPES
  )
  overwrite: bool = table.setting(
    False, "switch", "write into a folder that already holds files"
  )


FIELDS = table.fields_of(Settings)


def convert(
  source: pathlib.Path,
  folder: pathlib.Path,
  *,
  dtype: str = "float32",
  overwrite: bool = False,
) -> None:
  """Writes a GGUF file's model as a Hugging Face folder.

  Args:
    source: the GGUF file.
    folder: where to write; made if it is not there.
    dtype: float32, bfloat16 or float16.
    overwrite: whether the folder may already hold files. Those that would win
      over the new ones, such as chat_template.jinja, are removed.

  Raises:
    FileExistsError: the folder holds files and `overwrite` is false.
    ValueError: the file's tensors are not those of a model that the decoder
      can run; nothing is written then.
    Others as specjax.checkpoints.gguf.read.
  """
  # jax takes a second to import: wrong command lines fail before it.
  import jax.numpy as jnp
  import tqdm

  from specjax.checkpoints import gguf, hf
  from specjax.models import config as config_lib
  from specjax.models import decoder

  if folder.exists() and not folder.is_dir():
    raise FileExistsError(f"--output={folder}: a file, not a folder")
  if folder.is_dir() and any(folder.iterdir()) and not overwrite:
    raise FileExistsError(
      f"--output={folder}: the folder is not empty; name another, or add "
      "--overwrite"
    )
  checkpoint = gguf.read(source)
  shapes = {tensor.name: tensor.shape for tensor in checkpoint.tensors}
  try:
    config = config_lib.from_hugging_face(checkpoint.config)
  except ValueError as error:
    raise ValueError(f"{source}: as a {error}") from None
  hf.check_shapes(source, decoder.build(config, scan_layers=True), shapes)
  bar = tqdm.tqdm(checkpoint.tensors, desc="converting", unit="tensor")
  hf.write_folder(
    folder,
    shapes,
    ((tensor.name, tensor.read()) for tensor in bar),
    config=checkpoint.config,
    dtype=jnp.dtype(dtype),
  )
  # Only now: whatever fails before leaves the model that was there.
  _remove_stale(folder)
  (folder / "tokenizer.json").write_text(checkpoint.tokenizer, encoding="utf-8")
  hf.write_json(folder / "tokenizer_config.json", checkpoint.tokenizer_config)
  hf.write_json(folder / "generation_config.json", checkpoint.generation_config)


def _remove_stale(folder: pathlib.Path) -> None:
  """Removes files of another model that would win over the new ones."""
  for pattern in _STALE:
    for path in folder.glob(pattern):
      if path.name != "model.safetensors" and not path.is_dir():
        path.unlink()


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; gives its exit code. See the module's docstring."""
  return command.run(PROGRAM, _main, argv)


def cli() -> None:
  """The console script."""
  sys.exit(main())


def parse(argv: Sequence[str]) -> Settings | None:
  """Reads a command line.

  Args:
    argv: the command line, program name first.

  Returns:
    What it sets; None where it asks for help.

  Raises:
    UsageError: a flag is unknown, not of its type, or missing.
  """
  if table.asks_for_help(argv):
    return None
  values = flags.FlagValues()
  table.define(FIELDS, values)
  given = table.read(
    values, argv, instead="give the file in --gguf and the folder in --output"
  )
  for name, what in (("gguf", "the file to read"), ("output", "the folder")):
    if not given.get(name):
      raise command.UsageError(f"--{name} is missing; name {what}")
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
  convert(
    pathlib.Path(s.gguf),
    pathlib.Path(s.output),
    dtype=s.dtype,
    overwrite=s.overwrite,
  )
  print(f"wrote {s.output} ({s.dtype})")
  return 0


if __name__ == "__main__":
  cli()
