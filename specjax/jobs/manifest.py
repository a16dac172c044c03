"""What a job is made of, so that only the same job goes on with its output.

A manifest lies beside an output from before its first row on, and stays. It
holds everything that shapes an answer: the prompts, the settings, the models
by what is in their files. Where files lie, how many slots there are and the
like may change between two starts.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

VERSION = 1
# Of a model's folder, what loading it reads.
_SUFFIXES = {".json", ".jinja", ".model", ".safetensors", ".gguf"}
# Of a folder that was fetched from a URL: what lies there, by name, size and
# date (checkpoints.locate). It stands for the content, which may not have been
# fetched whole.
LISTING = "specjax-listing.json"
_ORBAX = "orbax"
# Of a large file so many pieces of this size are read, spread over all of it:
# weights that were trained further differ everywhere.
_PIECES, _PIECE = 64, 2**16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """A job.

  Attributes:
    prompts: a digest of the prompt file.
    rows: rows of the prompt file.
    settings: by name, as JSON has them; those that shape an answer.
    models: by role (model, draft_model), a digest of the folder; None before
      they are known.
  """

  prompts: str
  rows: int
  settings: Mapping[str, Any]
  models: Mapping[str, str] | None = None

  def to_bytes(self) -> bytes:
    """A JSON file of it."""
    fields = {"version": VERSION} | dataclasses.asdict(self)
    return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()


def from_bytes(data: bytes) -> Manifest:
  """Reads what `to_bytes` gave.

  Raises:
    ValueError: it is damaged, or of another version.
  """
  try:
    fields = dict(json.loads(data))
    version = fields.pop("version", None)
    made = Manifest(**fields)
    whole = all(
      isinstance(part, Mapping) for part in (made.settings, made.models)
    )
  except (ValueError, TypeError, RecursionError):
    raise ValueError("it is damaged") from None
  if version != VERSION:
    raise ValueError(f"it is of version {version!r}, not {VERSION}")
  if not whole:
    raise ValueError("it is damaged")
  return made


def differences(before: Manifest, now: Manifest) -> list[str]:
  """What is not the same, in words; models only where both know them."""
  found = []
  if before.prompts != now.prompts:
    sizes = f" ({before.rows} rows then, {now.rows} now)"
    found.append("other prompts" + (sizes if before.rows != now.rows else ""))
  settings = json.loads(json.dumps(dict(now.settings)))  # As they come back.
  for name in sorted({*before.settings, *settings}):
    old, new = before.settings.get(name), settings.get(name)
    if old != new:
      found.append(f"{name}={json.dumps(old)}, not {json.dumps(new)}")
  if before.models is not None and now.models is not None:
    for role in sorted({*before.models, *now.models}):
      if before.models.get(role) != now.models.get(role):
        found.append(f"other files in the folder of --{role}")
  return found


def digest_of_folder(folder: str | os.PathLike) -> str:
  """A digest of a model's files, by name and content but not by place.

  Of a file over 4 MB only its size and 64 pieces are read; of a model behind a
  URL, names, sizes and dates count instead.

  Raises:
    OSError: a file cannot be read.
  """
  folder, total = pathlib.Path(folder), hashlib.sha256()
  if (folder / LISTING).is_file():
    return hashlib.sha256((folder / LISTING).read_bytes()).hexdigest()
  paths = [path for path in folder.iterdir() if path.suffix in _SUFFIXES]
  paths += (folder / _ORBAX).rglob("*")
  for path in sorted(paths):
    if not path.is_file():
      continue
    size, name = path.stat().st_size, path.relative_to(folder).as_posix()
    total.update(f"{name}\0{size}\0".encode())
    with open(path, "rb") as file:
      if size <= _PIECES * _PIECE:
        total.update(file.read())
        continue
      for piece in range(_PIECES):
        file.seek((size - _PIECE) * piece // (_PIECES - 1))
        total.update(file.read(_PIECE))
  return total.hexdigest()
