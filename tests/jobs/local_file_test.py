import errno
import os

import pytest

from specjax.jobs import local_file


@pytest.fixture
def path(tmp_path):
  return tmp_path / "out.jsonl"


def write(path, *rows):
  with local_file.File(path) as out:
    out.begin(b"{}") if not out.holds_something() else out.resume()
    for row in rows:
      out.write({"id": row})


def test_the_manifest_is_there_before_the_first_row(path):
  with local_file.File(path) as out:
    assert out.manifest() is None
    out.begin(b'{"a": 1}')
    assert out.manifest() == b'{"a": 1}'
    assert path.read_bytes() == b""
  assert sorted(each.name for each in path.parent.iterdir()) == [
    "out.jsonl",
    "out.jsonl.job.json",
  ]


def test_the_rows_of_before_are_gone_before_the_manifest_changes(
  path, monkeypatch
):
  """Killed in between, they must not pass for the new job's."""
  write(path, "a")
  replaced = []

  def replace(source, target):
    replaced.append(path.read_bytes())
    raise OSError(errno.EIO, "killed here")

  monkeypatch.setattr(os, "replace", replace)
  with pytest.raises(OSError, match="output .*: killed here"):
    with local_file.File(path) as out:
      out.begin(b'{"b": 1}')
  assert replaced == [b""]
  assert path.with_name("out.jsonl.job.json").read_bytes() == b"{}"


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 200_000])
def test_a_half_line_of_any_length_is_cut_off(path, size):
  write(path, "a", "b")
  whole = path.read_bytes()
  path.write_bytes(whole + size * b"\0")
  write(path, "c")
  assert path.read_bytes() == whole + b'{"id": "c"}\n'
  path.write_bytes(size * b"x")
  with local_file.File(path) as out:
    out.resume()
  assert path.read_bytes() == b""


def test_a_row_that_is_written_in_part_is_taken_back(path, monkeypatch):
  really = os.write

  def stingy(file, data):
    if len(data) < 9:
      raise OSError(errno.ENOSPC, "No space left on device")
    return really(file, data[:4])

  with local_file.File(path) as out:
    out.begin(b"{}")
    out.write({"id": "a"})
    monkeypatch.setattr(os, "write", stingy)
    with pytest.raises(
      OSError, match="no space left on device; rows written: 1"
    ):
      out.write({"id": "b"})
    monkeypatch.setattr(os, "write", really)
    out.write({"id": "c"})
  assert path.read_bytes() == b'{"id": "a"}\n{"id": "c"}\n'


def test_rows_are_synced_once_a_second_and_at_the_end(path, monkeypatch):
  now, synced = 100.0, []
  monkeypatch.setattr(local_file.time, "monotonic", lambda: now)
  with local_file.File(path) as out:
    out.begin(b"{}")
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(now))
    out.write({"id": "a"})
    now = 100.5
    out.write({"id": "b"})
    out.pulse()
    now = 101.1
    out.pulse()
    now = 102.5
    out.pulse()  # Nothing new.
    out.write({"id": "c"})
    now = 102.6
    out.write({"id": "d"})
  assert synced == [100.0, 101.1, 102.5, 102.6]


def test_whoever_waited_for_a_file_that_was_removed_gets_a_new_one(
  path, monkeypatch
):
  """A claim that came to nothing removes the file that it made."""
  locked = []
  really = local_file.fcntl.flock

  def flock(file, how):
    if not locked:
      os.unlink(path)
    locked.append(file)
    really(file, how)

  monkeypatch.setattr(local_file.fcntl, "flock", flock)
  write(path, "a")
  assert len(locked) == 2
  assert path.read_bytes() == b'{"id": "a"}\n'


def test_a_file_system_without_locks_will_do(path, monkeypatch):
  def flock(file, how):
    raise OSError(errno.EOPNOTSUPP, "no locks here")

  monkeypatch.setattr(local_file.fcntl, "flock", flock)
  write(path, "a")
  assert path.read_bytes() == b'{"id": "a"}\n'
