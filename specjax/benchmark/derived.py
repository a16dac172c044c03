"""What peers read in place of our folders: made once, and kept."""

import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence


def kept(
  folders: Sequence[str | os.PathLike],
  write: Callable[[pathlib.Path], None],
  *,
  dtype: str,
  cache: pathlib.Path,
  suffix: str = "",
) -> pathlib.Path:
  """What is made of some models, written if it is not there.

  Args:
    folders: of the models; other weights in them make it anew. The first one
      gives the name.
    write: makes a file or a folder of a path.
    dtype: of what is made.
    cache: the folder where it is kept.
    suffix: of its name.

  Raises: as `write`.
  """
  folders = [pathlib.Path(folder).resolve() for folder in folders]
  stamps = [
    (str(path), path.stat().st_size, path.stat().st_mtime_ns)
    for folder in folders
    for path in sorted(folder.glob("*.safetensors"))
  ]
  digest = hashlib.sha256(json.dumps([stamps, dtype]).encode()).hexdigest()
  path = cache / f"{folders[0].name}-{dtype}-{digest[:16]}{suffix}"
  if not path.exists():
    cache.mkdir(parents=True, exist_ok=True)
    partial = cache / f"{path.name}.{os.getpid()}.partial"
    try:
      write(partial)
      partial.rename(path)  # What bears the name is whole.
    finally:
      if partial.is_dir():
        shutil.rmtree(partial)
      partial.unlink(missing_ok=True)
  return path
