"""Numbered parts behind a URL; memory:// is fsspec's stand-in for a bucket."""

import json
import sys

import fsspec
import pytest

from specjax.jobs import output, parts, stopping

URL = "memory://bucket/out.jsonl"


@pytest.fixture(autouse=True)
def bucket():
  system = fsspec.filesystem("memory")
  system.store.clear()
  yield system
  system.store.clear()


def names(system):
  return sorted(path.removeprefix("/bucket/") for path in system.store)


def ids(system, name):
  lines = system.cat_file(f"/bucket/{name}").splitlines()
  return [json.loads(line)["id"] for line in lines]


def write(out, *rows):
  for row in rows:
    out.write({"id": row})


def test_a_part_is_written_when_it_is_full_and_at_the_end(bucket):
  with parts.Parts(URL, rows=2) as out:
    out.begin(b"{}")
    write(out, "a", "b", "c")
    assert names(bucket) == ["out.jsonl.job.json", "out.jsonl.part-00000"]
  assert ids(bucket, "out.jsonl.part-00000") == ["a", "b"]
  assert ids(bucket, "out.jsonl.part-00001") == ["c"]


def test_a_part_is_written_when_its_first_row_is_old(bucket, monkeypatch):
  now = 100.0
  monkeypatch.setattr(parts.time, "monotonic", lambda: now)
  with parts.Parts(URL, seconds=60) as out:
    out.begin(b"{}")
    write(out, "a")
    now = 130.0
    write(out, "b")
    out.pulse()
    assert names(bucket) == ["out.jsonl.job.json"]
    now = 160.0
    out.pulse()  # Between rows: a long row keeps nobody waiting.
    assert ids(bucket, "out.jsonl.part-00000") == ["a", "b"]
    out.pulse()
  assert len(bucket.store) == 2


def test_a_resumed_job_goes_on_with_the_next_number(bucket):
  for row in ("a", "b"):
    with parts.Parts(URL) as out:
      out.resume() if row == "b" else out.begin(b"{}")
      write(out, row)
  bucket.pipe("/bucket/out.jsonl.part-123456", b'{"id": "z"}\n')
  bucket.pipe("/bucket/other.jsonl.part-00007", b'{"id": "z"}\n')
  with parts.Parts(URL) as out:
    assert out.holds_something()
    held = [(where, json.loads(line)["id"]) for where, line in out.read()]
    assert held == [
      ("/bucket/out.jsonl.part-00000, line 1", "a"),
      ("/bucket/out.jsonl.part-00001, line 1", "b"),
      ("/bucket/out.jsonl.part-123456, line 1", "z"),
    ]
    out.resume()
    write(out, "c")
  assert ids(bucket, "out.jsonl.part-123457") == ["c"]


def test_a_part_that_was_cut_off_loses_its_half_line_alone(bucket):
  whole = b'{"id": "a"}\n{"id": "\xc3\xa9"}\n'
  for end in range(1, len(whole) + 1):
    bucket.store.clear()
    bucket.pipe("/bucket/out.jsonl.part-00000", whole[:end])
    bucket.pipe("/bucket/out.jsonl.part-00001", b'{"id": "c"}\n')
    with parts.Parts(URL) as out:
      out.resume()
    left = bucket.cat_file("/bucket/out.jsonl.part-00000")
    assert left == whole[: whole.rfind(b"\n", 0, end) + 1]
    assert ids(bucket, "out.jsonl.part-00001") == ["c"]


def test_a_part_is_never_overwritten(bucket):
  with pytest.raises(ValueError, match="part 0 is there already; is another"):
    with parts.Parts(URL) as out:
      out.begin(b"{}")
      write(out, "a")
      bucket.pipe("/bucket/out.jsonl.part-00000", b'{"id": "other"}\n')
  assert ids(bucket, "out.jsonl.part-00000") == ["other"]


def test_begin_removes_the_parts_of_before_and_no_others(bucket):
  with parts.Parts(URL, rows=1) as out:
    out.begin(b"{}")
    write(out, "a", "b")
  bucket.pipe("/bucket/out.jsonl.part-1", b"not ours")
  bucket.pipe("/bucket/Xout.jsonl.part-00000", b"not ours")
  with pytest.raises(ValueError, match="holds something already"):
    with output.claim(URL):
      pass
  with output.claim(URL, overwrite=True) as out:
    assert len(bucket.store) == 5  # Nothing is changed by a claim.
    out.begin(b'{"new": 1}')
    assert names(bucket) == [
      "Xout.jsonl.part-00000",
      "out.jsonl.job.json",
      "out.jsonl.part-1",
    ]
    assert out.manifest() == b'{"new": 1}'


@pytest.mark.parametrize(
  "error, kept",
  [
    (RuntimeError, True),
    (KeyboardInterrupt, False),
    (stopping.Terminated, False),
  ],
)
def test_what_is_pending_is_written_unless_nobody_waits(bucket, error, kept):
  with pytest.raises(error), parts.Parts(URL) as out:
    out.begin(b"{}")
    write(out, "a")
    raise error
  assert ("out.jsonl.part-00000" in names(bucket)) == kept


def test_a_store_that_fails_is_one_line_that_names_the_object(
  bucket, monkeypatch
):
  def fail(*args, **options):
    raise RuntimeError("403 forbidden\nand much more")

  with parts.Parts(URL) as out:
    monkeypatch.setattr(type(bucket), "pipe_file", fail)
    with pytest.raises(ConnectionError, match="out.jsonl.job.json: 403 forb"):
      out.begin(b"{}")
  monkeypatch.setattr(type(bucket), "ls", fail)
  with pytest.raises(ConnectionError, match="^/bucket: 403 forbidden$"):
    with parts.Parts(URL):
      pass


@pytest.mark.parametrize(
  "url, error, words",
  [
    ("gs://b/out", ImportError, r'gs:// needs .* pip install "specjax\[gcs\]"'),
    ("nope://b/out", ValueError, "nope://b/out: Protocol not known"),
    ("memory://bucket/", ValueError, "name a file in it"),
  ],
)
def test_a_url_that_cannot_be_is_named(monkeypatch, url, error, words):
  monkeypatch.setitem(sys.modules, "gcsfs", None)  # Where it is installed.
  with pytest.raises(error, match=words):
    parts.Parts(url)


def test_files_too(tmp_path):
  url = f"file://{tmp_path}/out.jsonl"
  with parts.Parts(url) as out:
    out.begin(b"{}")
    write(out, "a")
  assert (tmp_path / "out.jsonl.part-00000").read_text() == '{"id": "a"}\n'
  with pytest.raises(ValueError, match="there is no folder .*/absent; make it"):
    with parts.Parts(f"file://{tmp_path}/absent/out.jsonl"):
      pass
