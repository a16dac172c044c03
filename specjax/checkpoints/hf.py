"""Hugging Face model folders: config.json and safetensors, both ways.

Tensors are read and written one at a time, so that no second copy of the
model is ever in memory.
"""

import contextlib
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors

from specjax import text
from specjax.checkpoints import keymaps

_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# The names safetensors gives to the types a checkpoint may hold and we read.
_DTYPES = {
  "F32": np.dtype(np.float32),
  "F16": np.dtype(np.float16),
  "BF16": np.dtype(ml_dtypes.bfloat16),
}
# A shard lies beside its index. What else an index says is not followed: it
# comes with a downloaded model.
_SHARD = re.compile(r"[^/\\\0]+\.safetensors")
_LISTED = 6  # offenders of one kind that an error shows


class CheckpointError(ValueError):
  """A checkpoint does not hold exactly the model's parameters."""


def read_config(folder: os.PathLike | str) -> dict[str, Any]:
  """The content of a model folder's config.json.

  Raises:
    FileNotFoundError: the folder or the file is absent.
    ValueError: the file is not a JSON object.
  """
  folder = pathlib.Path(folder)
  if not folder.is_dir():
    raise FileNotFoundError(f"{folder}: no such folder")
  if not (folder / "config.json").is_file():
    raise FileNotFoundError(
      f"{folder}: no config.json in it; expected a Hugging Face model folder"
    )
  return text.read_json(folder / "config.json")


def load_params(
  folder: os.PathLike | str, model: Any, *, dtype: Any = None
) -> tuple[jax.Array, ...]:
  """Loads a model's parameters from a folder's safetensors.

  Args:
    folder: a folder with model.safetensors, or with the shards that its
      model.safetensors.index.json names.
    model: has `paths` and `shapes`, in one order; with scanned layers the
      layers' tensors are stacked.
    dtype: of the result; the model's own unless given.

  Returns:
    The parameters in the order of `model.paths`.

  Raises:
    FileNotFoundError: there are no safetensors.
    CheckpointError: tensors are missing, unexpected, or of another shape or
      type, all of them listed in one message; or a file is damaged.
  """
  folder = pathlib.Path(folder)
  dtype = np.dtype(model.dtype if dtype is None else dtype)
  sources = keymaps.sources(model.paths, [s.shape for s in model.shapes])
  with contextlib.ExitStack() as stack:
    files = _open(folder, stack)
    wanted = {name for source in sources for name in source.names}
    found = {
      name: file.get_slice(name)
      for name, file in files.items()
      if name in wanted or not _says_nothing(name, files)
    }
    _require(
      folder,
      sources,
      {name: tensor.get_shape() for name, tensor in found.items()},
      {name: tensor.get_dtype() for name, tensor in found.items()},
    )
    return tuple(_load(source, files, dtype) for source in sources)


def check_shapes(
  name: object, model: Any, shapes: Mapping[str, Sequence[int]]
) -> None:
  """Checks that tensors are exactly a model's, as load_params would.

  Args:
    name: what the error calls the checkpoint.
    model: as in load_params.
    shapes: Hugging Face name to shape of every tensor.

  Raises:
    CheckpointError: tensors are missing, unexpected or of another shape, all
      of them listed in one message.
  """
  sources = keymaps.sources(model.paths, [s.shape for s in model.shapes])
  _require(name, sources, shapes, dict.fromkeys(shapes, "F32"))


def save_params(
  folder: os.PathLike | str,
  model: Any,
  params: Sequence[jax.Array],
  *,
  config: Mapping[str, Any],
  dtype: Any = None,
) -> None:
  """Writes a model as a Hugging Face folder: config.json, model.safetensors.

  Args:
    folder: made if it is not there.
    model: as in load_params.
    params: in the order of `model.paths`.
    config: the content of config.json; the dtype is filled in.
    dtype: of the file; the model's own unless given.
  """
  dtype = np.dtype(model.dtype if dtype is None else dtype)
  sources = keymaps.sources(model.paths, [s.shape for s in model.shapes])
  shapes = {name: s.file_shape for s in sources for name in s.names}

  def tensors():
    for source, value in zip(sources, params, strict=True):
      for i, name in enumerate(source.names):
        part = value[i] if source.stacked else value
        yield name, np.asarray(part).reshape(source.file_shape)

  write_folder(folder, shapes, tensors(), config=config, dtype=dtype)


def write_folder(
  folder: os.PathLike | str,
  shapes: Mapping[str, Sequence[int]],
  tensors: Iterable[tuple[str, np.ndarray]],
  *,
  config: Mapping[str, Any],
  dtype: Any,
) -> None:
  """Writes config.json and model.safetensors, tensor by tensor.

  The format (safetensors, "Format"): the header's length as 8 bytes, the
  header in JSON, the bytes of all tensors. The file has its final name only
  once it is whole.

  Args:
    folder: made if it is not there.
    shapes: tensor name to shape, in the order of `tensors`.
    tensors: names and values, each dropped once it is written.
    config: the content of config.json; the dtype is filled in.
    dtype: of the file: float32, float16 or bfloat16.

  Raises:
    ValueError: a tensor is not the next one that `shapes` announced.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  dtype = np.dtype(dtype)
  code = {known: code for code, known in _DTYPES.items()}[dtype]
  header, end = {"__metadata__": {"format": "pt"}}, 0
  for name, shape in shapes.items():
    start, end = end, end + math.prod(shape) * dtype.itemsize
    header[name] = {
      "dtype": code,
      "shape": list(shape),
      "data_offsets": [start, end],
    }
  encoded = json.dumps(header).encode()
  encoded += b" " * (-len(encoded) % 8)
  partial = folder / f"{_FILE}.partial"
  try:
    with partial.open("wb") as file:
      file.write(len(encoded).to_bytes(8, "little") + encoded)
      _write_tensors(file, shapes, tensors, dtype)
    partial.replace(folder / _FILE)
  finally:
    partial.unlink(missing_ok=True)
  write_json(folder / "config.json", {**config, "torch_dtype": dtype.name})


def _write_tensors(
  file: BinaryIO,
  shapes: Mapping[str, Sequence[int]],
  tensors: Iterable[tuple[str, np.ndarray]],
  dtype: np.dtype,
) -> None:
  """The bytes of all tensors, as `write_folder` announces them."""
  expected = iter(shapes.items())
  for name, value in tensors:
    announced, shape = next(expected, (None, ()))
    if (name, value.shape) != (announced, tuple(shape)):
      raise ValueError(f"tensor {name} {value.shape} was not announced")
    # Seen as bytes: numpy has no buffer of bfloat16.
    file.write(value.astype(dtype).reshape(-1).view(np.uint8).data)
  if missing := next(expected, None):
    raise ValueError(f"tensor {missing[0]} was announced and never came")


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Writes a JSON file as Hugging Face lays it out."""
  path.write_text(
    json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
  )


def _open(
  folder: pathlib.Path, stack: contextlib.ExitStack
) -> dict[str, safetensors.safe_open]:
  """Tensor name to the open file that holds it."""
  names = _files(folder)
  files = {}
  for name in names:
    try:
      file = stack.enter_context(
        safetensors.safe_open(folder / name, framework="numpy")
      )
    except safetensors.SafetensorError as error:
      raise CheckpointError(
        f"{folder / name}: the file is truncated or damaged ({error}); "
        "fetch it again"
      ) from None
    except FileNotFoundError:
      raise FileNotFoundError(
        f"{folder / name}: no such file, but {_INDEX} names it"
      ) from None
    except (OSError, ValueError) as error:  # a folder, or no name of a file
      raise CheckpointError(
        f"{folder / name}: cannot be read ({error})"
      ) from None
    files.update(dict.fromkeys(file.keys(), file))
  return files


def _files(folder: pathlib.Path) -> list[str]:
  """The names of a folder's safetensors files."""
  if (folder / _FILE).is_file():
    return [_FILE]
  if (folder / _INDEX).is_file():
    index = text.read_json(folder / _INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
      raise CheckpointError(
        f"{folder / _INDEX}: weight_map is missing or empty"
      )
    for name in index.values():
      if not isinstance(name, str) or not _SHARD.fullmatch(name):
        raise CheckpointError(
          f"{folder / _INDEX}: {name!r} is not the name of a .safetensors file "
          "beside it"
        )
    return sorted(set(index.values()))
  hint = ""
  if any(folder.glob("pytorch_model*.bin")):
    hint = "; its pytorch_model.bin must be converted to safetensors first"
  raise FileNotFoundError(f"{folder}: neither {_FILE} nor {_INDEX} in it{hint}")


def _require(
  where: object,
  sources: Sequence[keymaps.Source],
  shapes: Mapping[str, Sequence[int]],
  types: Mapping[str, str],
) -> None:
  """Raises an error that lists what keeps tensors from being the model."""
  wanted = {name: s.file_shape for s in sources for name in s.names}
  there = [name for name in wanted if name in shapes]
  kinds = {
    "missing": [name for name in wanted if name not in shapes],
    "unexpected": [name for name in shapes if name not in wanted],
    "of another shape": [
      f"{name} {tuple(shapes[name])}, the config says {wanted[name]}"
      for name in there
      if tuple(shapes[name]) != wanted[name]
    ],
    f"of a type other than {', '.join(_DTYPES)}": [
      f"{name} {types[name]}" for name in there if types[name] not in _DTYPES
    ],
  }
  problems = [
    f"{len(names)} {kind}: {', '.join(sorted(names)[:_LISTED])}"
    + (", …" if len(names) > _LISTED else "")
    for kind, names in kinds.items()
    if names
  ]
  if problems:
    raise CheckpointError(
      f"{where} does not fit the model: {'; '.join(problems)}"
    )


def _says_nothing(name: str, files: Mapping[str, Any]) -> bool:
  """Whether a tensor that is no parameter may be there all the same."""
  if keymaps.IGNORED.fullmatch(name):
    return True
  # A head that only repeats the embedding it is tied to.
  embed = "model.embed_tokens.weight"
  if name != "lm_head.weight" or embed not in files:
    return False
  head, embed = files[name].get_tensor(name), files[embed].get_tensor(embed)
  return head.dtype == embed.dtype and head.tobytes() == embed.tobytes()


def _load(
  source: keymaps.Source, files: Mapping[str, Any], dtype: np.dtype
) -> jax.Array:
  """One parameter, cast and in its own shape."""
  if not source.stacked:
    (name,) = source.names
    value = files[name].get_tensor(name).astype(dtype, copy=False)
    return jnp.asarray(value.reshape(source.shape))
  value = np.empty(source.shape, dtype)
  for i, name in enumerate(source.names):
    value[i] = files[name].get_tensor(name).reshape(source.shape[1:])
  return jnp.asarray(value)
