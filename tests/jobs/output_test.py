import io
import json
import os

import pytest

from specjax.jobs import output


def test_rows_are_on_disk_as_soon_as_they_are_written(tmp_path):
  path = tmp_path / "out.jsonl"
  with output.open_rows(path) as rows:
    rows.write({"id": "é"})
    assert path.read_text(encoding="utf-8") == '{"id": "é"}\n'
    rows.write({"id": "2"})
    assert rows.count == 2
  assert len(path.read_text().splitlines()) == 2


def test_a_line_break_in_a_text_stays_one_line():
  file = io.StringIO()
  output.Rows(file).write({"text": "a\nb\u2028c"})
  (line,) = file.getvalue().split("\n")[:-1]
  assert json.loads(line) == {"text": "a\nb\u2028c"}


def test_no_path_is_standard_output(capsys):
  with output.open_rows(None) as rows:
    rows.write({"id": "1"})
  assert capsys.readouterr().out == '{"id": "1"}\n'


def test_check_refuses_what_would_be_lost(tmp_path):
  taken = tmp_path / "taken.jsonl"
  taken.write_text("kept")
  empty = tmp_path / "empty.jsonl"
  empty.touch()
  with pytest.raises(ValueError, match="holds something already.*--overwrite"):
    output.check(taken, overwrite=False)
  output.check(taken, overwrite=True)
  output.check(empty, overwrite=False)
  output.check(tmp_path / "absent.jsonl", overwrite=False)
  with pytest.raises(ValueError, match="is the prompt file"):
    output.check(taken, overwrite=True, source=taken)
  assert taken.read_text() == "kept"


def test_check_refuses_what_cannot_be_written(tmp_path):
  with pytest.raises(ValueError, match="is a folder"):
    output.check(tmp_path, overwrite=True)
  with pytest.raises(ValueError, match="there is no folder .*none; make it"):
    output.check(tmp_path / "none" / "out.jsonl", overwrite=False)


def test_check_refuses_a_folder_without_permission(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
  with pytest.raises(ValueError, match="may not be written"):
    output.check(tmp_path / "out.jsonl", overwrite=False)
