"""Keeps compiled programs on disk: the next start of the same shapes is fast.

jax has such a cache but leaves it off. Whoever starts a program of their own
(a command, a notebook) turns it on here; importing specjax does not.
"""

import os
import pathlib

import jax

from specjax import user_cache

# jax keeps what took a second or more. The many small programs around a step
# take less each, and together as long as a large one.
_LEAST_COMPILE_S = 0.1
_JAX_LEAST_COMPILE_S = 1.0


def default_folder() -> pathlib.Path:
  """The folder xla in `user_cache.folder()`, whose errors these are."""
  return user_cache.folder() / "xla"


def enable(folder: str | os.PathLike | None = None) -> str | None:
  """Turns jax's persistent compilation cache on; call it before compiling.

  Programs are found again by shapes, settings, jax's version and the kind of
  device. The folder holds code that will be run: it must be the user's own.

  Args:
    folder: where to keep programs, also a gs:// path; made if it is not there.
      If None, what JAX_COMPILATION_CACHE_DIR or jax.config says, and otherwise
      `default_folder()`.

  Returns:
    The folder in use; None where there is none: the default one cannot be
    written to, or JAX_ENABLE_COMPILATION_CACHE is off.

  Raises:
    OSError: the folder that was asked for cannot be made or written to.
  """
  if folder is not None:  # A wish spelled out wins over the environment.
    jax.config.update("jax_enable_compilation_cache", True)
  elif not jax.config.jax_enable_compilation_cache:
    return None
  if jax.config.jax_persistent_cache_min_compile_time_secs == (
    _JAX_LEAST_COMPILE_S
  ):
    jax.config.update(
      "jax_persistent_cache_min_compile_time_secs", _LEAST_COMPILE_S
    )
  chosen = jax.config.jax_compilation_cache_dir
  if folder is None and chosen:
    return chosen
  try:
    path = _usable(default_folder() if folder is None else folder)
  except (OSError, RuntimeError):
    if folder is None:  # Nobody asked for it: start slowly and in silence.
      return None
    raise
  jax.config.update("jax_compilation_cache_dir", path)
  return path


def disable() -> None:
  """Turns the cache off, whatever the environment says."""
  jax.config.update("jax_enable_compilation_cache", False)


def _usable(folder: str | os.PathLike) -> str:
  """The folder as an absolute path, made and found writable."""
  name = os.fspath(folder)
  if "://" in name:
    return name
  path = pathlib.Path(name).expanduser().absolute()
  path.mkdir(parents=True, exist_ok=True)
  if not os.access(path, os.W_OK | os.X_OK):
    raise PermissionError(f"{path}: no right to write into this folder")
  return str(path)
