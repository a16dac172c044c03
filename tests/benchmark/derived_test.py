"""What is made for peers is made once, whole, and anew for other weights."""

import pytest

from specjax.benchmark import derived


@pytest.fixture
def model(tmp_path):
  folder = tmp_path / "model"
  folder.mkdir()
  (folder / "model.safetensors").write_text("weights")
  return folder


def as_file(path):
  path.write_text("made")


def as_folder(path):
  path.mkdir()
  (path / "config.json").write_text("made")


@pytest.mark.parametrize("write", [as_file, as_folder])
def test_it_is_made_once_and_anew_for_other_weights(model, tmp_path, write):
  calls, cache = [], tmp_path / "cache"

  def make(dtype="float32"):
    counted = lambda path: (calls.append(path), write(path))
    return derived.kept([model], counted, dtype=dtype, cache=cache, suffix=".x")

  path = make()
  assert path.name.startswith("model-float32-") and path.name.endswith(".x")
  assert make() == path and len(calls) == 1
  assert make("bfloat16") != path
  (model / "model.safetensors").write_text("other weights")
  assert make() != path and len(calls) == 3
  assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("write", [as_file, as_folder])
def test_what_fails_half_way_leaves_nothing(model, tmp_path, write):
  def fail(path):
    write(path)
    raise OSError("the disk is full")

  with pytest.raises(OSError, match="full"):
    derived.kept([model], fail, dtype="float32", cache=tmp_path / "cache")
  assert not list((tmp_path / "cache").iterdir())
