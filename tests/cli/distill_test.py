"""specjax-distill-data: flags, files, and what a run says."""

import json
import pathlib
import random
import shlex
import signal
import subprocess
import sys
import time
import types

import pytest

import specjax
from specjax import compilation_cache
from specjax.cli import command, distill_data, distill_settings
from specjax.engine import memory
from specjax.jobs import manifest
from specjax.training import prompts_from_text, shards
from tests import fake_engine
from tests.benchmark import tiny

ROOT = pathlib.Path(__file__).parents[2]


def parse(*flags):
  return distill_settings.parse(["specjax-distill-data", *flags])


NEEDED = ("--model=m", "--output=o", "--prompts=a.jsonl")


def test_lists_are_taken_apart():
  s = parse(*NEEDED, "--temperatures=0,0.7", "--hidden=3,12", "--prompts=b.txt")
  assert s.temperatures == (0.0, 0.7) and s.hidden == (3, 12)
  assert s.prompts == ("a.jsonl", "b.txt")
  plain = parse(*NEEDED)
  assert plain.temperatures == (0.0, 1.0) and plain.hidden == ()


@pytest.mark.parametrize(
  "flags, wrong",
  [
    (("--output=o", "--prompts=a"), "--model is missing"),
    (("--model=m", "--prompts=a"), "--output is missing"),
    (("--model=m", "--output=gs://b/o", "--prompts=a"), "is a URL; name a"),
    (("--model=m", "--output=o"), "there are no prompts; name a file"),
    ((*NEEDED, "--temperatures=0,x"), "--temperatures=0,x: give numbers"),
    ((*NEEDED, "--temperatures=-1"), "--temperatures=-1: give numbers"),
    ((*NEEDED, "--temperatures=1,1"), "one is there twice"),
    ((*NEEDED, "--hidden=1.5"), "--hidden=1.5: give layers' numbers"),
    ((*NEEDED, "--slots=0"), "--slots=0 is out of range; give at least 1"),
    ((*NEEDED, "--resume", "--overwrite"), "keep one"),
    ((*NEEDED, "--hidden=1", "--proposer=ngram"), "--hidden needs plain"),
    ((*NEEDED, "--lookahead=3"), "--lookahead=3 does nothing without"),
    ((*NEEDED, "--temperatures=0", "--samples=2"), "does nothing at temper"),
    ((*NEEDED, "--chunk_chars=99"), "does nothing without text in --prompts"),
    (
      ("--model=m", "--output=o", "--self_prompts=3", "--chat"),
      "--chat=True does nothing without --prompts",
    ),
    ((*NEEDED, "--first_words=Sum"), "does nothing without --self_prompts"),
    (
      ("--model=m", "--output=o", "--self_prompts=3", "--first_words=\udcff"),
      r"--first_words='\udcff' is no UTF-8 text",
    ),
    ((*NEEDED, "--exclude="), "--exclude= is empty"),
    ((*NEEDED, "--temprature=1"), "temprature"),
    ((*NEEDED, "x.jsonl"), "'x.jsonl' is no flag; prompts go in --prompts"),
  ],
)
def test_a_wrong_command_line_is_refused_in_a_line(flags, wrong):
  with pytest.raises(command.UsageError) as told:
    parse(*flags)
  assert wrong in str(told.value) and "\n" not in str(told.value)


def test_a_config_sets_what_flags_do_not(tmp_path):
  config = tmp_path / "c.py"
  config.write_text(
    "import ml_collections\n"
    "def get_config():\n"
    "  return ml_collections.ConfigDict(dict(model='m', slots=3,"
    " prompts=['a.jsonl'], samples=2))\n"
  )
  s = parse(f"--config={config}", "--output=o", "--slots=4")
  assert (s.model, s.slots, s.samples, s.prompts) == ("m", 4, 2, ("a.jsonl",))
  # A flag may make a field of the config idle.
  assert parse(f"--config={config}", "--output=o", "--temperatures=0")
  # A flag may give a field what it needs.
  config.write_text(
    config.read_text().replace("samples", "first_words=['a'], samples")
  )
  assert parse(f"--config={config}", "--output=o", "--self_prompts=2")
  with pytest.raises(command.UsageError, match="config.first_words=.* nothing"):
    parse(f"--config={config}", "--output=o")


def test_the_shipped_config_is_accepted(monkeypatch):
  monkeypatch.chdir(ROOT)
  text = (ROOT / "configs/distill_smollm2.py").read_text()
  block = text.split("Commands:")[1].split("Makes:")[0]
  lines = block.replace("\\\\\n", " ").splitlines()
  maker, made = (shlex.split(line) for line in lines if line.strip())
  assert maker[:3] == ["python", "-m", prompts_from_text.__name__]
  s = distill_settings.parse(made)
  (name,) = [w.split("=")[1] for w in maker if w.startswith("--output")]
  assert s.prompts == (name,) and s.exclude == "demo/held_out.jsonl"
  assert pathlib.Path(s.exclude).is_file()


class Letters(fake_engine.Encoder):
  """With what of a tokenizer goes into the manifest and self prompts."""

  eos_ids = (ord("."),)

  def fingerprint(self):
    return "letters"

  def encode_more(self, text):
    return self.encode(text)

  def encode_chat(self, messages):
    return self.encode("u:" + messages[-1]["content"] + "a:")

  def decode(self, ids, skip_special=True):
    text = "".join(map(chr, ids))
    return text.replace("^", "") if skip_special else text


@pytest.fixture
def api(monkeypatch, tmp_path):
  """A stand-in for specjax.api."""
  config = types.SimpleNamespace(vocab_size=300, layers=2, d_model=8)

  def load(name, **options):
    return types.SimpleNamespace(
      name=name,
      folder=tmp_path,
      tokenizer=Letters(),
      model=types.SimpleNamespace(config=config, reads_source=False),
      require_decoder=lambda doing: None,
    )

  def engine(target, **options):
    fake.options = options
    fake.engine = fake_engine.Engine(slots=2)
    return fake.engine

  fake = types.ModuleType("specjax.api")
  fake.load, fake.Engine = load, engine
  monkeypatch.setattr(compilation_cache, "enable", lambda folder=None: None)
  monkeypatch.setattr(memory, "line", lambda needed, limit: "memory: little")
  monkeypatch.setattr(manifest, "digest_of_folder", lambda folder: "digest")
  monkeypatch.setitem(sys.modules, "specjax.api", fake)
  monkeypatch.setattr(specjax, "api", fake, raising=False)
  return fake


@pytest.fixture
def rows(tmp_path):
  path = tmp_path / "a.jsonl"
  texts = ("one", "two", "three", "fail")
  path.write_text("".join(json.dumps({"prompt": t}) + "\n" for t in texts))
  return path


def run(rows, folder, *more):
  flags = ["--model=m", f"--prompts={rows}", f"--output={folder}", *more]
  return distill_data.main(["specjax-distill-data", *flags])


def test_rows_are_made_and_summed_up(api, rows, tmp_path, capsys):
  assert run(rows, tmp_path / "o", "--slots=3", "--seed=5") == 0
  reader = shards.Reader(tmp_path / "o")
  assert len(reader) == 6 and reader.complete
  assert {r.id for r in reader} >= {"a.jsonl:1@0", "a.jsonl:3@1"}
  assert reader.about["target"]["tokenizer"] == "letters"
  assert reader.about["settings"]["temperatures"] == [0, 1]
  assert (api.options["slots"], api.options["seed"]) == (3, 5)
  out, err = capsys.readouterr()
  assert not out
  assert "tokens/s" in err and "6 of 6 rows in" in err
  assert "44 tokens, 22 of them answers" in err
  assert "a.jsonl:4@0: a NaN" in err and "2 not answered" in err


def test_hidden_states_and_drafts_ask_for_their_proposer(api, rows, tmp_path):
  assert run(rows, tmp_path / "a", "--proposer=ngram", "--lookahead=3") == 0
  assert (api.options["proposer"], api.options["lookahead"]) == ("ngram", 3)
  assert shards.Reader(tmp_path / "a").about["settings"]["lookahead"] == 3
  flags = ["--model=m", f"--output={tmp_path / 'b'}", "--hidden=1,2"]
  s = distill_settings.parse(["p", *flags, f"--prompts={rows}"])
  api.engine = distill_data._engine(s, api.load("m"))
  assert api.options["proposer"].features == (1, 2)
  assert api.options["proposer"].width == 8


def test_a_folder_is_kept_unless_told_otherwise(api, rows, tmp_path, capsys):
  folder = tmp_path / "o"
  assert run(rows, folder) == 0
  assert run(rows, folder) == 1
  assert "--resume" in capsys.readouterr().err
  assert run(rows, folder, "--resume") == 0
  assert "is complete: nothing left" in capsys.readouterr().err
  assert run(rows, folder, "--resume", "--seed=1") == 1
  assert "settings.seed=0, not 1" in capsys.readouterr().err
  assert run(rows, folder, "--overwrite", "--seed=1") == 0


def test_held_out_prompts_are_not_answered(api, rows, tmp_path, capsys):
  held = tmp_path / "held.jsonl"
  held.write_text('{"prompt": "TWO!"}\n')
  assert run(rows, tmp_path / "o", f"--exclude={held}") == 0
  ids = {r.id for r in shards.Reader(tmp_path / "o")}
  assert ids == {f"a.jsonl:{n}@{t}" for n in (1, 3) for t in (0, 1)}
  assert "1 prompts left out" in capsys.readouterr().err


def test_the_target_makes_up_prompts(api, tmp_path, capsys):
  flags = ["--model=m", "--self_prompts=2", f"--output={tmp_path / 'o'}"]
  code = distill_data.main(["specjax-distill-data", *flags])
  # The fake answers "u:" with ":u", which never ends, so there are none.
  assert code == 1
  assert "0 different prompts of 8" in capsys.readouterr().err


@pytest.mark.parametrize(
  "more, wrong",
  [
    (
      ("--capacity=8", "--first_words=", "--first_words=Write a poem"),
      "--first_words='Write a poem'… comes to 14 tokens",
    ),
    (("--first_words=a^b",), "--first_words='a^b' has a control token"),
  ],
)
def test_first_words_that_cannot_be_used_are_named(
  api, tmp_path, capsys, more, wrong
):
  flags = ["--model=m", "--self_prompts=2", f"--output={tmp_path / 'o'}", *more]
  assert distill_data.main(["specjax-distill-data", *flags]) == 1
  assert wrong in capsys.readouterr().err
  assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
  "more, wrong",
  [
    (("--prompts=absent.jsonl",), "--prompts=absent.jsonl: no such file"),
    (("--exclude=absent.jsonl",), "--exclude=absent.jsonl: no such file"),
    (("--hidden=3",), "--hidden=3: m has 2 layers; give numbers from 0 to 2"),
  ],
)
def test_what_is_not_there_is_named(api, rows, tmp_path, capsys, more, wrong):
  assert run(rows, tmp_path / "o", *more) in (1, 2)
  assert wrong in capsys.readouterr().err
  assert not (tmp_path / "o").exists()


def test_prompts_are_made_of_text_by_the_seed(tmp_path):
  source, docs = tmp_path / "src", tmp_path / "docs"
  source.mkdir(), docs.mkdir()
  (source / "a.py").write_text(
    '"""Not prose."""\n\nclass A:\n'
    + "".join(
      f"  def total_{name}(self, prices):\n"
      f'    """Return the sum of all {name} prices that are above zero."""\n'
      "    found = [price for price in prices if price > 0]\n"
      "    return sum(found)\n"
      for name in ("high", "low", "mean", "odd")
    )
  )
  texts = [f"This {n} is long enough to be a paragraph. " * 4 for n in "abcd"]
  (docs / "README").write_text("\n\n".join([*texts, "-- not --"]))
  held = tmp_path / "held.jsonl"

  def make(seed, *more):
    path = tmp_path / f"{seed}{len(more)}.jsonl"
    flags = [f"--output={path}", f"--source={source}", f"--docs={docs}"]
    flags += ["--code=2", "--rewrite=2", f"--seed={seed}", *more]
    assert prompts_from_text.main(flags) == 0
    path.rename(held)
    return [json.loads(line) for line in held.read_text().splitlines()]

  first = make(1)
  assert [r["id"] for r in first] == ["code-0", "code-1"] + [
    "rewrite-0",
    "rewrite-1",
  ]
  assert make(1) == first
  said = [r["messages"][0]["content"] for r in first]
  assert len(set(said)) == 4
  again = make(1, f"--exclude={held}")
  assert not set(said) & {r["messages"][0]["content"] for r in again}


@pytest.mark.long
def test_killed_at_random_moments_the_rows_are_the_same(tmp_path):
  folder = tiny.folder(tmp_path / "model", layers=1)
  rows = tmp_path / "in.jsonl"
  tiny.prompts(rows, [f"the cat {n} " * (1 + n % 4) for n in range(40)])
  start = [sys.executable, "-m", "specjax.cli.distill_data", "--slots=2"]
  start += [f"--model={folder}", f"--prompts={rows}", "--max_new_tokens=40"]
  start += ["--hidden=0,1", "--capacity=128"]
  start += [f"--compilation_cache={tmp_path}/xla"]

  def begin(name, *more):
    return subprocess.Popen(
      [*start, f"--output={tmp_path / name}", *more],
      cwd=ROOT,
      stderr=subprocess.PIPE,
      text=True,
    )

  def found(name):
    reader = shards.Reader(tmp_path / name)
    reader.verify()
    rows = [(r.id, r.tokens.tolist(), r.hidden.tobytes()) for r in reader]
    assert len(dict(r[:2] for r in rows).keys()) == len(rows)
    return sorted(rows), reader.complete

  with begin("whole") as child:
    assert child.wait() == 0
  whole, _ = found("whole")
  dice, killed = random.Random(3), 0
  while killed < 5:
    with begin("killed", "--resume") as child:
      while not (tmp_path / "killed" / "manifest.json").exists():
        time.sleep(0.1)
      time.sleep(dice.uniform(2, 12))
      with_term = killed % 2
      child.send_signal(signal.SIGTERM if with_term else signal.SIGKILL)
      code = child.wait()
      if code == 0:
        break
      assert code == (143 if with_term else -signal.SIGKILL)
    killed += 1
    found("killed")
  with begin("killed", "--resume") as child:
    assert child.wait() == 0, child.stderr.read()
  rows, complete = found("killed")
  assert complete and killed
  assert [r[:2] for r in rows] == [r[:2] for r in whole]
