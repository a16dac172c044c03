"""Model folders as they are written: whole or not there, also over old ones."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from specjax.checkpoints import folders

ROOT = pathlib.Path(__file__).parents[2]
WEIGHTS = {
  name: np.arange(16, dtype=np.float32).reshape(4, 4) + i
  for i, name in enumerate("abcde")
}


def write(folder, values=None, **options):
  values = WEIGHTS if values is None else values
  options = {"config": {"model_type": "x"}, "dtype": np.float32} | options
  shapes = {name: value.shape for name, value in values.items()}
  folders.write(folder, shapes, values.items(), **options)


def content(folder):
  return {
    path.relative_to(folder).as_posix(): path.read_bytes()
    for path in folder.rglob("*")
    if path.is_file()
  }


@pytest.mark.parametrize(
  "limit, files", [(320, 1), (319, 2), (128, 3), (127, 5), (64, 5), (1, 5)]
)
def test_weights_beyond_the_limit_go_into_shards_with_an_index(
  tmp_path, limit, files
):
  folder = tmp_path / "new"
  write(folder, max_shard_bytes=limit)
  names = sorted(path.name for path in folder.glob("*.safetensors"))
  if files == 1:
    assert names == ["model.safetensors"]
    assert not (folder / "model.safetensors.index.json").exists()
    return
  assert names == [
    f"model-{i:05d}-of-{files:05d}.safetensors" for i in range(1, files + 1)
  ]
  index = json.loads((folder / "model.safetensors.index.json").read_text())
  assert index["metadata"] == {"total_size": 5 * 64}
  assert index["weight_map"].keys() == WEIGHTS.keys()
  for name, value in WEIGHTS.items():
    file = safetensors.load_file(folder / index["weight_map"][name])
    np.testing.assert_array_equal(file[name], value)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_the_dtype_is_the_files_and_the_configs(tmp_path, dtype):
  write(tmp_path / "new", config={"dtype": "int8", "a": 1}, dtype=dtype)
  read = safetensors.load_file(tmp_path / "new" / "model.safetensors")
  assert {value.dtype for value in read.values()} == {np.dtype(dtype)}
  config = json.loads((tmp_path / "new" / "config.json").read_text())
  assert config == {"a": 1, "torch_dtype": np.dtype(dtype).name}


@pytest.mark.parametrize(
  "source, dtype, most",
  [
    (np.float32, np.float16, 1e6),
    (ml_dtypes.bfloat16, np.float16, 1e6),
    (np.float32, ml_dtypes.bfloat16, 3.4e38),
  ],
)
def test_numbers_without_room_are_refused_by_name(
  source, dtype, most, tmp_path
):
  big = {"a": np.ones(3, source), "b": np.array([1, most], source)}
  with pytest.raises(ValueError, match=r"tensor b holds .*, which .*no room"):
    write(tmp_path / "new", big, dtype=dtype)
  assert not (tmp_path / "new").exists()


def test_other_files_lie_beside_the_weights(tmp_path):
  others = {"tokenizer.json": b"{}", "additional_chat_templates/a.jinja": b"a"}
  write(tmp_path / "new", others=others)
  found = content(tmp_path / "new")
  assert {name: found[name] for name in others} == others
  copied = folders.companions(tmp_path / "new")
  assert copied == others  # neither weights nor config.json


def test_a_folder_that_holds_something_is_kept(tmp_path):
  (tmp_path / "mine").write_text("mine")
  with pytest.raises(FileExistsError, match="not empty.*--overwrite"):
    write(tmp_path)
  with pytest.raises(FileExistsError, match="a file, not a folder"):
    write(tmp_path / "mine", overwrite=True)
  assert content(tmp_path) == {"mine": b"mine"}


def test_shards_replace_a_whole_file_and_the_other_way_round(tmp_path):
  write(tmp_path / "new")
  write(tmp_path / "new", max_shard_bytes=64, overwrite=True)
  assert not (tmp_path / "new" / "model.safetensors").exists()
  write(tmp_path / "new", overwrite=True)
  assert sorted(content(tmp_path / "new")) == [
    "config.json",
    "model.safetensors",
  ]


def failing(at):
  yield from list(WEIGHTS.items())[:at]
  raise OSError("the disk is full")


@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("limit", [64, 1000])
def test_a_failed_save_leaves_everything_as_it_was(tmp_path, at, limit):
  shapes = {name: value.shape for name, value in WEIGHTS.items()}
  old = tmp_path / "old"
  write(old, {"z": np.ones(2, np.float32)})
  before = content(old)
  for folder in (old, tmp_path / "new" / "deep"):
    with pytest.raises(OSError, match="the disk is full"):
      folders.write(
        folder,
        shapes,
        failing(at),
        config={},
        dtype=np.float32,
        overwrite=True,
        max_shard_bytes=limit,
      )
  assert content(old) == before
  assert not (tmp_path / "new").exists()


_KILLED = """
import os, pathlib, signal, sys
import numpy as np
from specjax.checkpoints import folders
moment = int(sys.argv[2])
def dying(count=[0]):
  count[0] += 1
  if count[0] == moment:
    os.kill(os.getpid(), signal.SIGKILL)
for name in ("replace", "unlink", "write_bytes"):
  def wrapped(self, *args, _old=getattr(pathlib.Path, name), **options):
    dying()
    return _old(self, *args, **options)
  setattr(pathlib.Path, name, wrapped)
def weights():
  for name in "abcde":
    dying()
    yield name, np.zeros((4, 4), np.float32)
folders.write(
  sys.argv[1], {name: (4, 4) for name in "abcde"}, weights(), config={"new": 1},
  dtype=np.float32, others={"tokenizer.json": b"new"}, overwrite=True,
  max_shard_bytes=128,
)
"""


def test_a_killed_save_leaves_no_folder_that_passes_for_a_model(tmp_path):
  """Killed at each of its writes and moves: the old model, none, or the new."""
  seen = set()
  for moment in range(1, 30):
    folder = tmp_path / str(moment)
    write(folder, others={"chat_template.jinja": b"old"})
    before = content(folder)
    done = subprocess.run(
      [sys.executable, "-c", _KILLED, str(folder), str(moment)],
      cwd=ROOT,
      env=os.environ | {"JAX_PLATFORMS": "cpu"},
      check=False,
    )
    found = content(folder)
    whole = {n: c for n, c in found.items() if not n.startswith(".specjax")}
    if whole == before:
      seen.add("old")
    elif "config.json" not in whole:
      seen.add("none")
    else:
      seen.add("new")
      assert json.loads(whole["config.json"])["new"] == 1
      assert "chat_template.jinja" not in whole
      assert len(list(folder.glob("model-*-of-00003.safetensors"))) == 3
    if done.returncode == 0:
      break
    assert done.returncode == -signal.SIGKILL
    # What it left is no obstacle, and is cleared away.
    if not any(not name.startswith(".specjax") for name in found):
      write(folder)
  assert done.returncode == 0
  assert seen == {"old", "none", "new"}
  write(folder, overwrite=True)
  assert not list(folder.glob(".specjax*"))
