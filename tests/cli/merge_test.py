"""Jobs that share a prompt file, and their outputs put together again."""

import json

import fsspec
import pytest

from specjax.cli import generate, merge


@pytest.fixture(autouse=True)
def bucket():
  system = fsspec.filesystem("memory")
  system.store.clear()
  yield
  system.store.clear()


@pytest.fixture
def prompts(tmp_path):
  rows = [{"prompt": f"{i}x", "id": f"r{i}"} for i in range(7)]
  rows[2] |= {"n": 3, "temperature": 1.0}
  rows[4] = {"prompt": "fail"}
  lines = [json.dumps(row) for row in rows]
  lines[5] = "no json"
  path = tmp_path / "in.jsonl"
  path.write_text("\n".join([*lines[:3], "", *lines[3:]]) + "\n")
  return path


@pytest.fixture
def job(api, prompts):
  def run(output, *flags):
    argv = [generate.PROGRAM, "--model=m", f"--prompts={prompts}"]
    assert generate.main([*argv, f"--output={output}", *flags]) == 0

  return run


@pytest.fixture
def shards(job, tmp_path):
  """Outputs of two jobs that share the prompts."""
  paths = [tmp_path / f"out-{i}.jsonl" for i in range(2)]
  for i, path in enumerate(paths):
    job(path, f"--shard_index={i}", "--num_shards=2")
  return paths


def run(prompts, *words):
  return merge.main([merge.PROGRAM, f"--prompts={prompts}", *map(str, words)])


def rows(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_shards_merged_are_one_jobs_rows_in_the_prompts_order(
  job, prompts, shards, tmp_path, capsys
):
  one, merged = tmp_path / "one.jsonl", tmp_path / "all.jsonl"
  job(one)
  assert len(rows(shards[0])) == 6 and len(rows(shards[1])) == 3
  assert run(prompts, shards[1], shards[0], f"--output={merged}") == 0
  assert "9 rows of 2 outputs written to" in capsys.readouterr().err
  assert rows(merged) == rows(one)
  ids = [(row["id"], row.get("sample", 0)) for row in rows(merged)]
  assert ids == [
    ("r0", 0),
    ("r1", 0),
    *(("r2", i) for i in range(3)),
    ("r3", 0),
    ("6", 0),  # The row that fails has no id, the next is not JSON.
    ("7", 0),
    ("r6", 0),
  ]


def test_the_merged_output_is_one_that_resume_takes_up(
  job, prompts, shards, tmp_path, capsys
):
  merged = tmp_path / "all.jsonl"
  assert run(prompts, *shards, f"--output={merged}") == 0
  before = merged.read_bytes()
  job(merged, "--resume")
  assert "9 of 9 rows done, nothing left to do" in capsys.readouterr().err
  assert merged.read_bytes() == before


def test_parts_behind_a_url_are_merged_too(job, prompts, shards, tmp_path):
  url, merged = "memory://bucket/out-1.jsonl", tmp_path / "all.jsonl"
  job(url, "--shard_index=1", "--num_shards=2")
  assert run(prompts, shards[0], url, f"--output={merged}") == 0
  assert len(rows(merged)) == 9


def test_without_output_the_rows_go_to_standard_output(prompts, shards, capsys):
  assert run(prompts, *shards) == 0
  assert len(capsys.readouterr().out.splitlines()) == 9


def failing(prompts, capsys, *words):
  capsys.readouterr()
  assert run(prompts, *words) == 1
  return capsys.readouterr().err


def test_what_is_missing_is_named(prompts, shards, tmp_path, capsys):
  merged = tmp_path / "all.jsonl"
  err = failing(prompts, capsys, shards[0], f"--output={merged}")
  assert "3 missing: line 2 (id 'r1'), line 5 (id 'r3'), line 7 (id '7');" in (
    err
  )
  assert not merged.exists()


def test_a_missing_sample_is_named_and_half_a_line_is_none(
  prompts, shards, capsys
):
  lines = shards[0].read_bytes().splitlines(keepends=True)
  (at,) = [i for i, each in enumerate(lines) if b'"sample": 2' in each]
  lines.append(lines.pop(at).rstrip())
  shards[0].write_bytes(b"".join(lines))
  err = failing(prompts, capsys, *shards)
  assert "1 missing: line 3 (id 'r2') sample 2;" in err


def test_an_answer_that_is_there_twice_is_refused(
  prompts, shards, tmp_path, capsys
):
  again = tmp_path / "again.jsonl"
  for end in "", ".job.json":
    data = shards[0].with_name(shards[0].name + end).read_bytes()
    again.with_name(again.name + end).write_bytes(data)
  err = failing(prompts, capsys, *shards, again)
  assert f"{again}, line 1: id 'r0' is answered already in {shards[0]}" in err


def test_outputs_of_another_job_are_refused(
  job, prompts, shards, tmp_path, capsys
):
  other = tmp_path / "other.jsonl"
  flags = "--shard_index=1", "--num_shards=2", "--max_new_tokens=3"
  job(other, *flags)
  err = failing(prompts, capsys, shards[0], other)
  assert f"{other} was made with max_new_tokens=3, not 128 in" in err


def test_other_prompts_are_refused(prompts, shards, capsys):
  prompts.write_text(prompts.read_text() + '{"prompt": "new"}\n')
  err = failing(prompts, capsys, *shards)
  assert f"{shards[0]} answers other prompts than --prompts" in err


def test_an_output_without_its_manifest_is_refused(prompts, shards, capsys):
  shards[1].with_name(f"{shards[1].name}.job.json").unlink()
  assert "is missing, which says how" in failing(prompts, capsys, *shards)


@pytest.mark.parametrize(
  "words, message",
  [
    ([], "there is no output to merge"),
    (["a", "a"], "a is given twice"),
    (["a", "--output=a"], "--output=a is one of the outputs to merge"),
    (["a", "--overwrite"], "--overwrite does nothing without --output"),
    (["a", "--outptu=b"], "did you mean"),
  ],
)
def test_a_wrong_command_line_is_refused(words, message, capsys):
  assert run("in.jsonl", *words) == 2
  assert message in capsys.readouterr().err.lower()


def test_an_output_by_another_name_of_an_input_is_refused(
  prompts, shards, capsys
):
  (link := shards[0].with_name("link.jsonl")).symlink_to(shards[0])
  assert run(prompts, *shards, f"--output={link}") == 2
  assert "is one of the outputs to merge" in capsys.readouterr().err


def test_a_flag_that_only_rows_of_another_shard_heed_is_no_error(
  job, prompts, tmp_path
):
  rows = [{"prompt": "1x"}, {"prompt": "2x", "temperature": 0.5}] * 2
  prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
  outputs = [tmp_path / f"o{i}.jsonl" for i in range(2)]
  for i, path in enumerate(outputs):
    job(path, "--temperature=0.9", f"--shard_index={i}", "--num_shards=2")
  assert run(prompts, *outputs, f"--output={tmp_path / 'all.jsonl'}") == 0


def test_a_shard_of_another_number_of_shards_does_not_resume_it(
  prompts, shards, capsys
):
  argv = [generate.PROGRAM, "--model=m", f"--prompts={prompts}", "--resume"]
  argv += [f"--output={shards[0]}", "--shard_index=0", "--num_shards=3"]
  assert generate.main(argv) == 1
  assert "was begun with num_shards=2, not 3" in capsys.readouterr().err


@pytest.mark.parametrize(
  "flags, message",
  [
    (["--shard_index=0"], "--shard_index=0 needs --num_shards"),
    (["--num_shards=2"], "--num_shards=2 needs --shard_index"),
    (["--shard_index=2", "--num_shards=2"], "--shard_index=2 is not in 0…1"),
  ],
)
def test_half_a_shard_is_refused(api, prompts, flags, message, capsys):
  argv = [generate.PROGRAM, "--model=m", f"--prompts={prompts}", *flags]
  assert generate.main(argv) == 2
  assert message in capsys.readouterr().err
