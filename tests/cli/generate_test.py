import json

import pytest

from specjax import shipped
from specjax.cli import checks, generate


def run(*flags):
  return generate.main(["specjax-generate", *flags])


def test_a_prompt_is_answered_on_stdout_and_the_rest_is_on_stderr(api, capsys):
  assert run("--model=m", "--prompt=abc") == 0
  out, err = capsys.readouterr()
  assert out == "cba\n"
  assert "tokens/s" in err and "tokens per step" in err
  assert err.splitlines()[:3] == [
    "loading m …",
    "memory: little",
    "compiling (about a minute the first time, seconds after) …",
  ]
  assert err.splitlines()[3].startswith("m: loaded in ")


def test_rule_16_a_prompt_that_cannot_run_is_refused_before_compiling(
  api, capsys
):
  assert run("--model=m", "--prompt=refused") == 1
  loading, error = capsys.readouterr().err.splitlines()
  assert loading == "loading m …"
  assert error == "specjax-generate: error: prompt is too long"
  assert not api.engine.requests


def test_stream_prints_the_same(api, capsys):
  assert run("--model=m", "--prompt=abc", "--stream") == 0
  assert capsys.readouterr().out == "cba\n"


def test_settings_reach_the_engine_and_the_request(api):
  flags = ["--dtype=bfloat16", "--lookahead=3", "--capacity=64", "--chat"]
  flags += ["--siblings=2"]
  flags += ["--temperature=0.5", "--top_p=0.9", "--seed=3", "--stop=x"]
  flags += ["--proposer=draft_model", "--draft_model=d", "--max_new_tokens=2"]
  assert run("--model=m", "--prompt=abc", *flags) == 0
  assert api.loaded["m"]["dtype"] == api.loaded["d"]["dtype"] == "bfloat16"
  assert api.options["draft"].name == "d"
  assert api.options["proposer"] == "draft_model"
  assert (api.options["lookahead"], api.options["capacity"]) == (3, 64)
  assert api.options["siblings"] == 2
  (request,) = api.engine.requests
  assert request.prompt == tuple(map(ord, "ABC"))
  assert request.sampling.temperature == 0.5
  assert request.sampling.top_p == 0.9
  assert api.options["seed"] == 3  # Each row folds its id into it.
  assert (request.max_new_tokens, request.stop) == (2, ("x",))


@pytest.mark.parametrize(
  "flags, options, loaded",
  [
    ("eagle --draft_model=d", {}, {"m", "d"}),
    (
      "eagle --draft_model=d --draft_weights=int8",
      {"draft_weights": "int8"},
      {"m", "d"},
    ),
    ("mtp --draft_model=d", {}, {"m", "d"}),
    ("mtp", {}, {"m", None}),  # of the model's own folder
    ("layer_skip --draft_layers=8", {"draft_layers": 8}, {"m"}),
    ("layer_skip --draft_layers=0,2", {"draft_layers": (0, 2)}, {"m"}),
  ],
)
def test_what_drafts_reaches_the_engine(api, flags, options, loaded):
  flags = f"--model=m --prompt=abc --proposer={flags}".split()
  assert run(*flags) == 0
  assert set(api.loaded) == loaded
  drafts = api.options["draft"]
  assert (drafts is None) == (len(loaded) == 1)
  for name in ("draft_layers", "draft_weights"):
    assert api.options[name] == options.get(name)


@pytest.mark.parametrize(
  "flags, cache",
  [
    ((), ("enable", None)),
    (("--compilation_cache=folder",), ("enable", "folder")),
    (("--compilation_cache=off",), ("disable",)),
  ],
)
def test_compiled_programs_are_kept_unless_off(api, flags, cache):
  assert run("--model=m", "--prompt=abc", *flags) == 0
  assert api.cache == cache


def test_the_start_says_what_it_loads_and_that_nothing_is_kept(api, capsys):
  flags = ("--proposer=draft_model", "--draft_model=d")
  assert run("--model=m", "--prompt=a", *flags, "--compilation_cache=off") == 0
  first, _, third, *_ = capsys.readouterr().err.splitlines()
  assert (first, third) == ("loading m and d …", "compiling (about a minute) …")


def test_samples_of_a_prompt_are_printed_one_after_the_other(api, capsys):
  assert run("--model=m", "--prompt=abc", "--temperature=1", "--n=2") == 0
  assert capsys.readouterr().out == "[1 of 2]\ncba\n[2 of 2]\ncba\n"


def test_penalties_samples_and_log_probabilities_reach_the_request(
  api, tmp_path
):
  """The engine is made for the most that flag and rows ask for."""
  source = tmp_path / "in.jsonl"
  rows = ['{"prompt": "ab", "logprobs": 3}', '{"prompt": "c", "n": 3}']
  source.write_text("\n".join(rows))
  flags = ["--logit_bias=198:-100", "--logit_bias=7:2.5", "--n=2"]
  flags += ["--repetition_penalty=1.2", "--presence_penalty=-1"]
  flags += ["--frequency_penalty=0.5", "--logprobs=1", "--temperature=1"]
  assert run("--model=m", f"--prompts={source}", *flags) == 0
  assert api.options["top_logprobs"] == 3
  first, second = api.engine.requests
  sampling = first.sampling
  assert sampling == second.sampling
  assert sampling.logit_bias == ((7, 2.5), (198, -100.0))
  assert sampling.repetition_penalty == 1.2
  assert (sampling.presence_penalty, sampling.frequency_penalty) == (-1, 0.5)
  assert [(row.n, row.logprobs) for row in (first, second)] == [(2, 3), (3, 1)]


def test_a_file_of_prompts(api, capsys, tmp_path):
  source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
  source.write_text('{"prompt": "ab"}\nnonsense\n{"prompt": "cd", "id": "x"}\n')
  flags = ("--model=m", f"--prompts={source}", f"--output={target}")
  assert run(*flags, "--slots=2") == 0
  rows = [json.loads(line) for line in target.read_text().splitlines()]
  assert [(row["id"], row["text"]) for row in rows] == [
    ("1", "ba"),
    ("2", ""),
    ("x", "dc"),
  ]
  assert rows[1]["line"] == 2
  err = capsys.readouterr().err
  assert "3 of 3 rows written" in err and "1 of them errors" in err
  assert err.splitlines()[-1].startswith("line 2: not JSON: Expecting value")
  assert api.options["slots"] == 2
  # Again: refused, and the file is as it was.
  before = target.read_text()
  assert run(*flags) == 1
  assert "--overwrite" in capsys.readouterr().err
  assert target.read_text() == before
  assert run(*flags, "--overwrite") == 0


def test_rows_go_to_stdout_without_an_output(api, capsys, tmp_path):
  source = tmp_path / "in.jsonl"
  source.write_text('{"prompt": "ab"}\n')
  assert run("--model=m", f"--prompts={source}") == 0
  (line,) = capsys.readouterr().out.splitlines()
  assert json.loads(line)["text"] == "ba"


def test_nothing_but_errors_is_a_failure_with_three_reasons(
  api, capsys, tmp_path
):
  source = tmp_path / "in.jsonl"
  source.write_text("\n" + 5 * '{"temprature": 1}\n')
  assert run("--model=m", f"--prompts={source}") == 1
  assert "line 2" not in capsys.readouterr().err  # The rows have said so.
  flags = (f"--prompts={source}", f"--output={tmp_path / 'out.jsonl'}")
  assert run("--model=m", *flags) == 1
  *_, first, second, third, rest = capsys.readouterr().err.splitlines()
  assert first.startswith("line 2: unknown field 'temprature'")
  assert second.startswith("line 3: ") and third.startswith("line 4: ")
  assert rest == "… and 2 more"


@pytest.mark.parametrize(
  "flags, code, words",
  [
    (("--model=m",), 2, "--prompt and --prompts are missing"),
    (("--nonsense",), 2, "Unknown command line flag 'nonsense'"),
    (("--model=absent", "--prompt=p"), 1, "absent: no such folder; name"),
    (("--model=m", "--prompt=fail"), 1, "a NaN"),
    (
      ("--model=m", "--prompts=/absent", "--output=/dev/null"),
      1,
      "--prompts=/absent: no such file",
    ),
    (("--model=m", "--prompts=/"), 1, "--prompts=/: is a directory"),
  ],
)
def test_an_error_is_one_line_on_stderr(api, capsys, flags, code, words):
  assert run(*flags) == code
  out, err = capsys.readouterr()
  assert out == ""
  line = err.splitlines()[-1]
  assert line.startswith("specjax-generate: error: ")
  assert words in line
  assert "Traceback" not in err


SHIPPED = ", ".join(shipped.names())


@pytest.mark.parametrize(
  "name, words",
  [
    (
      "smollm2-135m-eagel",
      f"nor one of {SHIPPED} (did you mean smollm2-135m-eagle?);"
      " name one of those, or a folder",
    ),
    ("./absent/draft", f"nor one of {SHIPPED}; name one of those, or a folder"),
    (__file__, "is a file; give the folder that holds config.json"),
  ],
)
def test_a_draft_that_nothing_is_called_is_refused_before_loading(
  capsys, name, words
):
  flags = ("--model=m", "--prompt=p", "--proposer=eagle")
  assert run(*flags, f"--draft_model={name}") == 2
  (line,) = capsys.readouterr().err.splitlines()
  start = f"specjax-generate: error: --draft_model={name}: model {name!r}"
  assert line.startswith(start) and words in line


def test_a_draft_that_may_be_elsewhere_is_looked_for():
  for name in (*shipped.names(), "org/draft", "gs://bucket/draft", ".", None):
    checks.check_draft("--draft_model", name)


def test_rule_28_a_filter_no_row_heeds_is_refused_before_loading(
  api, capsys, tmp_path
):
  source = tmp_path / "in.jsonl"
  source.write_text('{"prompt": "ab"}\n')
  assert run("--model=m", f"--prompts={source}", "--top_k=3") == 2
  assert "--top_k=3 does nothing" in capsys.readouterr().err
  assert not api.loaded


def test_help_names_every_flag(capsys):
  assert run("--help") == 0
  assert "--lookahead=INTEGER  (default 4)" in capsys.readouterr().out
