"""--profile_dir: a trace that names the parts of a step."""

import pathlib

import jax
import pytest

import specjax
from specjax.checkpoints import random_folder
from specjax.cli import command, generate, profiling
from specjax.engine import request
from tests import fake_engine

SCOPES = ("draft", "verify", "commit")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  path = tmp_path_factory.mktemp("models") / "tiny"
  random_folder.write(path, "chinchilla_tiny_draft")
  return path


def require_scopes(folder, scopes):
  (trace,) = pathlib.Path(folder).rglob("*.xplane.pb")
  content = trace.read_bytes()
  for scope in scopes:
    assert f"/{scope}/".encode() in content, scope


def test_the_command_writes_a_trace(model, tmp_path, capsys):
  folder = tmp_path / "new" / "trace"
  flags = ("--prompt=the end", "--max_new_tokens=4", "--capacity=64")
  code = generate.main(
    [
      "specjax-generate",
      f"--model={model}",
      f"--profile_dir={folder}",
      "--compilation_cache=off",
      *flags,
    ]
  )
  out, err = capsys.readouterr()
  assert code == 0, err
  assert f"trace written to {folder}" in err
  require_scopes(folder, ("verify", "commit"))  # Nobody drafts.


@pytest.mark.parametrize(
  "proposer",
  ("draft_model", pytest.param("ngram", marks=pytest.mark.long)),
)
def test_trace_and_program_name_draft_verify_and_commit(
  model, tmp_path, proposer
):
  target = specjax.load(model)
  draft = target if proposer == "draft_model" else None
  engine = specjax.Engine(
    target, proposer=proposer, draft=draft, capacity=56, prefill_widths=(8,)
  )
  assert profiling_runs(engine, tmp_path)
  require_scopes(tmp_path, SCOPES)
  loop = engine.loop
  program = loop.programs.speculate.lower(loop.params, loop.state).compile()
  text = program.as_text()
  for scope in SCOPES:
    assert f'op_name="jit(step)/{scope}/' in text, scope


def profiling_runs(engine, folder):
  """Runs a request in a traced engine; gives what was reported."""
  told = []
  traced = profiling.Profiled(engine, str(folder), told.append)
  list(traced.run([request.Request(prompt=(1, 2, 3), max_new_tokens=3)]))
  return told


def profiled(monkeypatch, folder, steps):
  """A fake engine that is traced, and what was told of it."""
  told = []
  trace = jax.profiler
  monkeypatch.setattr(
    trace, "start_trace", lambda folder, **options: told.append("start")
  )
  monkeypatch.setattr(trace, "stop_trace", lambda: told.append("stop"))
  engine = fake_engine.Engine(slots=2)
  return profiling.Profiled(engine, str(folder), told.append, steps), told


def requests(count, tokens=6):
  return [
    request.Request(prompt=tuple(range(tokens)), id=str(i))
    for i in range(count)
  ]


@pytest.mark.parametrize(
  "rows, steps, before",
  [
    # Two slots, two tokens a step: a row of six speaks in three steps.
    (2, 1, 2),
    (2, 2, 4),
    # A new row's first word passes for one of the step before.
    (3, 3, 9),
    (2, 9, None),  # The run ends first.
  ],
)
def test_the_first_steps_are_traced_and_no_more(
  monkeypatch, tmp_path, rows, steps, before
):
  engine, told = profiled(monkeypatch, tmp_path, steps)
  seen = 0
  for _ in engine.run(requests(rows)):
    if "stop" not in told:
      seen += 1
  assert told == ["start", "stop", f"trace written to {tmp_path}"]
  assert seen == (before or rows * 4)


def test_a_run_that_is_left_early_still_has_its_trace(monkeypatch, tmp_path):
  engine, told = profiled(monkeypatch, tmp_path, 9)
  events = engine.run(requests(2))
  next(events)
  events.close()
  assert told[:2] == ["start", "stop"]
  assert engine._engine.closed


def test_another_process_leaves_the_trace_to_the_first(monkeypatch, tmp_path):
  engine, told = profiled(monkeypatch, tmp_path, 1)
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  assert len(list(engine.run(requests(2)))) == 8
  assert not told


def test_a_trace_that_cannot_be_written_is_an_error_with_the_flag(
  monkeypatch, tmp_path
):
  engine, _ = profiled(monkeypatch, tmp_path, 1)

  def fail():
    raise RuntimeError("disk full")

  monkeypatch.setattr(jax.profiler, "stop_trace", fail)
  with pytest.raises(OSError, match="--profile_dir=.*: disk full"):
    list(engine.run(requests(1)))


@pytest.mark.parametrize(
  "folder, words",
  [
    ("", "--profile_dir= is empty"),
    ("gs://bucket/trace", "--profile_dir=gs://bucket/trace is a URL"),
    ("/proc/trace", "--profile_dir=/proc/trace cannot be written"),
    ("{file}", r"cannot be written \(file exists\)"),
    ("a\0b", "cannot be written"),
  ],
)
def test_a_folder_that_cannot_be_written_is_refused(tmp_path, folder, words):
  (tmp_path / "file").write_text("")
  with pytest.raises(command.UsageError, match=words):
    profiling.check(folder.format(file=tmp_path / "file"))


def test_it_is_refused_before_anything_is_loaded(api, capsys):
  code = generate.main(
    ["specjax-generate", "--model=m", "--prompt=p", "--profile_dir=/proc/trace"]
  )
  assert code == 2 and not api.loaded
  assert "--profile_dir=/proc/trace" in capsys.readouterr().err
