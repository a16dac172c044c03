import io
import json
import os
import sys

import pytest

from specjax.engine import request as request_lib
from specjax.jobs import output


def test_rows_are_on_disk_as_soon_as_they_are_written(tmp_path):
  path = tmp_path / "out.jsonl"
  with output.claim(path) as out:
    out.begin(b"{}")
    out.write({"id": "é"})
    assert path.read_text(encoding="utf-8") == '{"id": "é"}\n'
    out.write({"id": "2"})
    assert out.count == 2
  assert len(path.read_text().splitlines()) == 2


def test_a_line_break_in_a_text_stays_one_line():
  file = io.StringIO()
  output.Stream(file).write({"text": "a\nb\u2028c"})
  (line,) = file.getvalue().split("\n")[:-1]
  assert json.loads(line) == {"text": "a\nb\u2028c"}


def test_no_path_is_standard_output(capsys):
  with output.claim(None) as out:
    out.write({"id": "é"})
  assert capsys.readouterr().out == '{"id": "é"}\n'


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_stream_of_another_encoding_gets_the_same_json(encoding):
  raw = io.BytesIO()
  file = io.TextIOWrapper(raw, encoding=encoding)
  output.Stream(file).write({"id": "é中"})
  assert raw.getvalue() == b'{"id": "\\u00e9\\u4e2d"}\n'


def test_standard_output_that_is_closed_is_named(monkeypatch):
  monkeypatch.setattr(sys, "stdout", None)
  with pytest.raises(ValueError, match="standard output is closed; give"):
    with output.claim(None):
      pass


def claimed(path, **options):
  with output.claim(path, **options):
    pass


def test_what_would_be_lost_is_refused(tmp_path):
  taken = tmp_path / "taken.jsonl"
  taken.write_text("kept")
  with pytest.raises(ValueError, match="something already; .*--overwrite"):
    claimed(taken)
  with pytest.raises(ValueError, match="is the prompt file"):
    claimed(taken, overwrite=True, source=taken)
  claimed(taken, overwrite=True)  # Not before it is begun.
  claimed(taken, resume=True)
  assert taken.read_text() == "kept"


def test_a_claim_leaves_nothing_behind(tmp_path):
  claimed(tmp_path / "absent.jsonl")
  assert not list(tmp_path.iterdir())
  empty = tmp_path / "empty.jsonl"
  empty.touch()
  claimed(empty)
  assert list(tmp_path.iterdir()) == [empty]


def test_what_cannot_be_written_is_refused(tmp_path):
  with pytest.raises(ValueError, match="is a folder"):
    claimed(tmp_path, overwrite=True)
  with pytest.raises(ValueError, match="there is no folder .*none; make it"):
    claimed(tmp_path / "none" / "out.jsonl")


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
  with pytest.raises(ValueError, match="may not be written"):
    claimed(tmp_path / "out.jsonl")


def test_rule_28_what_keeps_nothing_cannot_be_resumed():
  claimed(os.devnull)
  with pytest.raises(ValueError, match="keeps nothing .*leave out --resume"):
    claimed(os.devnull, resume=True)


def test_log_probabilities_are_written_where_they_were_asked_for():
  def row(**own):
    done = request_lib.Completion(id="a", finish_reason="length", **own)
    return json.loads(json.dumps(output.row_of(done, 1)))

  assert not {"logprobs", "top_logprobs", "sample"} & row().keys()
  assert "top_logprobs" not in row(logprobs=(-0.5,))
  full = row(
    logprobs=(-0.5, -2.0),
    top_logprobs=(((3, -0.5), (1, -1.5)), ((1, -0.25), (4, -2.0))),
    sample=0,
    samples=2,
  )
  assert full["sample"] == 0
  assert full["logprobs"] == [-0.5, -2.0]
  assert full["top_logprobs"] == [[[3, -0.5], [1, -1.5]], [[1, -0.25], [4, -2]]]


def test_a_prompt_file_behind_a_file_url_is_kept(tmp_path):
  path = tmp_path / "p.jsonl"
  path.write_text("{}")
  with pytest.raises(ValueError, match="is the prompt file"):
    output.check(path, source=f"file://{path}")


def test_a_prompt_file_where_the_jobs_own_would_lie_is_kept(tmp_path):
  path = tmp_path / "o.jsonl.job.json"
  path.write_text("{}")
  with pytest.raises(ValueError, match="is the prompt file"):
    output.check(tmp_path / "o.jsonl", source=path)


def test_what_was_there_stays_if_the_jobs_own_file_cannot_be_written(tmp_path):
  path = tmp_path / "o.jsonl"
  path.write_text("kept\n")
  (tmp_path / "o.jsonl.job.json").mkdir()
  with pytest.raises(ValueError, match="job.json is a folder"):
    with output.claim(path, overwrite=True):
      pass
  assert path.read_text() == "kept\n"
