"""Writes safetensors files, tensor by tensor; `tensor_files` reads them."""

import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from specjax.checkpoints.tensor_files import DTYPES, PIECE

_CODES = {dtype: code for code, dtype in DTYPES.items()}
_CODES[np.dtype(np.int64)] = "I64"


def write(
  path: pathlib.Path,
  shapes: Mapping[str, Sequence[int]],
  tensors: Iterator[tuple[str, np.ndarray]],
  dtype: np.dtype,
  types: Mapping[str, np.dtype] | None = None,
) -> None:
  """Writes a file, tensor by tensor.

  Args:
    path: the file.
    shapes: tensor name to shape, in the order of `tensors`.
    tensors: names and values; as many as `shapes` has are taken.
    dtype: of the file: float32, float16 or bfloat16.
    types: of tensors of another type, which may be int64 too.

  Raises:
    ValueError: a tensor is not the next one that `shapes` announced, or holds
      a number that float16 has no room for.
  """
  header, end = {"__metadata__": {"format": "pt"}}, 0
  for name, shape in shapes.items():
    own = np.dtype((types or {}).get(name, dtype))
    start, end = end, end + math.prod(shape) * own.itemsize
    header[name] = {
      "dtype": _CODES[own],
      "shape": list(shape),
      "data_offsets": [start, end],
    }
  encoded = json.dumps(header).encode()
  encoded += b" " * (-len(encoded) % 8)
  with path.open("wb") as file:
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    for announced, shape in shapes.items():
      name, value = next(tensors, (None, np.empty(0)))
      if name is None:
        raise ValueError(f"tensor {announced} was announced and never came")
      if (name, value.shape) != (announced, tuple(shape)):
        raise ValueError(f"tensor {name} {value.shape} was not announced")
      for part in _cast(name, value, np.dtype((types or {}).get(name, dtype))):
        file.write(part)


def _cast(
  name: str, value: np.ndarray, dtype: np.dtype
) -> Iterable[memoryview]:
  """A tensor's bytes in another type, in pieces."""
  flat = np.ascontiguousarray(value).reshape(-1)
  step = max(PIECE // max(flat.itemsize, dtype.itemsize), 1)
  for at in range(0, flat.size, step):
    part = flat[at : at + step]
    with np.errstate(over="ignore"):
      cast = part.astype(dtype, copy=False)
    # Looked for: casts of bfloat16 raise no floating point error.
    if cast is not part and np.any(np.isinf(cast) & np.isfinite(part)):
      raise ValueError(
        f"tensor {name} holds {np.abs(part).max():.4g}, which {dtype.name} has "
        "no room for; give --dtype=bfloat16 or float32"
      )
    # Seen as bytes: numpy has no buffer of bfloat16.
    yield cast.view(np.uint8).data
