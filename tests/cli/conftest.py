"""A model-free specjax.api for the commands' tests."""

import sys
import types

import pytest

import specjax
from specjax import compilation_cache
from specjax.cli import checks
from specjax.engine import memory
from tests import fake_engine


@pytest.fixture
def api(monkeypatch, tmp_path):
  """A stand-in for specjax.api that remembers what it was asked for."""
  (tmp_path / "model").mkdir()

  def load(name, **options):
    if name == "absent":
      raise FileNotFoundError("absent: no such folder;\n  name another")
    fake.loaded[name] = options
    return types.SimpleNamespace(
      name=name,
      tokenizer=fake_engine.Encoder(),
      folder=tmp_path / "model",
      is_padded=False,
    )

  def engine(target, **options):
    fake.options = options
    fake.engine = fake_engine.Engine()
    return fake.engine

  def put(*cache):
    fake.cache = cache

  fake = types.ModuleType("specjax.api")
  fake.load, fake.Engine, fake.loaded = load, engine, {}
  fake.load_draft = lambda kind, name, target, **how: load(name, **how)
  fake.cache = None
  # Any name stands for a model here.
  monkeypatch.setattr(checks, "check_draft", lambda flag, name: None)
  # It belongs to the process, and so to all other tests too.
  monkeypatch.setattr(
    compilation_cache, "enable", lambda folder=None: put("enable", folder)
  )
  monkeypatch.setattr(compilation_cache, "disable", lambda: put("disable"))
  monkeypatch.setattr(memory, "line", lambda needed, limit: "memory: little")
  monkeypatch.setitem(sys.modules, "specjax.api", fake)
  monkeypatch.setattr(specjax, "api", fake, raising=False)
  return fake
