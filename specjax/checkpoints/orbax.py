"""Orbax checkpoints of a model's parameters, for any mesh.

A model folder with `orbax/` instead of safetensors: config.json and the
tokenizer's files lie in it as in Hugging Face's. Orbax writes it, each process
its own shards. The arrays are an array each for a stack of layers, or for each
layer, and may have added heads, whatever the model that was saved had. A model
of another form reads them all the same: each process takes the parts that its
shards need, through TensorStore, which Orbax itself reads with.
"""

import contextlib
import functools
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specjax.checkpoints import fits, folders, shards
from specjax.checkpoints.ranges import Traffic
from specjax.checkpoints.tensor_files import CheckpointError, shown
from specjax.models import decoder, padding
from specjax.models.config import DecoderConfig
from specjax.sharding.axes import LAYERS

# Arrays lie in chunks, which are read and decoded whole: small ones, and of one
# layer, for those who need other parts than those that were saved.
_CHUNK_BYTES = 1 << 22
# Decoded chunks that are kept, for the other parts on this process's devices.
_CACHE_BYTES = 1 << 28
_HEADS = "specjax_heads"  # in Orbax's metadata; see `_heads`
_TYPES = ("float32", "bfloat16", "float16")


def save(
  folder: os.PathLike | str,
  model: Any,
  params: Sequence[jax.Array],
  *,
  config: Mapping[str, Any],
  others: Mapping[str, bytes] | None = None,
  overwrite: bool = False,
) -> None:
  """Writes a model folder; where there are many processes all must call this.

  Args:
    folder: on a disk that every process sees; made if it is not there.
    model: as in `hf.load_params`.
    params: in the order of `model.paths`; their dtype is kept.
    config: the content of config.json; the dtype is filled in.
    others: name to content of the files beside it.
    overwrite: whether the folder may already hold files, as `folders.write`.

  Raises:
    FileExistsError: see `folders.check`.
    RuntimeError: on the other processes, where process 0 could not save.
  """
  import orbax.checkpoint as ocp

  folder = pathlib.Path(folder).absolute()
  how = [
    ocp.SaveArgs(
      chunk_byte_size=_CHUNK_BYTES,
      shard_axes=tuple(n for n, name in enumerate(names) if name == LAYERS),
    )
    for names in model.axes
  ]
  with contextlib.ExitStack() as stack:

    def begin(_):
      folders.check(folder, overwrite=overwrite)
      stack.enter_context(folders.staged(folder, "orbax"))

    stage = folders.stage_of(folder, "orbax")
    shards.write_once((), begin)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
      checkpointer.save(
        stage / folders.ORBAX,
        args=ocp.args.PyTreeSave(
          _tree(model.paths, params),
          save_args=_tree(model.paths, how),
          custom_metadata={_HEADS: _heads(model.config)},
        ),
      )
    shards.write_once(
      (),
      lambda _: folders.finish(
        stage, folder, config=config, dtype=params[0].dtype, others=others
      ),
    )


def _tree(paths: Sequence[str], leaves: Sequence[Any]) -> dict[str, Any]:
  """The leaves in dictionaries, one in another, by the parts of their paths."""
  tree: dict[str, Any] = {}
  for path, leaf in zip(paths, leaves, strict=True):
    inner = tree
    *above, last = path.split(".")
    for key in above:
      inner = inner.setdefault(key, {})
    inner[last] = leaf
  return tree


def load_params(
  folder: os.PathLike | str,
  model: Any,
  *,
  url: str | None = None,
  traffic: Traffic | None = None,
) -> tuple[jax.Array, ...]:
  """Loads a model's parameters from a folder's Orbax checkpoint.

  Args:
    folder: with `orbax/` in it.
    model: as in `hf.load_params`: with shardings or without, its layers
      stacked or not, its heads padded or not, whatever was saved.
    url: where `orbax/` lies, if not in the folder.
    traffic: counts the bytes of all chunks that each part for this process's
      devices lies in, as they are before compression: what is read at most.

  Returns:
    The parameters in the order of `model.paths`, in the model's dtype.

  Raises:
    CheckpointError: arrays are missing, unexpected, or of another shape or
      type; or the checkpoint is damaged.
  """
  where = f"{folder if url is None else url.rstrip('/')}/{folders.ORBAX}"
  stores, metadata = _open(where)
  saved = _saved_config(where, model, stores, metadata)
  traffic = Traffic() if traffic is None else traffic
  return tuple(
    shards.load(
      spec.shape,
      sharding,
      functools.partial(
        _read, where, stores, saved, model, path, names, traffic
      ),
    )
    for path, spec, names, sharding in zip(
      model.paths,
      model.shapes,
      model.axes,
      shards.shardings_of(model),
      strict=True,
    )
  )


def _open(where: str) -> tuple[dict[str, Any], Mapping[str, Any]]:
  """A checkpoint's arrays by name, none of them read yet, and its metadata."""
  import tensorstore

  base = where if "://" in where else f"file://{os.path.abspath(where)}"
  base = re.sub("^gcs://", "gs://", base)  # TensorStore's only name for it
  kvstore = {"driver": "ocdbt", "base": f"{base}/"}
  context = tensorstore.Context(
    {"cache_pool": {"total_bytes_limit": _CACHE_BYTES}}
  )
  try:
    keys = tensorstore.KvStore.open(kvstore).result().list().result()
    opened = {
      # A chunk that is lost must not read as zeros.
      key.decode().removesuffix(file): tensorstore.open(
        {
          "driver": driver,
          "kvstore": {**kvstore, "path": key.decode().removesuffix(file[1:])},
          "fill_missing_data_reads": False,
          "recheck_cached_data": False,
        },
        open=True,
        read=True,
        context=context,
      )
      for driver, file in (("zarr", "/.zarray"), ("zarr3", "/zarr.json"))
      for key in keys
      if key.endswith(file.encode())
    }
    if opened:
      beside = tensorstore.KvStore.open(f"{base}/").result()
      content = json.loads(beside.read("_METADATA").result().value)
      metadata = content.get("custom_metadata") or {}
      return {n: store.result() for n, store in opened.items()}, metadata
  except Exception as error:  # TensorStore raises ValueError and others
    raise _damaged(where, error) from None
  raise CheckpointError(f"{where}: no Orbax checkpoint in it; fetch it again")


def _damaged(where: str, error: Exception) -> CheckpointError:
  line = next(iter(str(error).splitlines()), type(error).__name__)
  line = re.sub(r" \[[a-z_ ]+=.*", "", line)  # where in TensorStore's source
  return CheckpointError(
    f"{where}: missing, truncated or damaged ({line}); fetch it again"
  )


def _heads(config: DecoderConfig) -> list[int]:
  """N and K of a model, and of the checkpoint that it was padded from."""
  own = padding.unpadded(config)
  return [config.heads, config.kv_heads, own.heads, own.kv_heads]


def _is_stacked(stores: Mapping[str, Any]) -> bool:
  return not any(name.startswith("layers.0.") for name in stores)


def _saved_config(
  where: str,
  model: Any,
  stores: Mapping[str, Any],
  metadata: Mapping[str, Any],
) -> DecoderConfig:
  """Checks that the arrays are the model's; gives the config they were of.

  Raises:
    CheckpointError: see `load_params`.
  """
  config, stacked = padding.unpadded(model.config), _is_stacked(stores)
  heads = metadata.get(_HEADS, _heads(config))
  if heads != _heads(config):
    # What these heads were padded from must be this model.
    with contextlib.suppress(TypeError, ValueError, IndexError):
      config = padding.padded(config, int(heads[1]))
    if heads != _heads(config):
      raise CheckpointError(
        f"{where} does not fit the model: its heads are {shown(heads)}, the "
        f"config says {_heads(padding.unpadded(config))}"
      )
  form = decoder.build(config, scan_layers=stacked)
  fits.require(
    where,
    {p: s.shape for p, s in zip(form.paths, form.shapes, strict=True)},
    {name: store.shape for name, store in stores.items()},
    {name: store.dtype.name for name, store in stores.items()},
    _TYPES,
  )
  return config


def _read(
  where: str,
  stores: Mapping[str, Any],
  saved: DecoderConfig,
  model: Any,
  path: str,
  names: Sequence[str],
  traffic: Traffic,
  part: shards.Part,
) -> np.ndarray:
  """A part of one of a model's parameters, cast."""
  import tensorstore

  layer = re.match(r"layers\.(\d+)\.", path)
  writes = []

  def take(name, places, out):
    traffic.nbytes += _chunk_bytes(stores[name], places)
    to = tensorstore.array(out)
    store = stores[name].oindex[tuple(places)]
    writes.append(to.write(tensorstore.cast(store, to.dtype)))

  def fill(origin, out):
    places = [
      _places(saved, name, axis)
      for name, axis in zip(names, origin, strict=True)
    ]
    if not path.startswith("layers.") or _is_stacked(stores) != bool(layer):
      take(path, places, out)
    elif layer:  # one of a stack
      stack = path.replace(layer.group(), "layers.", 1)
      take(stack, [int(layer.group(1)), *places], out)
    else:  # a stack of what was saved layer by layer
      for number, one in enumerate(out, start=origin[0].start):
        name = path.replace("layers.", f"layers.{number}.", 1)
        take(name, places[1:], one)

  try:
    value = shards.assemble(model.config, names, part, model.dtype, fill)
    for write in writes:
      write.result()
  except Exception as error:  # TensorStore raises ValueError and others
    raise _damaged(where, error) from None
  return value


def _places(
  saved: DecoderConfig, name: str | None, axis: slice
) -> slice | np.ndarray:
  """Where the checkpoint's heads, or other indices, are among those saved."""
  heads = padding.heads_of(saved, name)
  if heads is None:
    return axis
  return np.asarray([heads.index(n) for n in range(axis.start, axis.stop)])


def _chunk_bytes(store: Any, places: Sequence[int | slice | np.ndarray]) -> int:
  """Bytes of all chunks that a part lies in."""
  count = store.dtype.numpy_dtype.itemsize
  chunks = store.chunk_layout.read_chunk.shape
  for place, size, chunk in zip(places, store.shape, chunks, strict=True):
    if isinstance(place, slice):
      place = np.arange(place.start, place.stop)
    count *= min(np.unique(np.asarray(place) // chunk).size * chunk, size)
  return count
