"""From what a user calls a model to a folder on this machine."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
from typing import Any

from specjax import shipped, user_cache
from specjax.checkpoints import folders

# What a model folder is made of; other files of a repository stay there.
_PATTERNS = ("*.json", "*.safetensors", "*.jinja")
_VERSION = 2  # of what a fetched folder holds
_URL = re.compile(r"[a-z0-9]+://")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
  """A model on this machine, or within its reach.

  Attributes:
    folder: with config.json and the tokenizer's files.
    url: where the weights lie, if not in the folder.
  """

  folder: pathlib.Path
  url: str | None = None


def resolve(name: str | os.PathLike) -> pathlib.Path:
  """The local folder of a model; see `find`."""
  return find(name).folder


def find(name: str | os.PathLike, *, ranged: bool = False) -> Found:
  """Finds a model, fetching it first where it is not on this machine.

  Args:
    name: a folder; a name of `specjax.shipped`; a model hub id, `org/name`;
      or a URL such as gs://… of a folder. The hub's token is taken from the
      environment (HF_TOKEN). A URL's files are kept in the user's cache folder
      (`user_cache`), and fetched again when their sizes or dates change.
    ranged: whether a URL's weights are left where they are, for a caller who
      reads no more than parts of them. An Orbax checkpoint always is.

  Raises:
    FileNotFoundError: there is no such folder, model or bucket path.
    ConnectionError: the hub cannot be reached.
    ImportError: the URL needs a package that is not installed.
    ValueError: the name is none of the three.
  """
  name = os.fspath(name)
  if (here := find_here(name)) is not None:
    return Found(folder=here)
  if _URL.match(name):
    return _fetch(name, ranged)
  return Found(folder=_download(name))


def find_here(name: str | os.PathLike) -> pathlib.Path | None:
  """The folder of a model that is on this machine by itself.

  Args:
    name: as in `find`.

  Returns:
    The folder; None of a URL or a hub id, which `find` would fetch.

  Raises:
    FileNotFoundError, ValueError: as `find`, of a name that is none of them.
  """
  name = os.fspath(name)
  if _URL.match(name):
    return None
  folder = pathlib.Path(name).expanduser()
  if name and folder.is_dir():  # an empty name would be this folder
    return folder
  if name and folder.exists():
    raise ValueError(
      f"model {name!r} is a file; give the folder that holds config.json (a "
      "GGUF file becomes one with specjax-convert)"
    )
  if (brought := shipped.find(name)) is not None:
    return brought
  if _HUB_ID.fullmatch(name):
    return None
  known = f", nor one of {', '.join(shipped.names())}" * bool(shipped.names())
  raise FileNotFoundError(
    f"model {name!r}: no such folder, and not a hub id of the form org/name"
    f"{known}"
  )


def _download(name: str) -> pathlib.Path:
  """A snapshot of a hub model, from the hub's own cache where it is there."""
  import huggingface_hub
  from huggingface_hub import errors

  try:
    folder = huggingface_hub.snapshot_download(
      name, allow_patterns=list(_PATTERNS), ignore_patterns=["*/*"]
    )
  except errors.GatedRepoError:
    raise FileNotFoundError(
      f"model {name!r} asks for consent: accept its terms on the hub's page "
      "and set HF_TOKEN"
    ) from None
  except errors.RepositoryNotFoundError:
    raise FileNotFoundError(
      f"model {name!r}: no such folder here and no such model on the hub, or "
      "a private one: set HF_TOKEN"
    ) from None
  except (errors.LocalEntryNotFoundError, ConnectionError):
    raise ConnectionError(
      f"model {name!r}: no such folder here, and the hub cannot be reached "
      "(offline?); give --model a local model folder instead"
    ) from None
  except (errors.HfHubHTTPError, errors.HFValidationError) as error:
    raise ConnectionError(
      f"model {name!r}: the hub refused it ({_first_line(error)}); give "
      "--model a local model folder instead"
    ) from None
  return pathlib.Path(folder)


def _fetch(url: str, ranged: bool) -> Found:
  """Copies the folder behind a URL into the cache, or all but the weights."""
  import fsspec

  scheme = url.partition("://")[0]
  try:
    system, path = fsspec.core.url_to_fs(url)
  except ImportError as error:
    package = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs"}.get(scheme)
    advice = f"pip install {package}" if package else _first_line(error)
    raise ImportError(
      f"model {url!r}: reading {scheme}:// needs another package: {advice}"
    ) from None
  except ValueError as error:
    raise ValueError(f"model {url!r}: {_first_line(error)}") from None
  files, orbax = _listing(system, path, url)
  # The listing is in the folder's name: a changed model is another folder.
  listed = json.dumps([_VERSION, url, files, ranged, orbax])
  key = hashlib.sha256(listed.encode()).hexdigest()[:24]
  folder = user_cache.folder() / key
  found = Found(folder=folder, url=url if ranged or orbax else None)
  if folder.is_dir():
    return found
  partial = folder.with_name(f"{key}.{os.getpid()}.partial")
  partial.mkdir(parents=True)
  try:
    if orbax:  # The empty folder says that it is there.
      (partial / folders.ORBAX).mkdir()
    (partial / folders.LISTING).write_text(json.dumps(files))
    for remote, *_ in files:
      if ranged and remote.endswith(".safetensors"):
        continue
      if f"/{folders.ORBAX}/" in remote.removeprefix(path):
        continue
      system.get_file(remote, str(partial / pathlib.PurePosixPath(remote).name))
    partial.rename(folder)
  except Exception as error:  # whatever the bucket's library raises
    if folder.is_dir():  # another process was faster
      return found
    raise ConnectionError(
      f"model {url!r}: fetching failed ({_first_line(error)})"
    ) from None
  finally:
    shutil.rmtree(partial, ignore_errors=True)
  return found


def _listing(system: Any, path: str, url: str) -> tuple[list[list], bool]:
  """[path, size, date] of the model files in a remote folder, in order.

  And whether there is an Orbax checkpoint beside them, whose files are then
  among them.
  """
  try:
    entries = system.ls(path, detail=True)
  except FileNotFoundError:
    raise FileNotFoundError(f"model {url!r}: no such folder") from None
  except Exception as error:  # whatever the bucket's library raises
    raise ConnectionError(
      f"model {url!r}: cannot be listed ({_first_line(error)})"
    ) from None
  files, orbax = [], False

  def add(entry):
    date = entry.get("updated") or entry.get("mtime") or entry.get("created")
    files.append([entry["name"], entry["size"], str(date)])

  for entry in entries:
    name = entry["name"].rstrip("/").rpartition("/")[2]
    orbax |= entry["type"] == "directory" and name == folders.ORBAX
    suffixed = any(entry["name"].endswith(p[1:]) for p in _PATTERNS)
    if entry["type"] == "file" and suffixed:
      add(entry)
  if orbax:
    inside = f"{path.rstrip('/')}/{folders.ORBAX}"
    for entry in system.find(inside, detail=True).values():
      add(entry)
  if not files:
    raise FileNotFoundError(
      f"model {url!r}: no model files ({', '.join(_PATTERNS)}) in that folder"
    )
  return sorted(files), orbax


def _first_line(error: Exception) -> str:
  return next(iter(str(error).splitlines()), type(error).__name__)
