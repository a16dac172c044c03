"""Files behind URLs (gs://bucket/name), through fsspec; paths pass through."""

import contextlib
import io
import os
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

# What to install for a scheme that fsspec knows and lacks the package for.
_EXTRAS = {"gs": 'pip install "specjax[gcs]"', "s3": "pip install s3fs"}
_EXTRAS["gcs"] = _EXTRAS["gs"]


def is_url(name: str | os.PathLike) -> bool:
  """Whether a name is a URL (scheme://…) rather than a path."""
  return re.match(r"[a-z][a-z0-9+.-]*://", os.fspath(name)) is not None


def local_path(name: str | os.PathLike) -> str | None:
  """The path of a file of this machine, also behind file:// or local://.

  None where that is no such file.
  """
  name = os.fspath(name)
  if not is_url(name):
    path = name
  elif name.startswith(("file://", "local://")):
    path = filesystem(name)[1]
  else:
    return None
  return path if os.path.exists(path) else None


def filesystem(url: str) -> tuple[Any, str]:
  """The fsspec file system of a URL, and the path within it.

  Raises:
    ImportError: it needs a package that is not installed; names it.
    ValueError: the scheme is unknown.
  """
  import fsspec  # only URLs pay for it

  scheme = url.partition("://")[0]
  try:
    with _told(url):
      return fsspec.core.url_to_fs(url)
  except ImportError as error:
    advice = _EXTRAS.get(scheme, str(error))
    raise ImportError(
      f"{url}: {scheme}:// needs another package: {advice}"
    ) from None


@contextlib.contextmanager
def reading(name: str | os.PathLike) -> Iterator[BinaryIO]:
  """Opens a path or a URL for reading bytes.

  Raises:
    OSError, ImportError, ValueError: it cannot be read.
  """
  if not is_url(name):
    with open(name, "rb") as file:
      yield file
    return
  system, path = filesystem(os.fspath(name))
  with _told(name):
    data = system.cat_file(path)
  yield io.BytesIO(data)


def children(system: Any, folder: str) -> list[str]:
  """Paths of what lies in a folder; none where there is no such folder."""
  system.invalidate_cache()  # Listings are kept, and other processes write.
  with _told(folder):
    try:
      return sorted(system.ls(folder, detail=False))
    except FileNotFoundError:
      return []


def get(system: Any, path: str) -> bytes | None:
  """An object's bytes, or None where there is none.

  Raises:
    ConnectionError: it cannot be had.
  """
  with _told(path):
    try:
      return system.cat_file(path)
    except FileNotFoundError:
      return None


def put(system: Any, path: str, data: bytes, *, replace: bool) -> None:
  """Writes an object whole.

  Raises:
    FileExistsError: there is one, and `replace` is false.
    ConnectionError: it cannot be written.
  """
  with _told(path):
    system.pipe_file(path, data, mode="overwrite" if replace else "create")


def remove(system: Any, path: str) -> None:
  """Removes an object, where there is one."""
  with _told(path), contextlib.suppress(FileNotFoundError):
    system.rm_file(path)


@contextlib.contextmanager
def _told(name: str | os.PathLike) -> Iterator[None]:
  """Turns whatever a store's library raises into an error that names it."""
  try:
    yield
  except (FileNotFoundError, FileExistsError, IsADirectoryError, ImportError):
    raise
  except ValueError as error:
    raise ValueError(f"{name}: {_first_line(error)}") from None
  except Exception as error:
    raise ConnectionError(f"{name}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
  return next(iter(str(error).splitlines()), type(error).__name__)
