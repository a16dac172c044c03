"""A model folder's weights, in either of the forms they come in."""

import os
import pathlib
from typing import Any

import jax

from specjax.checkpoints import folders, hf, orbax
from specjax.checkpoints.ranges import Traffic


def is_orbax(folder: os.PathLike | str) -> bool:
  """Whether a model folder has an Orbax checkpoint and no safetensors.

  Raises:
    ValueError: it has both, and nobody knows which is meant.
  """
  folder = pathlib.Path(folder)
  if not (folder / folders.ORBAX).is_dir():
    return False
  for path in folder.glob("*.safetensors"):
    raise ValueError(
      f"{folder}: holds both {folders.ORBAX}/ and {path.name}; remove one"
    )
  return True


def load_params(
  folder: os.PathLike | str,
  model: Any,
  *,
  url: str | None = None,
  traffic: Traffic | None = None,
) -> tuple[jax.Array, ...]:
  """Loads a model's parameters; see `hf` and `orbax`, whose errors these are.

  Args:
    folder: a model folder.
    model: as in `hf.load_params`.
    url: where the weights lie, if not in the folder.
    traffic: counts the bytes that this process reads.
  """
  form = orbax if is_orbax(folder) else hf
  return form.load_params(folder, model, url=url, traffic=traffic)
