"""Hugging Face model folders: config.json and safetensors, both ways.

Tensors are read and written one at a time, so that no second copy of the
model is ever in memory.
"""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specjax import text
from specjax.checkpoints import folders, keymaps, tensor_files
from specjax.checkpoints.tensor_files import CheckpointError
from specjax.models import config as config_lib

_LISTED = 6  # offenders of one kind that an error shows


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


def read_decoder_config(
  folder: os.PathLike | str,
) -> config_lib.DecoderConfig:
  """What a model folder's config.json says of its decoder.

  Raises:
    FileNotFoundError: the folder or the file is absent.
    ValueError: names the file and the key that cannot be followed.
  """
  content = read_config(folder)
  try:
    return config_lib.from_hugging_face(content)
  except ValueError as error:  # It begins with the file's own name.
    raise ValueError(f"{pathlib.Path(folder) / str(error)}") from None


def load_params(
  folder: os.PathLike | str, model: Any, *, dtype: Any = None
) -> tuple[jax.Array, ...]:
  """Loads a model's parameters from a folder's safetensors.

  Args:
    folder: a folder with model.safetensors, or with the shards that its
      model.safetensors.index.json names.
    model: has `paths` and `shapes`, in one order; with scanned layers the
      layers' tensors are stacked. Its `config.architecture` says which tensor
      is which parameter.
    dtype: of the result; the model's own unless given.

  Returns:
    The parameters in the order of `model.paths`.

  Raises:
    FileNotFoundError: there are no safetensors.
    CheckpointError: tensors are missing, unexpected, or of another shape or
      type, all of them listed in one message; or a file is damaged.
  """
  dtype = np.dtype(model.dtype if dtype is None else dtype)
  sources = _sources(model)
  with contextlib.ExitStack() as stack:
    entries = open_tensors(folder, model, stack)
    files = {entry.name: entry for entry in entries}
    return tuple(_load(source, files, dtype) for source in sources)


def open_tensors(
  folder: os.PathLike | str, model: Any, stack: contextlib.ExitStack
) -> list[tensor_files.Entry]:
  """Opens a folder's tensors, and checks that they are exactly a model's.

  Args:
    folder, model: as in load_params.
    stack: closes the files.

  Returns:
    The tensors that make up the model, none of them read yet.

  Raises:
    FileNotFoundError, CheckpointError: as load_params.
  """
  folder = pathlib.Path(folder)
  sources = _sources(model)
  layout = keymaps.LAYOUTS[model.config.architecture]
  files = _renamed(layout, tensor_files.open_folder(folder, stack))
  wanted = dict.fromkeys(name for s in sources for name in s.names)
  found = {
    name: entry
    for name, entry in files.items()
    if name in wanted or not _says_nothing(layout, name, files)
  }
  _require(
    folder,
    sources,
    {name: entry.shape for name, entry in found.items()},
    {name: entry.code for name, entry in found.items()},
  )
  return [files[name] for name in wanted]


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
  sources = _sources(model)
  _require(name, sources, shapes, dict.fromkeys(shapes, "F32"))


def save_params(
  folder: os.PathLike | str,
  model: Any,
  params: Sequence[jax.Array],
  *,
  config: Mapping[str, Any],
  dtype: Any = None,
  others: Mapping[str, bytes] | None = None,
  overwrite: bool = False,
  max_shard_bytes: int = folders.MAX_SHARD_BYTES,
) -> None:
  """Writes a model as a Hugging Face folder: config.json, model.safetensors.

  Args:
    folder: made if it is not there.
    model: as in load_params.
    params: in the order of `model.paths`.
    config: the content of config.json; the dtype is filled in.
    dtype: of the file; the model's own unless given.
    others, overwrite, max_shard_bytes: as in `folders.write`, whose errors
      these are.
  """
  dtype = np.dtype(model.dtype if dtype is None else dtype)
  sources = _sources(model)
  pairs = list(zip(sources, params, strict=True))
  pieces = keymaps.pieces(sources)
  shapes = {name: s.file_shape for s in sources for name in s.names}

  def tensors():
    for name in shapes:
      made_of = [(*pairs[number], layer) for number, layer in pieces[name]]
      values = [
        np.asarray(value[layer] if source.stacked else value)
        for source, value, layer in made_of
      ]
      yield name, made_of[0][0].transform.to_file(values)

  folders.write(
    folder,
    shapes,
    tensors(),
    config=config,
    dtype=dtype,
    others=others,
    overwrite=overwrite,
    max_shard_bytes=max_shard_bytes,
  )


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
    f"of a type other than {', '.join(tensor_files.DTYPES)}": [
      f"{name} {types[name]}"
      for name in there
      if types[name] not in tensor_files.DTYPES
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


def _sources(model: Any) -> list[keymaps.Source]:
  """Where each of a model's parameters comes from."""
  layout = keymaps.LAYOUTS[model.config.architecture]
  shapes = [spec.shape for spec in model.shapes]
  return keymaps.sources(model.paths, shapes, table=layout.table)


def _renamed(
  layout: keymaps.Layout, files: Mapping[str, tensor_files.Entry]
) -> dict[str, tensor_files.Entry]:
  """The tensors under the names that the layout's table has for them."""
  return {
    spelled: dataclasses.replace(files[name], name=spelled)
    for spelled, name in layout.renamed(list(files)).items()
  }


def _says_nothing(
  layout: keymaps.Layout, name: str, files: Mapping[str, tensor_files.Entry]
) -> bool:
  """Whether a tensor that is no parameter may be there all the same."""
  if layout.says_nothing(name):
    return True
  # A head that only repeats the embedding it is tied to.
  embed = layout.name_of("embed.weight")
  if name != layout.name_of("head.weight") or embed not in files:
    return False
  return files[name].same_bytes(files[embed])


def _load(
  source: keymaps.Source,
  files: Mapping[str, tensor_files.Entry],
  dtype: np.dtype,
) -> jax.Array:
  """One parameter, cast and in its own shape.

  Read straight into the array that jax takes over: on a CPU there is never
  another copy of it. Where elements change their order there is, of one
  tensor.
  """
  value = tensor_files.empty(source.shape, dtype)
  take = source.transform.take
  parts = value if source.stacked else (value,)
  for part, name in zip(parts, source.names, strict=True):
    if take is None:
      files[name].read(out=part)
    else:
      part[...] = take(files[name].read(), part.shape, source.part)
  return jax.device_put(value)
