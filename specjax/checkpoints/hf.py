"""Hugging Face model folders: config.json and safetensors, both ways.

Tensors are read and written one at a time, so that no second copy of the
model is ever in memory.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specjax import text
from specjax.checkpoints import (
  fits,
  folders,
  keymaps,
  regions,
  shards,
  tensor_files,
)
from specjax.checkpoints.ranges import Traffic
from specjax.checkpoints.tensor_files import CheckpointError as CheckpointError
from specjax.models import config as config_lib
from specjax.models import padding, t5_family


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


def read_model_config(
  folder: os.PathLike | str, *, url: str | None = None
) -> dict[str, Any]:
  """The same of a whole model, tied or not as its tensors are.

  Args:
    folder: the model's.
    url: where the safetensors lie, if not in the folder.

  Raises:
    As `read_config`, and as `open_tensors` where the tensors must tell.
  """
  content = read_config(folder)
  other = t5_family.untied(content)
  if other is None:
    return content
  head = keymaps.LAYOUTS[content["architectures"][0]].name_of("head.weight")
  with contextlib.ExitStack() as stack:
    try:
      found = tensor_files.open_folder(pathlib.Path(folder), stack, url=url)
    except FileNotFoundError:  # whoever loads it says so, or it is Orbax's
      return content
    return other if head in found else content


def read_decoder_config(
  folder: os.PathLike | str, *, url: str | None = None
) -> config_lib.DecoderConfig:
  """What a model folder's config.json says of its decoder.

  Args:
    folder, url: as in `read_model_config`.

  Raises:
    FileNotFoundError: the folder or the file is absent.
    ValueError: names the file and the key that cannot be followed.
  """
  content = read_model_config(folder, url=url)
  try:
    return config_lib.from_hugging_face(content)
  except ValueError as error:  # It begins with the file's own name.
    raise ValueError(f"{pathlib.Path(folder) / str(error)}") from None


def load_params(
  folder: os.PathLike | str,
  model: Any,
  *,
  dtype: Any = None,
  url: str | None = None,
  traffic: Traffic | None = None,
) -> tuple[jax.Array, ...]:
  """Loads a model's parameters from a folder's safetensors.

  With `model.shardings` each process reads the bytes of its devices' shards
  and no others. Heads that the model has beyond the checkpoint's are made; see
  `models.padding`.

  Args:
    folder: a folder with model.safetensors, or with the shards that its
      model.safetensors.index.json names.
    model: has `paths`, `shapes` and `axes`, in one order; with scanned layers
      the layers' tensors are stacked. Its `config.architecture` says which
      tensor is which parameter.
    dtype: of the result; the model's own unless given.
    url: where the safetensors lie, if not in the folder.
    traffic: counts the bytes that this process reads.

  Returns:
    The parameters in the order of `model.paths`.

  Raises:
    FileNotFoundError: there are no safetensors.
    ConnectionError: the URL cannot be read.
    CheckpointError: tensors are missing, unexpected, or of another shape or
      type, all of them listed in one message; or a file is damaged.
  """
  dtype = np.dtype(model.dtype if dtype is None else dtype)
  places = shards.shardings_of(model)
  with contextlib.ExitStack() as stack:
    entries = open_tensors(folder, model, stack, url=url, traffic=traffic)
    files = {entry.name: entry for entry in entries}
    return tuple(
      shards.load(
        spec.shape,
        sharding,
        functools.partial(_read, model, names, source, files, dtype),
      )
      for source, spec, names, sharding in zip(
        _sources(model), model.shapes, model.axes, places, strict=True
      )
    )


def open_tensors(
  folder: os.PathLike | str,
  model: Any,
  stack: contextlib.ExitStack,
  *,
  url: str | None = None,
  traffic: Traffic | None = None,
) -> list[tensor_files.Entry]:
  """Opens a folder's tensors, and checks that they are exactly a model's.

  Args:
    folder, model, url, traffic: as in load_params.
    stack: closes the files.

  Returns:
    The tensors that make up the model, none of them read yet.

  Raises:
    FileNotFoundError, ConnectionError, CheckpointError: as load_params.
  """
  folder = pathlib.Path(folder)
  sources = _sources(model)
  layout = keymaps.layout_of(model.config)
  opened = tensor_files.open_folder(folder, stack, url=url, traffic=traffic)
  files = _renamed(layout, opened)
  wanted = dict.fromkeys(name for s in sources for name in s.names)
  found = {
    name: entry
    for name, entry in files.items()
    if name in wanted or not _says_nothing(layout, name, files)
  }
  _require(
    folder if url is None else url,
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

  Sharded parameters are gathered one at a time, and heads that the model has
  beyond the checkpoint's are left out. Where there are many processes all must
  call this; process 0 writes.

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
  whole = list(zip(sources, params, model.axes, strict=True))
  pieces = keymaps.pieces(sources)
  shapes = {name: s.file_shape for s in sources for name in s.names}

  def one(number: int, layer: int) -> np.ndarray:
    source, value, names = whole[number]
    if source.stacked:
      value, names = value[layer], names[1:]
    return padding.cut(model.config, names, shards.gathered(value))

  def tensors():
    for name in shapes:
      values = [one(*piece) for piece in pieces[name]]
      yield name, sources[pieces[name][0][0]].transform.to_file(values)

  shards.write_once(
    tensors(),
    lambda stream: folders.write(
      folder,
      shapes,
      stream,
      config=config,
      dtype=dtype,
      others=others,
      overwrite=overwrite,
      max_shard_bytes=max_shard_bytes,
    ),
  )


def _require(
  where: object,
  sources: Sequence[keymaps.Source],
  shapes: Mapping[str, Sequence[int]],
  types: Mapping[str, str],
) -> None:
  wanted = {name: s.file_shape for s in sources for name in s.names}
  fits.require(where, wanted, shapes, types, tuple(tensor_files.DTYPES))


def _sources(model: Any) -> list[keymaps.Source]:
  """Where each of a model's parameters comes from."""
  layout = keymaps.layout_of(model.config)
  shapes = [
    padding.shape_in_file(model.config, names, spec.shape)
    for names, spec in zip(model.axes, model.shapes, strict=True)
  ]
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
  # Every process looks at a share, as it reads a share.
  return files[name].same_bytes(
    files[embed], (jax.process_index(), jax.process_count())
  )


def _read(
  model: Any,
  names: Sequence[str],
  source: keymaps.Source,
  files: Mapping[str, tensor_files.Entry],
  dtype: np.dtype,
  part: shards.Part,
) -> np.ndarray:
  """A part of one of a model's parameters, cast.

  Read straight into the array that jax takes over: on a CPU there is never
  another copy of it. Where elements change their order there is, of one
  tensor.
  """

  def fill(part, out):
    if not source.stacked:
      regions.read(files[source.names[0]], source, part, out)
      return
    layers = source.names[part[0]]
    for name, layer in zip(layers, out, strict=True):
      regions.read(files[name], source, part[1:], layer)

  return shards.assemble(model.config, names, part, dtype, fill)
