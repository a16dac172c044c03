"""Command lines and prompt files of any content."""

import json

import hypothesis
import pytest
from hypothesis import strategies as st

from specjax.cli import convert, generate
from specjax.cli import settings as settings_lib
from tests.cli import conftest
from tests.fuzz import fuzzing

api = conftest.api  # a stand-in for the model, as in tests/cli

TEXTS = st.one_of(
  st.sampled_from(["", "0", "1", "-1", "nan", "inf", "1e400", "true", "a\nb"]),
  fuzzing.EDGES.map(str),
  st.floats().map(str),
  # What a command line can hold: no zero byte.
  st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
)
# They name files and folders: given below, or nowhere.
PATHS = {"model", "draft_model", "prompts", "output", "prompt"}
PATHS |= {"compilation_cache", "profile_dir"}
NAMES = sorted(set(settings_lib.FIELDS) - PATHS)


def flag(name, value):
  kind = settings_lib.FIELDS[name].metadata["kind"]
  if kind == "switch":
    return f"--{name}"
  return f"--{name}={value}"


FLAGS = st.lists(
  st.one_of(
    st.builds(flag, st.sampled_from(NAMES), TEXTS),
    st.builds("--{}={}".format, st.text("abcdefg_", max_size=5), TEXTS),
    st.sampled_from(["--proposer=ngram", "--temperature=1", "stray", "-", ""]),
    st.sampled_from(["--proposer=draft_model", "--draft_model=d"]),
  ),
  max_size=5,
)


@pytest.fixture
def job(tmp_path):
  (tmp_path / "in.jsonl").write_text('{"prompt": "abc"}\n')
  (tmp_path / "out.jsonl").write_text("mine\n")
  return tmp_path


@fuzzing.settings(250)
@hypothesis.given(flags=FLAGS)
def test_flags_of_any_value(api, job, flags):
  code, _ = fuzzing.answer(
    generate.main, generate.PROGRAM, "--model=m", "--prompt=abc", *flags
  )
  # Beside an output that holds something, which stays.
  flags = [one for one in flags if "overwrite" not in one]
  flags += [f"--prompts={job}/in.jsonl", f"--output={job}/out.jsonl"]
  code, error = fuzzing.answer(
    generate.main, generate.PROGRAM, "--model=m", *flags
  )
  assert code, "an output that holds something was written to"
  assert (job / "out.jsonl").read_text() == "mine\n"


@fuzzing.settings(100)
@hypothesis.given(
  flags=st.lists(
    st.one_of(
      st.builds(
        "--{}={}".format,
        st.sampled_from(["dtype", "overwrite", "gguf", "model", "odd"]),
        TEXTS.filter(lambda text: "/" not in text and "." not in text),
      ),
      st.sampled_from(["--overwrite", "--gguf", "stray", "--nooverwrite"]),
    ),
    max_size=4,
  )
)
def test_flags_of_convert(job, monkeypatch, flags):
  monkeypatch.chdir(job)
  before = fuzzing.content(job)
  code, _ = fuzzing.answer(
    convert.main, convert.PROGRAM, "--output=out.jsonl", *flags
  )
  assert code
  assert fuzzing.content(job) == before


ROWS = st.one_of(
  st.dictionaries(
    st.sampled_from(
      "prompt messages id temperature top_k top_p min_p seed stop lookahead "
      "max_new_tokens odd".split()
    ),
    st.one_of(
      fuzzing.JSON,
      fuzzing.EDGES,
      st.just("abc"),
      st.lists(st.fixed_dictionaries({"role": TEXTS, "content": TEXTS})),
    ),
    max_size=5,
  ),
  fuzzing.JSON,
)
LINES = st.one_of(
  ROWS.map(lambda row: json.dumps(row).encode()),
  st.dictionaries(
    st.sampled_from(["temperature", "top_k", "seed", "max_new_tokens"]),
    fuzzing.EDGES,
    max_size=2,
  ).map(lambda row: json.dumps({"prompt": "abc"} | row).encode()),
  st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")),
  st.just(b'{"prompt": "good"}'),
)


@fuzzing.settings(250)
@hypothesis.given(
  lines=st.lists(LINES, max_size=6),
  end=st.sampled_from([b"", b"\n", b"\r\n", b"\n\n"]),
)
def test_prompt_files_of_any_content(api, tmp_path, lines, end):
  source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
  source.write_bytes(b"\n".join(lines) + end)
  flags = (f"--prompts={source}", f"--output={target}", "--overwrite")
  target.write_text("old\n")
  code, error = fuzzing.answer(
    generate.main, generate.PROGRAM, "--model=m", *flags, rows=True
  )
  if error:
    assert str(source) in error or "--" in error, error
    assert target.read_text() == "old\n"
    return
  rows = [json.loads(line) for line in target.read_text().splitlines()]
  given = source.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
  assert len(rows) == sum(bool(line.strip()) for line in given)
  for row in rows:
    if row["finish_reason"] == "error":
      assert row["line"] and "\n" not in row["error"]
