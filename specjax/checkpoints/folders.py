"""Hugging Face model folders, written so that half a one never passes for one.

All files are made in a folder within the new one and moved up at the end,
config.json last: without it nothing takes a folder for a model.
"""

import contextlib
import json
import math
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specjax.checkpoints import tensor_files, tensor_writer

# What Hugging Face's own tools split at, too.
MAX_SHARD_BYTES = 5_000_000_000
# What of a model folder is no weight and goes with a model that is saved.
COMPANIONS = (
  "generation_config.json",
  "tokenizer.json",
  "tokenizer_config.json",
  "special_tokens_map.json",
  "added_tokens.json",
  "chat_template.jinja",
  "chat_template.json",
  "additional_chat_templates/*.jinja",
  "tokenizer.model",
  "tokenizer.tiktoken",
  "spiece.model",
  "vocab.json",
  "merges.txt",
  "vocab.txt",
)
# What loaders take instead of, or beside, the files that are written here.
# Vocabularies of older formats only count where there is no tokenizer.json.
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
_CONFIG = "config.json"
# In a folder that was fetched: what lies behind its URL (for jobs.manifest).
LISTING = "specjax-listing.json"
ORBAX = "orbax"  # the folder in it that has the weights, in place of those
_PARTIAL = ".specjax-partial-"


def check(folder: pathlib.Path, *, overwrite: bool) -> None:
  """Refuses a place where `write` would destroy something.

  Raises:
    FileExistsError: it is a file, or holds files and `overwrite` is false.
  """
  if folder.exists() and not folder.is_dir():
    raise FileExistsError(f"{folder}: a file, not a folder")
  if not folder.is_dir() or overwrite:
    return
  # What a killed save left behind is nobody's.
  if any(not path.name.startswith(_PARTIAL) for path in folder.iterdir()):
    raise FileExistsError(
      f"{folder}: the folder is not empty; name another, or ask for it to be "
      "overwritten (--overwrite)"
    )


def companions(folder: pathlib.Path) -> dict[str, bytes]:
  """Name to content of what goes with a model that is saved elsewhere."""
  found = sorted(p for name in COMPANIONS for p in folder.glob(name))
  return {
    path.relative_to(folder).as_posix(): path.read_bytes()
    for path in found
    if path.is_file()
  }


def write(
  folder: os.PathLike | str,
  shapes: Mapping[str, Sequence[int]],
  tensors: Iterable[tuple[str, np.ndarray]],
  *,
  config: Mapping[str, Any],
  dtype: Any,
  others: Mapping[str, bytes] | None = None,
  overwrite: bool = False,
  max_shard_bytes: int = MAX_SHARD_BYTES,
  types: Mapping[str, Any] | None = None,
) -> None:
  """Writes a model folder, its weights tensor by tensor.

  Args:
    folder: made if it is not there.
    shapes: tensor name to shape, in the order of `tensors`.
    tensors: names and values, each dropped once it is written.
    config: the content of config.json; the dtype is filled in.
    dtype: of the weights: float32, float16 or bfloat16.
    others: name to content of the files beside them.
    overwrite: whether the folder may already hold files. Those that would win
      over the new ones, such as chat_template.jinja, are removed.
    max_shard_bytes: weights beyond it go into several files and an index.
    types: of tensors that are of another type, which may be int64 too.

  Raises:
    FileExistsError: see `check`.
    ValueError: a tensor is not the next one that `shapes` announced, or its
      numbers have no room in `dtype`; the folder stays as it was.
  """
  folder, dtype = pathlib.Path(folder), np.dtype(dtype)
  if max_shard_bytes < 1:
    raise ValueError(f"max_shard_bytes is {max_shard_bytes}; give at least 1")
  check(folder, overwrite=overwrite)
  with staged(folder, str(os.getpid())) as stage:
    tensors = iter(tensors)
    sizes = {
      name: math.prod(shape) * np.dtype((types or {}).get(name, dtype)).itemsize
      for name, shape in shapes.items()
    }
    shards = _shards(sizes, max_shard_bytes)
    for file, names in shards.items():
      part = {name: shapes[name] for name in names}
      tensor_writer.write(stage / file, part, tensors, dtype, types)
    if (extra := next(tensors, None)) is not None:
      raise ValueError(f"tensor {extra[0]} was not announced")
    if len(shards) > 1:
      index = {name: file for file, names in shards.items() for name in names}
      write_json(
        stage / tensor_files.INDEX,
        {
          "metadata": {"total_size": sum(sizes.values())},
          "weight_map": index,
        },
      )
    finish(stage, folder, config=config, dtype=dtype, others=others)


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Writes a JSON file as Hugging Face lays it out."""
  path.write_bytes(json_bytes(value))


def json_bytes(value: Mapping[str, Any]) -> bytes:
  """The content of a JSON file as Hugging Face lays it out."""
  return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _shards(sizes: Mapping[str, int], limit: int) -> dict[str, list[str]]:
  """File name to the tensors that go into it, in order, by their bytes."""
  parts: list[list[str]] = [[]]
  room = limit
  for name, size in sizes.items():
    if parts[-1] and size > room:
      parts.append([])
      room = limit
    parts[-1].append(name)
    room -= size
  if len(parts) == 1:
    return {tensor_files.FILE: parts[0]}
  return {
    f"model-{i:05d}-of-{len(parts):05d}.safetensors": part
    for i, part in enumerate(parts, start=1)
  }


def stage_of(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Where a model of a folder is made, by a writer of this name.

  Within it and not beside it: the folder may be a mounted disk.
  """
  return folder / f"{_PARTIAL}{name}"


@contextlib.contextmanager
def staged(folder: pathlib.Path, name: str) -> Iterator[pathlib.Path]:
  """Makes `stage_of` a folder; both go in the end if they were made here."""
  made = [path for path in (folder, *folder.parents) if not path.exists()]
  folder.mkdir(parents=True, exist_ok=True)
  for path in folder.glob(f"{_PARTIAL}*"):
    shutil.rmtree(path, ignore_errors=True)
  stage = stage_of(folder, name)
  stage.mkdir()
  try:
    yield stage
  finally:
    shutil.rmtree(stage, ignore_errors=True)
    for path in made:
      with contextlib.suppress(OSError):  # not empty: the model is in it
        path.rmdir()


def finish(
  stage: pathlib.Path,
  folder: pathlib.Path,
  *,
  config: Mapping[str, Any],
  dtype: np.dtype,
  others: Mapping[str, bytes] | None,
) -> None:
  """Puts the other files beside weights that are made, and all in place.

  Args:
    stage: where the weights are.
    folder: where the model goes; until its last file there is no model.
    config, dtype, others: as in `write`.
  """
  for name, content in (others or {}).items():
    (stage / name).parent.mkdir(exist_ok=True)
    (stage / name).write_bytes(content)
  spelled = {key: value for key, value in config.items() if key != "dtype"}
  write_json(stage / _CONFIG, {**spelled, "torch_dtype": dtype.name})
  (folder / _CONFIG).unlink(missing_ok=True)
  shutil.rmtree(folder / ORBAX, ignore_errors=True)
  for pattern in _STALE:
    for path in folder.glob(pattern):
      if not path.is_dir():
        path.unlink()
  files = [path for path in sorted(stage.rglob("*")) if path.is_file()]
  for path in sorted(files, key=lambda path: path == stage / _CONFIG):
    target = folder / path.relative_to(stage)
    target.parent.mkdir(parents=True, exist_ok=True)
    path.replace(target)
