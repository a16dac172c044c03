"""Folders of rows: what is written is read, and damage is named."""

import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from specjax.training import shards
from specjax.training.shard_writer import Writer

ABOUT = {"target": {"vocab_size": 99}, "settings": {"seed": 0}, "hidden": []}
WITH_HIDDEN = ABOUT | {"hidden": [3, 7]}


def row(number, hidden=False):
  rng = np.random.default_rng(number)
  size = 3 + number
  states = rng.normal(size=(size, 2, 4)).astype(ml_dtypes.bfloat16)
  return shards.Row(
    id=f"a.jsonl:{number}@1",
    tokens=rng.integers(0, 99, size).astype(np.int32),
    answer=number % 3,
    temperature=0.5 * (number % 2),
    hidden=states if hidden else None,
  )


def write(folder, numbers, *, about=ABOUT, finish=True, **how):
  with Writer(folder, about, **how) as writer:
    for number in numbers:
      writer.append(row(number, bool(about["hidden"])))
    if finish:
      writer.finish()
  return folder


def same(found, number, hidden=False):
  made = row(number, hidden)
  assert found.id == made.id
  assert found.tokens.tolist() == made.tokens.tolist()
  assert (found.answer, found.temperature) == (made.answer, made.temperature)
  if hidden:
    assert found.hidden.dtype == ml_dtypes.bfloat16
    assert (np.asarray(found.hidden) == made.hidden).all()
  else:
    assert found.hidden is None


def names(folder):
  return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("hidden", [False, True])
def test_rows_come_back_as_they_were_over_several_shards(tmp_path, hidden):
  about = WITH_HIDDEN if hidden else ABOUT
  write(tmp_path, range(10), about=about, shard_bytes=120)
  reader = shards.Reader(tmp_path)
  assert len(reader) == 10 and len(names(tmp_path)) > 3
  for number, found in enumerate(reader):
    same(found, number, hidden)
  same(reader[-1], 9, hidden)
  same(reader[2:4][1], 3, hidden)
  with pytest.raises(IndexError):
    reader[10]
  assert reader.lengths.tolist() == [3 + number for number in range(10)]
  assert reader.layers == tuple(about["hidden"])
  assert reader.about == about and reader.complete
  reader.verify()


def test_the_arrays_of_a_shard_are_those_of_the_docstring(tmp_path):
  write(tmp_path, range(3), about=WITH_HIDDEN)
  with np.load(tmp_path / "shard-00000.npz") as file:
    assert file["tokens"].dtype == file["answer"].dtype == np.int32
    assert file["starts"].tolist() == [0, 3, 7, 12]
    assert file["hidden"].shape == (12, 2, 4)
    assert file["hidden"].dtype == np.uint16
    assert json.loads(str(file["ids"])) == [row(i).id for i in range(3)]


def test_states_are_mapped_and_not_read(tmp_path):
  write(tmp_path, range(3), about=WITH_HIDDEN)
  assert isinstance(shards.Reader(tmp_path)[1].hidden, np.memmap)


def test_the_same_rows_give_the_same_bytes(tmp_path):
  one, other = (write(tmp_path / n, range(4)) for n in "ab")
  for name in names(one):
    assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_folder_that_is_gone_on_with_has_every_row_once(tmp_path):
  write(tmp_path, range(6), finish=False, shard_bytes=80)
  assert any(name.startswith("open-") for name in names(tmp_path))
  assert not shards.Reader(tmp_path).complete
  with Writer(tmp_path, ABOUT, resume=True, shard_bytes=80) as writer:
    assert writer.ids == {row(number).id for number in range(6)}
    with pytest.raises(ValueError, match="is there already"):
      writer.append(row(5))
    writer.append(row(6))
    writer.finish()
  reader = shards.Reader(tmp_path)
  for number, found in enumerate(reader):
    same(found, number)
  assert len(reader) == 7 and reader.complete
  assert not any(name.startswith("open-") for name in names(tmp_path))
  # As if nobody had interrupted it.
  whole = write(tmp_path / "whole", range(7), shard_bytes=80)
  for name in names(whole):
    assert (whole / name).read_bytes() == (tmp_path / name).read_bytes()


def test_what_the_manifest_does_not_name_does_not_count(tmp_path):
  """A kill between a shard and its manifest leaves a shard too many."""
  write(tmp_path, range(2), finish=False)
  for stray in ("shard-00000.npz", "open-00002.npz", "manifest.json.partial"):
    (tmp_path / stray).write_bytes(b"half")
  with Writer(tmp_path, ABOUT, resume=True) as writer:
    assert len(writer.ids) == 2
    assert names(tmp_path) == ["manifest.json", "open-00001.npz"]
    writer.append(row(2))
    writer.finish()
  assert len(shards.Reader(tmp_path)) == 3


def test_rows_are_on_disk_without_an_end(tmp_path, monkeypatch):
  monkeypatch.setattr("specjax.training.shard_writer.FLUSH_EVERY_S", 0.0)
  with Writer(tmp_path, ABOUT) as writer:
    writer.append(row(0))
    assert len(shards.Reader(tmp_path)) == 0
    writer.pulse()
    assert len(shards.Reader(tmp_path)) == 1


def test_nothing_is_overwritten_unless_asked(tmp_path):
  write(tmp_path, range(2))
  (tmp_path / "notes.txt").write_text("mine")
  with pytest.raises(ValueError, match="--resume.*--overwrite"):
    write(tmp_path, range(2))
  write(tmp_path, range(1), overwrite=True)
  assert len(shards.Reader(tmp_path)) == 1
  assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_made_otherwise_is_not_gone_on_with(tmp_path):
  write(tmp_path, range(2), finish=False)
  other = ABOUT | {"settings": {"seed": 1, "chat": True}}
  with pytest.raises(ValueError, match="chat=null, not true.*seed=0, not 1"):
    write(tmp_path, [2], about=other, resume=True)
  assert len(shards.Reader(tmp_path)) == 2


def test_two_writers_do_not_share_a_folder(tmp_path):
  code = (
    "import sys; from specjax.training.shard_writer import Writer\n"
    "with Writer(sys.argv[1], {}, resume=True): pass"
  )
  with Writer(tmp_path, ABOUT):
    done = subprocess.run(
      [sys.executable, "-c", code, str(tmp_path)],
      capture_output=True,
      text=True,
      check=False,
    )
  assert "is being written by another process" in done.stderr


def test_a_row_without_a_place_for_its_answer_is_refused(tmp_path):
  with Writer(tmp_path, ABOUT) as writer:
    bad = shards.Row(id="x", tokens=np.zeros(3), answer=3, temperature=0)
    with pytest.raises(ValueError, match="row 'x' of 3 tokens"):
      writer.append(bad)


def cut(data):
  return data[: len(data) // 2]


def flipped(data):
  """A token is another; everything else is whole."""
  at = data.index(row(0).tokens.tobytes())
  return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def shorter(data):
  """The shard of one row less."""
  del data
  return shards.encode([row(0)])


@pytest.mark.parametrize("change", [cut, flipped, shorter, None])
def test_damage_is_named(tmp_path, change):
  write(tmp_path, range(3))
  path = tmp_path / "shard-00000.npz"
  if change is None:
    path.unlink()
  else:
    path.write_bytes(change(path.read_bytes()))
  with pytest.raises(ValueError, match="shard-00000.npz is damaged: ") as told:
    shards.Reader(tmp_path).verify()
  assert "\n" not in str(told.value)


@pytest.mark.parametrize(
  "text, why",
  [
    (None, "is missing; name a folder"),
    ("{", "is damaged"),
    ("[]", "is damaged"),
    ('{"version": 1}', "its list of shards"),
    ('{"version": 99, "shards": []}', "of version 99, not 1"),
  ],
)
def test_a_manifest_that_is_none_is_named(tmp_path, text, why):
  if text is not None:
    (tmp_path / "manifest.json").write_text(text)
  with pytest.raises(ValueError, match=f"manifest.json.*{why}"):
    shards.Reader(tmp_path)
