"""Turns a GGUF file into a Hugging Face model folder.

  specjax-convert --gguf=model.gguf --output=folder --dtype=float32

The folder holds config.json, generation_config.json, model.safetensors,
tokenizer.json and tokenizer_config.json with the chat template.
"""

import pathlib
import sys

import ml_dtypes
import numpy as np
import tqdm
from absl import app, flags

from specjax.checkpoints import gguf, hf

_GGUF = flags.DEFINE_string("gguf", None, "The GGUF file.", required=True)
_OUTPUT = flags.DEFINE_string(
  "output", None, "The folder to write.", required=True
)
_DTYPES = {
  "float32": np.float32,
  "bfloat16": ml_dtypes.bfloat16,
  "float16": np.float16,
}
_DTYPE = flags.DEFINE_enum(
  "dtype", "float32", list(_DTYPES), "The type of the weights in the folder."
)
_OVERWRITE = flags.DEFINE_bool(
  "overwrite", False, "Write into a folder that already holds files."
)


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
    overwrite: whether the folder may already hold files.

  Raises:
    FileExistsError: the folder holds files and `overwrite` is false.
    Others as specjax.checkpoints.gguf.read.
  """
  if folder.exists() and not folder.is_dir():
    raise FileExistsError(f"--output={folder}: a file, not a folder")
  if folder.is_dir() and any(folder.iterdir()) and not overwrite:
    raise FileExistsError(
      f"--output={folder}: the folder is not empty; name another, or add "
      "--overwrite"
    )
  checkpoint = gguf.read(source)
  bar = tqdm.tqdm(checkpoint.tensors, desc=f"{folder.name}", unit="tensor")
  hf.write_folder(
    folder,
    {tensor.name: tensor.shape for tensor in checkpoint.tensors},
    ((tensor.name, tensor.read()) for tensor in bar),
    config=checkpoint.config,
    dtype=_DTYPES[dtype],
  )
  (folder / "tokenizer.json").write_text(checkpoint.tokenizer, encoding="utf-8")
  hf.write_json(folder / "tokenizer_config.json", checkpoint.tokenizer_config)
  hf.write_json(folder / "generation_config.json", checkpoint.generation_config)


def main(argv: list[str]) -> None:
  """Runs the command; a foreseeable error is one line and exit code 1."""
  if len(argv) > 1:
    sys.exit(f"specjax-convert: unexpected argument {argv[1]!r}")
  try:
    convert(
      pathlib.Path(_GGUF.value),
      pathlib.Path(_OUTPUT.value),
      dtype=_DTYPE.value,
      overwrite=_OVERWRITE.value,
    )
  except (OSError, ValueError, ImportError) as error:
    sys.exit(f"specjax-convert: {error}")
  print(f"wrote {_OUTPUT.value} ({_DTYPE.value})")


def cli() -> None:
  """The console script's entry point."""
  app.run(main)


if __name__ == "__main__":
  cli()
