import json
import os
import signal
import threading

import pytest

from specjax.jobs import output, prompts, requests, resume, run, stopping
from tests import fake_engine


def rows_of(*texts):
  return [
    prompts.Row(
      line=line, id=f"r{line}", prompt=text, messages=None, settings={}
    )
    for line, text in enumerate(texts, start=1)
  ]


def job(tmp_path, rows, engine=None, done=resume.NOTHING, **defaults):
  engine = engine or fake_engine.Engine()
  path = tmp_path / "out.jsonl"
  with output.claim(path) as out, stopping.patient() as stop:
    out.begin(b"{}")
    result = run.run(
      engine,
      rows,
      encoder=fake_engine.Encoder(),
      defaults=requests.Defaults(**defaults),
      out=out,
      done=done,
      stop=stop,
    )
  lines = path.read_text(encoding="utf-8").splitlines()
  return result, [json.loads(line) for line in lines]


def test_every_row_is_answered_with_the_promised_keys(tmp_path):
  result, written = job(tmp_path, rows_of("abc", "x"))
  assert written[0] == {
    "id": "r1",
    "text": "cba",
    "token_ids": [99, 98, 97],
    "finish_reason": "length",
    "prompt_tokens": 3,
    "steps": 2,
    "drafted": 2,
    "accepted": 1,
  }
  assert [row["id"] for row in written] == ["r1", "r2"]
  assert (result.written, result.total, result.failed) == (2, 2, 0)
  assert not result.interrupted


def test_bad_rows_become_error_rows_with_their_line_and_the_run_goes_on(
  tmp_path,
):
  rows = rows_of("abc", "", "fail", "xyz")
  rows[1] = prompts.BadRow(line=2, id="2", error="not JSON")
  rows.append(
    prompts.Row(
      line=9, id="r9", prompt="x", messages=None, settings={"top_k": 1}
    )
  )
  result, written = job(tmp_path, rows)
  by_id = {row["id"]: row for row in written}
  assert by_id["r1"]["text"] == "cba"
  assert by_id["r4"]["text"] == "zyx"
  for id, line, words in (
    ("2", 2, "not JSON"),
    ("r3", 3, "a NaN"),
    ("r9", 9, "top_k does nothing"),
  ):
    assert by_id[id]["finish_reason"] == "error"
    assert by_id[id]["line"] == line
    assert words in by_id[id]["error"]
    assert by_id[id].keys() >= by_id["r1"].keys()
  assert (result.written, result.total, result.failed) == (5, 5, 3)
  assert list(result.errors)[:2] == [(2, "not JSON"), (3, "a NaN")]
  assert [line for line, _ in result.errors] == [2, 3, 9]


def test_rows_are_written_while_the_run_goes_on_and_encoded_lazily(tmp_path):
  seen = []

  def before_step(finished):
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    seen.append((len(lines), len(engine.requests)))

  engine = fake_engine.Engine(before_step)
  job(tmp_path, rows_of("ab", "cd", "ef"), engine)
  assert seen == [(0, 1), (1, 2), (2, 3)]


def sampled(text, n, line=1):
  return prompts.Row(
    line=line,
    id=f"r{line}",
    prompt=text,
    messages=None,
    settings={"n": n, "temperature": 1.0},
  )


def test_each_sample_of_a_prompt_is_a_row_of_its_own(tmp_path):
  rows = [sampled("abc", 3), sampled("x", 1, line=2)]
  result, written = job(tmp_path, rows, fake_engine.Engine(slots=4))
  written.sort(key=lambda row: (row["id"], row.get("sample")))
  assert [(row["id"], row.get("sample")) for row in written] == [
    ("r1", 0),
    ("r1", 1),
    ("r1", 2),
    ("r2", None),
  ]
  assert (result.written, result.total) == (4, 4)


def test_of_a_prompt_with_some_samples_done_the_others_are_added(
  tmp_path,
):
  rows = [sampled("ab", 3), sampled("cd", 2, line=2), sampled("e", 1, line=3)]
  done = resume.Done(keys=frozenset({(1, 0), (1, 2), (2, 0), (2, 1)}))
  engine = fake_engine.Engine()
  result, written = job(tmp_path, rows, engine, done=done)
  assert [(row["id"], row.get("sample")) for row in written] == [
    ("r1", 1),
    ("r3", None),
  ]
  assert [request.id for request in engine.requests] == ["r1", "r3"]
  assert (result.before, result.written, result.total) == (4, 2, 6)
  assert result.summary.requests == 2


def test_a_prompt_that_cannot_be_sampled_is_answered_once(tmp_path):
  row = prompts.Row(
    line=1,
    id="r1",
    prompt="a",
    messages=None,
    settings={"n": 4, "temperature": 1.0, "top_p": 2.0},
  )
  result, written = job(tmp_path, [row, *rows_of("bc")[:1]])
  assert [row["finish_reason"] for row in written] == ["error", "length"]
  assert (result.written, result.total) == (2, 2)


def interrupt_at(step, how=signal.SIGINT):
  """A `before_step` that interrupts once, as that step begins."""
  steps = iter(range(1000))

  def before_step(finished):
    if next(steps) == step:
      os.kill(os.getpid(), how)

  return before_step


@pytest.mark.parametrize(
  "how, words",
  [
    (signal.SIGINT, "\nending after this step; interrupt again"),
    (signal.SIGTERM, "\nterminated: ending after this step"),
  ],
)
def test_interrupted_ends_cleanly_with_what_is_done(
  tmp_path, capfd, how, words
):
  engine = fake_engine.Engine(interrupt_at(2, how))
  before = signal.getsignal(how)
  result, written = job(tmp_path, rows_of("ab", "cd", "efgh", "ij"), engine)
  assert result.interrupted
  assert [row["id"] for row in written] == ["r1", "r2"]
  assert (result.written, result.total) == (2, 4)
  assert engine.closed
  assert signal.getsignal(how) is before
  assert words in capfd.readouterr().err


@pytest.mark.parametrize("first", ["ab", "abcdef"])
def test_interrupted_keeps_every_row_that_finishes_in_that_step(
  tmp_path, first
):
  """Rows of two, six and two tokens beside each other: two end in step 0."""
  engine = fake_engine.Engine(interrupt_at(0), slots=4)
  rows = rows_of(first, "cd", "efghij", "kl", "mn")
  result, written = job(tmp_path, rows, engine)
  expected = ["r1", "r2", "r4"] if first == "ab" else ["r2", "r4"]
  assert [row["id"] for row in written] == expected
  assert result.written == len(expected)
  assert result.interrupted
  assert engine.closed
  # None is begun after it, and what the long rows say later is left out.
  assert [request.id for request in engine.requests] == ["r1", "r2", "r3", "r4"]


def test_interrupted_twice_ends_on_the_spot(tmp_path):
  def before_step(finished):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)

  before = signal.getsignal(signal.SIGINT)
  with pytest.raises(KeyboardInterrupt):
    job(tmp_path, rows_of("ab"), fake_engine.Engine(before_step))
  assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_signals_are_left_alone(tmp_path):
  results = []
  thread = threading.Thread(
    target=lambda: results.append(job(tmp_path, rows_of("ab")))
  )
  thread.start()
  thread.join()
  assert results[0][0].written == 1


def test_progress_goes_to_stderr(tmp_path, capfd):
  job(tmp_path, rows_of("ab", "cd"))
  out, err = capfd.readouterr()
  assert out == ""
  assert "2/2" in err


def row(line, **settings):
  return prompts.Row(
    line=line, id=f"r{line}", prompt="x", messages=None, settings=settings
  )


def test_a_prompt_refused_as_a_whole_is_done_with_all_its_samples():
  rows = [row(1, n=3, temperature=1.0), row(2)]
  done = resume.Done(keys=frozenset({(1, 0)}), refused=frozenset({1}))
  asked = run.asked(rows, requests.Defaults(), done)
  assert asked.keys == {(1, 0), (1, 1), (1, 2)}


@pytest.mark.parametrize("sample", [-1, 1, 7])
def test_a_sample_that_no_prompt_asks_for_is_no_answer(sample):
  done = resume.Done(keys=frozenset({(1, 0), (1, sample)}))
  with pytest.raises(ValueError, match=f"sample {sample} of id 'r1'"):
    run.asked([row(1), row(2)], requests.Defaults(), done)


@pytest.mark.parametrize("n", [10_001, 10**12, 0, -3])
def test_a_prompt_of_too_many_samples_fails_alone(n, tmp_path):
  rows = [row(1), row(2, n=n, temperature=1.0), row(3)]
  result, written = job(tmp_path, rows)
  assert {line["id"]: "error" in line for line in written} == {
    "r1": False,
    "r2": True,
    "r3": False,
  }
  assert (result.total, result.failed) == (3, 1)
