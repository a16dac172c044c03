"""Turns a GGUF file, or a model folder, into a Hugging Face model folder.

  specjax-convert --gguf=model.gguf --output=folder --dtype=float32
  specjax-convert --model=FOLDER --output=folder --dtype=bfloat16
  specjax-convert --model=FOLDER --output=folder --format=orbax

The folder holds config.json, the weights as safetensors (several files and an
index beyond 5 GB) and the tokenizer's files with the chat template. Weights go
through one tensor at a time. With --format=orbax they are an Orbax checkpoint,
in orbax/; from or to one, the whole model is held in memory. Exit code: 0 done,
1 failed, 2 wrong command line, 130 interrupted.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from absl import flags

from specjax.cli import command, table

PROGRAM = "specjax-convert"
DTYPES = ("float32", "bfloat16", "float16")
FORMATS = ("safetensors", "orbax")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Every setting by the name of its flag; `help` says what each one is."""

  gguf: str | None = table.setting(None, "string", "the GGUF file to read")
  model: str | None = table.setting(
    None,
    "string",
    "the model to read: a folder, a hub id (org/name) or a gs:// path",
  )
  output: str | None = table.setting(None, "string", "the folder to write")
  dtype: str = table.setting(
    "float32", "choice", "of the weights in the folder", DTYPES
  )
  format: str = table.setting(
    "safetensors",
    "choice",
    "of the weights in the folder; orbax needs --model",
    FORMATS,
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
  from specjax.checkpoints import folders, gguf, hf
  from specjax.models import config as config_lib
  from specjax.models import decoder

  _check_output(folder, overwrite)
  checkpoint = gguf.read(source)
  shapes = {tensor.name: tensor.shape for tensor in checkpoint.tensors}
  try:
    config = config_lib.from_hugging_face(checkpoint.config)
  except ValueError as error:
    raise ValueError(f"{source}: as a {error}") from None
  hf.check_shapes(source, decoder.build(config, scan_layers=True), shapes)
  others = {
    "tokenizer.json": checkpoint.tokenizer.encode(),
    "tokenizer_config.json": folders.json_bytes(checkpoint.tokenizer_config),
    "generation_config.json": folders.json_bytes(checkpoint.generation_config),
  }
  folders.write(
    folder,
    shapes,
    ((tensor.name, tensor.read()) for tensor in _bar(checkpoint.tensors)),
    config=checkpoint.config,
    dtype=dtype_of(dtype),
    others=others,
    overwrite=overwrite,
  )


def copy(
  name: str,
  folder: pathlib.Path,
  *,
  dtype: str = "float32",
  overwrite: bool = False,
  format: str = "safetensors",
) -> None:
  """Writes a model folder again, its weights in another type or format.

  Args:
    name: a folder, a hub id or a gs:// path.
    folder, dtype, overwrite: as in `convert`.
    format: "safetensors" or "orbax".

  Raises:
    FileExistsError: the folder holds files and `overwrite` is false.
    ValueError: the model is none that the decoder can run; nothing is written.
    Others as specjax.load.
  """
  from specjax import pretrained
  from specjax.checkpoints import folders, hf, locate, weights
  from specjax.models import decoder

  _check_output(folder, overwrite)
  source = locate.resolve(name)
  if format == "orbax" or weights.is_orbax(source):
    held = "bfloat16" if dtype == "bfloat16" else "float32"
    model = pretrained.load(name, dtype=held, scan_layers=True)
    model.save(folder, dtype=dtype, overwrite=overwrite, format=format)
    return
  model = decoder.build(hf.read_decoder_config(source), scan_layers=True)
  with contextlib.ExitStack() as stack:
    entries = hf.open_tensors(source, model, stack)
    folders.write(
      folder,
      {entry.name: entry.shape for entry in entries},
      ((entry.name, entry.read()) for entry in _bar(entries)),
      config=hf.read_model_config(source),
      dtype=dtype_of(dtype),
      others=folders.companions(source),
      overwrite=overwrite,
    )


def dtype_of(name: str) -> Any:
  """numpy's type of one of DTYPES."""
  import jax.numpy as jnp

  return jnp.dtype(name)


def _check_output(folder: pathlib.Path, overwrite: bool) -> None:
  from specjax.checkpoints import folders

  try:
    folders.check(folder, overwrite=overwrite)
  except FileExistsError as error:
    raise FileExistsError(f"--output={error}") from None


def _bar(tensors: Sequence[Any]) -> Iterable[Any]:
  import tqdm

  return tqdm.tqdm(tensors, desc="converting", unit="tensor")


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
    UsageError: a flag is unknown, not of its type, or missing.
  """
  if table.asks_for_help(argv):
    return None
  values = flags.FlagValues()
  table.define(FIELDS, values)
  given = table.read(
    values,
    argv,
    instead="give a file in --gguf or a model in --model, and the folder in "
    "--output",
  )
  for name in ("gguf", "model", "output"):
    if name in given and not given[name].strip():
      raise command.UsageError(f"--{name}={given[name]} is empty")
  if ("gguf" in given) == ("model" in given):
    state = "both given" if "gguf" in given else "missing"
    raise command.UsageError(
      f"--gguf and --model are {state}; name the file or the folder to read"
    )
  if "output" not in given:
    raise command.UsageError("--output is missing; name the folder to write")
  if given.get("format") == "orbax":
    if "gguf" in given:
      raise command.UsageError(
        "--format=orbax needs --model; convert the GGUF file to a folder "
        "first, and give that"
      )
    if given.get("dtype") == "float16":
      raise command.UsageError(
        "--dtype=float16 is none of --format=orbax; give float32 or bfloat16"
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
  how = dict(dtype=s.dtype, overwrite=s.overwrite)
  if s.gguf is not None:
    convert(pathlib.Path(s.gguf), pathlib.Path(s.output), **how)
  else:
    copy(s.model, pathlib.Path(s.output), format=s.format, **how)
  print(f"wrote {s.output} ({s.dtype})")
  return 0


if __name__ == "__main__":
  cli()
