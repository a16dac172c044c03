"""--resume: no row lost, none repeated, whatever has happened before."""

import os

import fsspec
import pytest

from specjax.cli import generate, resuming
from specjax.cli import settings as settings_lib
from specjax.jobs import local_file

LINES = [
  '{"prompt": "Hé"}',
  "nonsense",
  # An id that is also the number of the line before.
  '{"prompt": "x\u2028yz", "id": 2}',
  '{"prompt": "fail"}',
  '{"prompt": "abcdef", "id": "last"}',
]


@pytest.fixture
def files(tmp_path):
  """A prompt file and where its answers go."""
  source = tmp_path / "in.jsonl"
  source.write_text("\n".join(LINES) + "\n", encoding="utf-8")
  return source, tmp_path / "out.jsonl"


def run(files, *flags):
  source, target = files
  return generate.main(
    [
      "specjax-generate",
      "--model=m",
      f"--prompts={source}",
      f"--output={target}",
      *flags,
    ]
  )


def test_parts_behind_a_url(api, files, capsys):
  """memory:// is fsspec's stand-in for a bucket; prompts come from it too."""
  source, _ = files
  system = fsspec.filesystem("memory")
  system.store.clear()
  system.pipe("/bucket/in.jsonl", source.read_bytes())
  urls = "memory://bucket/in.jsonl", "memory://bucket/out.jsonl"
  assert run(urls) == 0
  whole = system.cat_file("/bucket/out.jsonl.part-00000")
  system.rm("/bucket/out.jsonl.part-00000")
  for part, lines in enumerate(([1], [2], [3])):  # The rest is not there yet.
    data = b"".join(whole.splitlines(keepends=True)[i] for i in lines)
    data = data[:-1] if part == 2 else data
    system.pipe(f"/bucket/out.jsonl.part-{part:05d}", data)
  capsys.readouterr()
  assert run(urls) == 1
  assert "holds something already" in capsys.readouterr().err
  assert run(urls, "--resume", "--chat") == 1
  assert "chat=false, not true" in capsys.readouterr().err
  assert run(urls, "--resume") == 0
  err = capsys.readouterr().err
  assert "2 of 5 rows done, 1 half-written line dropped" in err
  assert "5 of 5 rows written to memory://bucket/out.jsonl, 2 of" in err
  parts = sorted(system.glob("/bucket/out.jsonl.part-*"))
  assert [int(part[-5:]) for part in parts] == [0, 1, 2, 3]
  lines = b"".join(map(system.cat_file, parts)).splitlines(keepends=True)
  assert sorted(lines) == sorted(whole.splitlines(keepends=True))
  assert run(urls, "--overwrite") == 0
  assert len(system.glob("/bucket/out.jsonl.part-*")) == 1
  system.store.clear()


@pytest.mark.parametrize(
  "flag, words",
  [
    ("prompts", "--prompts=memory://b/absent: no such file"),
    ("output", "output memory://b/ is a folder; name a file in it"),
  ],
)
def test_a_url_that_cannot_be_is_one_line(api, files, capsys, flag, words):
  source, target = files
  urls = {"prompts": source, "output": target} | {
    flag: "memory://b/absent" if flag == "prompts" else "memory://b/"
  }
  assert run((urls["prompts"], urls["output"])) == 1
  assert capsys.readouterr().err.splitlines()[-1] == (
    f"specjax-generate: error: {words}"
  )


def changed(files, old, new):
  source, _ = files
  source.write_text(source.read_text().replace(old, new))


def test_cut_off_at_every_byte_it_ends_as_if_nothing_had_happened(
  api, files, monkeypatch
):
  monkeypatch.setattr(os, "fsync", lambda file: None)
  _, target = files
  assert run(files) == 0
  whole = target.read_bytes()
  assert len(whole.splitlines()) == len(LINES)
  for end in range(len(whole) + 1):
    target.write_bytes(whole[:end])
    assert run(files, "--resume") == 0
    # One slot: the rows come in order, and so the file is the same.
    assert target.read_bytes() == whole, end


def test_rows_that_are_done_are_neither_touched_nor_run_again(
  api, files, capsys
):
  _, target = files
  run(files)
  lines = target.read_bytes().splitlines(keepends=True)
  target.write_bytes(lines[3] + lines[0] + lines[1][:9])
  capsys.readouterr()
  assert run(files, "--resume", "--slots=2") == 0
  assert target.read_bytes().startswith(lines[3] + lines[0])
  assert sorted(target.read_bytes().splitlines(keepends=True)) == sorted(lines)
  assert [request.id for request in api.engine.requests] == ["2", "last"]
  err = capsys.readouterr().err
  first = "resuming: 2 of 5 rows done, 1 half-written line dropped"
  assert err.splitlines()[0] == first
  assert "5 of 5 rows written" in err
  assert ", 2 of them before, 2 of them errors" in err
  assert "| 2/5 [" in err and "| 5/5 [" in err  # Where the bar starts, ends.


def test_nothing_to_resume_is_the_beginning_so_a_script_may_always_say_it(
  api, files, capsys
):
  _, target = files
  assert run(files, "--resume") == 0
  assert capsys.readouterr().err.startswith("resuming: nothing done yet, so ")
  whole = target.read_bytes()
  api.loaded.clear()
  assert run(files, "--resume") == 0
  assert target.read_bytes() == whole
  assert "5 of 5 rows done, nothing left to do" in capsys.readouterr().err
  assert not api.loaded


def test_a_row_whose_line_is_deleted_is_made_again(api, files):
  _, target = files
  run(files)
  lines = target.read_bytes().splitlines(keepends=True)
  kept = [line for line in lines if b'"finish_reason": "error"' not in line]
  target.write_bytes(b"".join(kept))
  assert run(files, "--resume") == 0
  assert sorted(target.read_bytes().splitlines(keepends=True)) == sorted(lines)


@pytest.mark.parametrize(
  "flags, words",
  [
    (
      ("--temperature=0.5", "--seed=1"),
      "begun with seed=0, not 1; temperature=0.0, not 0.5; give the same",
    ),
    (("--chat",), "chat=false, not true"),
    (("--stop=x",), 'stop=[], not ["x"]'),
    (("--proposer=ngram",), 'proposer="none", not "ngram"'),
  ],
)
def test_other_settings_are_refused_by_name(api, files, capsys, flags, words):
  _, target = files
  run(files)
  whole = target.read_bytes()
  api.loaded.clear()
  target.write_bytes(whole[:-1])
  assert run(files, "--resume", *flags) == 1
  last = capsys.readouterr().err.splitlines()[-1]
  assert (
    last.startswith("specjax-generate: error: --resume: ") and words in last
  )
  assert target.read_bytes() == whole[:-1]
  assert not api.loaded
  assert run(files, "--overwrite", *flags) == 0
  assert run(files, "--resume", *flags) == 0


def test_what_shapes_no_answer_may_change(api, files, tmp_path):
  source, target = files
  run(files)
  whole = target.read_bytes()
  target.write_bytes(whole[:-1])
  moved = source.rename(tmp_path / "moved.jsonl")
  flags = ("--slots=3", "--compilation_cache=off")
  assert run((moved, target), "--resume", *flags) == 0
  assert target.read_bytes() == whole


def test_every_setting_shapes_answers_or_is_known_not_to():
  assert resuming.FREE <= settings_lib.FIELDS.keys()


def test_other_prompts_are_refused(api, files, capsys):
  source, target = files
  run(files)
  target.write_bytes(target.read_bytes()[:-1])
  changed(files, "abcdef", "abcdeF")
  assert run(files, "--resume") == 1
  assert "begun with other prompts; give" in capsys.readouterr().err
  source.write_text(source.read_text() + LINES[0])
  assert run(files, "--resume") == 1
  assert "prompts (5 rows then, 6 now); give" in capsys.readouterr().err


def test_another_model_is_refused_by_its_files_and_not_by_its_name(
  api, files, capsys, tmp_path
):
  _, target = files
  weights = tmp_path / "model" / "model.safetensors"
  weights.write_bytes(bytes(5_000_000))
  run(files)
  whole = target.read_bytes()
  target.write_bytes(whole[:-1])
  assert run(files, "--resume", "--model=elsewhere") == 0
  target.write_bytes(whole[:-1])
  weights.write_bytes(4_000_000 * b"\0" + 1_000_000 * b"\1")
  assert run(files, "--resume") == 1
  assert "other files in the folder of --model" in capsys.readouterr().err
  assert target.read_bytes() == whole[:-1]


@pytest.mark.parametrize(
  "text, words",
  [
    (None, "out.jsonl.job.json is missing, which says how"),
    ("{", "out.jsonl.job.json: it is damaged; --overwrite starts anew"),
    ("[]", "it is damaged"),
    ('{"version": 1}', "it is damaged"),
    ('{"version": 1, "prompts": 1, "rows": 2, "settings": 3}', "it is damaged"),
  ],
)
def test_an_output_of_unknown_origin_is_refused(
  api, files, capsys, text, words
):
  _, target = files
  run(files)
  beside = target.with_name("out.jsonl.job.json")
  beside.unlink() if text is None else beside.write_text(text)
  assert run(files, "--resume") == 1
  assert words in capsys.readouterr().err
  assert run(files, "--overwrite") == 0
  assert run(files, "--resume") == 0


@pytest.mark.parametrize(
  "line, words",
  [
    ("nonsense", "line 2: not JSON, so no answer of this job; mend it"),
    ("[1]", "line 2: not a JSON object"),
    ("{}", "line 2: no id"),
    ('{"id": "1", "finish_reason": "error", "line": [1]}', "line 2: no line"),
    ('{"id": "z", "finish_reason": "stop"}', "line 2: id 'z' is not in the"),
    (
      '{"id": "2", "finish_reason": "error", "line": 3, "sample": 1.0}',
      "line 2: no sample",
    ),
    (
      '{"id": "1", "finish_reason": "stop"}',
      "line 2: id '1' is answered already in ",
    ),
  ],
)
def test_a_line_that_is_no_answer_of_the_job_is_named(
  api, files, capsys, line, words
):
  _, target = files
  run(files)
  first = target.read_text().splitlines()[0]
  target.write_text(f"{first}\n{line}\n")
  assert run(files, "--resume") == 1
  assert words in capsys.readouterr().err
  assert target.read_text() == f"{first}\n{line}\n"


def test_two_at_once_are_refused(api, files, capsys):
  _, target = files
  run(files)
  whole = target.read_bytes()
  with local_file.File(target):
    for flag in ("--overwrite", "--resume"):
      assert run(files, flag) == 1
      err = capsys.readouterr().err.splitlines()[-1]
      assert "out.jsonl is being written by another process" in err
  assert target.read_bytes() == whole
  assert run(files, "--overwrite") == 0


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--prompt=p", "--resume"), "--resume does nothing without --output"),
    (("--prompts=p", "--resume"), "--resume does nothing without --output"),
    (
      ("--prompts=p", "--output=o", "--resume", "--overwrite"),
      "--resume and --overwrite contradict each other",
    ),
  ],
)
def test_rule_28_resume_where_it_does_nothing_is_refused(
  api, capsys, flags, words
):
  assert generate.main(["specjax-generate", "--model=m", *flags]) == 2
  assert words in capsys.readouterr().err
