"""The cache of compiled programs: where it lies, who may decide, that it hits.

jax's settings belong to the process: what a test here sets, it sets back.
"""

import os
import pathlib
import subprocess
import sys

import jax
import pytest

from specjax import compilation_cache, user_cache

ROOT = pathlib.Path(__file__).parent.parent
SETTINGS = (
  "jax_compilation_cache_dir",
  "jax_enable_compilation_cache",
  "jax_persistent_cache_min_compile_time_secs",
)


@pytest.fixture(autouse=True)
def restored(monkeypatch):
  before = {name: getattr(jax.config, name) for name in SETTINGS}
  jax.config.update("jax_compilation_cache_dir", None)
  jax.config.update("jax_enable_compilation_cache", True)
  monkeypatch.delenv("SPECJAX_CACHE", raising=False)
  yield
  for name, value in before.items():
    jax.config.update(name, value)


def test_the_default_is_the_users_cache_folder(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  expected = tmp_path / "specjax" / "xla"
  assert compilation_cache.enable() == str(expected)
  assert jax.config.jax_compilation_cache_dir == str(expected)
  assert expected.is_dir()


def test_the_folder_of_models_is_that_of_programs_too(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", "/other")
  monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
  assert user_cache.folder() == tmp_path
  assert compilation_cache.enable() == str(tmp_path / "xla")
  monkeypatch.setenv("HOME", str(tmp_path))
  monkeypatch.setenv("SPECJAX_CACHE", "~/mine")
  assert user_cache.folder() == tmp_path / "mine"


@pytest.mark.parametrize("value", ["", "relative"])
def test_without_a_cache_folder_it_lies_in_the_home(
  monkeypatch, tmp_path, value
):
  monkeypatch.setenv("XDG_CACHE_HOME", value)
  monkeypatch.setenv("HOME", str(tmp_path))
  expected = tmp_path / ".cache" / "specjax" / "xla"
  assert compilation_cache.default_folder() == expected


def test_what_jax_was_told_stays(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  jax.config.update("jax_compilation_cache_dir", "/mine")
  assert compilation_cache.enable() == "/mine"
  jax.config.update("jax_enable_compilation_cache", False)
  assert compilation_cache.enable() is None
  assert not list(tmp_path.iterdir())


def test_a_folder_asked_for_wins(tmp_path):
  jax.config.update("jax_compilation_cache_dir", "/mine")
  jax.config.update("jax_enable_compilation_cache", False)
  wished = str(tmp_path / "a" / "b")
  assert compilation_cache.enable(wished) == wished
  assert jax.config.jax_compilation_cache_dir == wished
  assert jax.config.jax_enable_compilation_cache


def test_a_folder_asked_for_that_cannot_be_is_an_error(tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(OSError, match="file"):
    compilation_cache.enable(tmp_path / "file" / "below")


def test_a_default_folder_that_cannot_be_is_done_without(monkeypatch, tmp_path):
  (tmp_path / "file").touch()
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
  assert compilation_cache.enable() is None
  assert jax.config.jax_compilation_cache_dir is None


def test_off_is_off():
  compilation_cache.disable()
  assert not jax.config.jax_enable_compilation_cache


def test_a_second_start_finds_the_programs_and_is_quiet(tmp_path):
  program = """
    import jax
    from specjax import compilation_cache
    compilation_cache.enable()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    seen = []
    jax.monitoring.register_event_listener(lambda name, **_: seen.append(name))
    print(float(jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((8, 8)))))
    print(sum(name.endswith("/cache_hits") for name in seen) > 0)
  """
  lines = "\n".join(line.strip() for line in program.splitlines())
  environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
  for name in ("JAX_COMPILATION_CACHE_DIR", "SPECJAX_CACHE"):
    environment.pop(name, None)

  def start():
    done = subprocess.run(
      [sys.executable, "-c", lines],
      cwd=ROOT,
      env=environment,
      capture_output=True,
      text=True,
      check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()

  assert start() == ["512.0", "False"]
  assert start() == ["512.0", "True"]
