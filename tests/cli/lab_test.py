"""specjax-lab's command line."""

import csv
import json
import pathlib

import pytest

from specjax.cli import command, lab, lab_settings
from specjax.lab import topology

CONFIGS = pathlib.Path(__file__).parent.parent.parent / "configs"
PAIR = f"--config={CONFIGS}/chinchilla_70b.py"


def parse(*flags):
  return lab_settings.parse(["specjax-lab", *flags])


def test_what_is_not_given_is_the_configs():
  asked = parse(PAIR, "--topology=v4:2x2x4")
  assert (asked.config.target, asked.config.draft) == (
    "chinchilla_70b",
    "chinchilla_4b",
  )
  assert [str(one) for one in asked.strategies] == ["tensor"]
  assert (asked.batch, asked.lookahead, asked.context) == ((1,), (4,), (2048,))
  assert asked.live is None


def test_speed_ups_are_for_the_acceptances_asked_for():
  flags = (PAIR, "--topology=v4:2x2x4")
  assert parse(*flags).acceptance is None
  asked = parse(*flags, "--lookahead=0,4", "--acceptance=0.62,1,.8")
  assert asked.acceptance == (0.62, 1.0, 0.8)


@pytest.mark.parametrize(
  "flags, says",
  [
    (("--lookahead=0,4", "--acceptance=1.5"), "'1.5' is no number from 0 to 1"),
    (("--lookahead=0,4", "--acceptance=nan"), "is no number from 0 to 1"),
    (("--lookahead=0,4", "--acceptance="), "is no number from 0 to 1"),
    (("--lookahead=0,4", "--acceptance=.5,.50"), "is there twice"),
    (("--lookahead=4", "--acceptance=.5"), "nothing without speed-ups"),
    (("--lookahead=0", "--acceptance=.5"), "nothing without speed-ups"),
    (
      ("--lookahead=0,4", "--acceptance=.5", f"--against={PAIR[9:]}"),
      "nothing without speed-ups",
    ),
  ],
)
def test_acceptances_that_nothing_is_worked_out_for_are_refused(flags, says):
  with pytest.raises(command.UsageError, match=says):
    parse(PAIR, "--topology=v4:2x2x4", *flags)


def test_flags_are_lists():
  asked = parse(
    PAIR,
    "--topology=v4:2x2x4,v5e:4x4",
    "--strategies=tensor,tensor/replicated+rows@2x8",
    "--batch=1,8",
    "--lookahead=0,4",
    "--context=2048,8192",
    "--live=512",
  )
  assert [str(one) for one in asked.topologies] == ["v4:2x2x4", "v5e:4x4"]
  assert asked.strategies[1].draft == "replicated"
  assert asked.context == (2048, 8192) and asked.live == (512,)


@pytest.mark.parametrize(
  "path", sorted(CONFIGS.glob("*.py")), ids=lambda path: path.stem
)
def test_every_config_of_a_pair_names_its_sizes(path):
  if "PRESETS" not in path.read_text(encoding="utf-8"):
    pytest.skip("it has a folder's sizes")
  config = lab_settings.read_config("config", str(path))
  assert config.draft is not None


def write_config(folder, **values):
  """A config of a tiny target, and a draft model if it says so."""
  presets = values.pop("presets", ("chinchilla_tiny",))
  lines = [
    "import ml_collections",
    f"PRESETS = {presets!r}",
    "def get_config():",
    f"  return ml_collections.ConfigDict({values!r})",
  ]
  path = folder / "some.py"
  path.write_text("\n".join(lines), encoding="utf-8")
  return f"--config={path}"


def test_who_drafts_is_the_configs_too(tmp_path):
  config = write_config(tmp_path, proposer="ngram", ngram_max=3, lookahead=6)
  asked = parse(config, "--topology=v5e:2x2")
  assert asked.proposers == ("ngram",) and asked.lookahead == (6,)
  assert asked.config.draft is None
  plain = write_config(tmp_path, proposer="none")
  asked = parse(plain, "--topology=v5e:2x2")
  assert asked.proposers == ("none",) and asked.lookahead == (0,)


def test_proposers_can_be_compared():
  asked = parse(
    PAIR, "--topology=v4:2x2x4", "--proposers=none,ngram,draft_model",
    "--lookahead=0,4",
  )  # fmt: skip
  cases = [(case["proposer"], case["lookahead"]) for case in lab._cases(asked)]
  assert cases == [
    ("none", 0), ("ngram", 0), ("ngram", 4), ("draft_model", 0),
    ("draft_model", 4),
  ]  # fmt: skip


def test_siblings_are_of_those_that_rank_and_draft():
  flags = (PAIR, "--topology=v4:2x2x4")
  assert parse(*flags).siblings == (0,)
  asked = parse(
    *flags, "--proposers=ngram,draft_model", "--lookahead=0,4",
    "--siblings=0,3",
  )  # fmt: skip
  names = ("proposer", "lookahead", "siblings")
  cases = [tuple(map(case.get, names)) for case in lab._cases(asked)]
  assert cases == [
    ("ngram", 0, 0), ("ngram", 4, 0), ("draft_model", 0, 0),
    ("draft_model", 4, 0), ("draft_model", 4, 3),
  ]  # fmt: skip


def test_siblings_are_the_configs_where_there_can_be_any(tmp_path):
  config = write_config(
    tmp_path, proposer="eagle", draft_model="some/head", siblings=3
  )
  flags = (config, "--topology=v5e:2x2")
  assert parse(*flags).siblings == (3,)
  assert parse(*flags, "--proposers=ngram").siblings == (0,)
  assert parse(*flags, "--lookahead=0").siblings == (0,)


@pytest.mark.parametrize(
  "flags, says",
  [
    (("--siblings=-1",), "'-1' is no whole number from 0 to 1024"),
    (("--siblings=1025",), "'1025' is no whole number from 0 to 1024"),
    (("--siblings=4,4",), "is there twice"),
    (("--siblings=",), "--siblings is empty"),
    (("--siblings=4", "--lookahead=0"), "nothing with lookahead 0"),
    (("--siblings=0,4", "--proposers=none"), "proposers=none, which have no"),
    (("--siblings=4", "--proposers=ngram,none"), "which have no second"),
  ],
)
def test_siblings_that_nobody_makes_are_refused(flags, says):
  with pytest.raises(command.UsageError, match=says):
    parse(PAIR, "--topology=v4:2x2x4", *flags)


@pytest.mark.parametrize(
  "flags, says",
  [
    (("--proposers=draft_model",), "names no draft model"),
    (("--proposers=ngram,oracle",), "the lab knows none, ngram, draft_model"),
    (("--proposers=layer_skip",), "needs --draft_layers"),
    (("--proposers=none", "--lookahead=4"), "drafts nothing; give 0"),
  ],
)
def test_who_cannot_draft_is_refused(tmp_path, flags, says):
  config = write_config(tmp_path, proposer="ngram")
  with pytest.raises(command.UsageError, match=says):
    parse(config, "--topology=v5e:2x2", *flags)


def pair_of(*flags):
  """The pair that a command line asks to compile."""
  asked = parse(PAIR, "--topology=v4:2x2x4", *flags)
  return lab._pair(asked.config, asked.settings)


def test_what_is_chosen_of_a_proposer_is_compiled():
  pair = pair_of("--proposers=eagle,mtp", "--eagle=3", "--vocabulary=8000")
  assert (pair.eagle, pair.vocabulary, pair.heads) == (3, 8000, None)
  pair = pair_of("--proposers=medusa", "--heads=5", "--lookahead=0,5")
  assert (pair.eagle, pair.vocabulary, pair.heads) == (1, 0, 5)
  pair = pair_of("--proposers=layer_skip", "--draft_layers=0,1,9")
  assert pair.draft_layers == (0, 1, 9)


def test_the_layers_that_draft_are_the_configs_too(tmp_path):
  config = write_config(tmp_path, proposer="layer_skip", draft_layers="2")
  asked = parse(config, "--topology=v5e:2x2")
  assert asked.proposers == ("layer_skip",)
  assert lab_settings.draft_layers(asked.settings, asked.config) == 2


def test_the_folder_of_a_configs_head_is_no_draft_model(tmp_path):
  config = write_config(tmp_path, proposer="eagle", draft_model="some/head")
  asked = parse(config, "--topology=v5e:2x2")
  assert asked.proposers == ("eagle",) and asked.config.draft is None


def test_a_strategy_of_the_drafts_own_is_for_draft_models_alone():
  flags = (PAIR, "--topology=v4:2x2x4", "--strategies=tensor/replicated,tensor")
  asked = parse(*flags, "--proposers=eagle,draft_model")
  cases = [(c["proposer"], str(c["strategy"])) for c in lab._cases(asked)]
  assert cases == [
    ("eagle", "tensor"), ("draft_model", "tensor/replicated"),
    ("draft_model", "tensor"),
  ]  # fmt: skip
  with pytest.raises(command.UsageError, match="replicated splits a draft"):
    parse(*flags, "--proposers=eagle")


EAGLE, MEDUSA = "--proposers=eagle", "--proposers=medusa"
SKIP = "--proposers=layer_skip"


@pytest.mark.parametrize(
  "flags, says",
  [
    ((EAGLE, "--heads=4"), "--heads=4 does nothing without medusa or mtp"),
    ((MEDUSA, "--eagle=3"), "--eagle=3 does nothing without eagle in"),
    ((EAGLE, "--draft_layers=8"), "does nothing without layer_skip"),
    ((SKIP, "--draft_layers=8", "--vocabulary=9"), "--vocabulary=9 does"),
    (("--vocabulary=0",), "does nothing without medusa or eagle or mtp"),
    ((EAGLE, "--eagle=2"), "is no EAGLE; give 1 or 3"),
    ((EAGLE, "--vocabulary=-1"), "out of range; give at least 0"),
    ((MEDUSA, "--heads=0"), "out of range; give at least 1"),
    ((MEDUSA, "--lookahead=0,8"), "4 Medusa heads.*or --heads=8"),
    ((SKIP, "--draft_layers=8,1"), "--draft_layers=8,1: give layers in rising"),
    ((SKIP, "--draft_layers="), "is empty"),
  ],
)
def test_what_does_nothing_for_a_proposer_is_refused(flags, says):
  with pytest.raises(command.UsageError, match=says):
    parse(PAIR, "--topology=v4:2x2x4", *flags)


@pytest.mark.parametrize(
  "flags, says",
  [
    ((EAGLE, "--vocabulary=32001"), "more than the 32000 of chinchilla_70b's"),
    ((SKIP, "--draft_layers=80"), "has 80 layers; give fewer"),
    ((SKIP, "--draft_layers=0,80"), "numbered 0 to 79"),
  ],
)
def test_what_the_target_has_no_room_for_is_refused(flags, says, capsys):
  assert lab.main(["specjax-lab", PAIR, "--topology=v4:2x2x4", *flags]) == 2
  assert says in capsys.readouterr().err


@pytest.mark.parametrize(
  "flags, says",
  [
    ((), "--config is missing"),
    (("--config=nowhere.py", "--topology=v4:2x2x4"), "is no file"),
    ((PAIR,), "--topology is missing"),
    ((PAIR, "--topology=v4:2x2x4", "--smallest"), "does nothing beside"),
    ((PAIR, "--topology=v4:2x2"), "3 sides"),
    ((PAIR, "--topology=v4:2x2x4,v4:2x2x4"), "is there twice"),
    ((PAIR, "--topology=v4:2x2x4", "--batch=0"), "whole number from 1"),
    ((PAIR, "--topology=v4:2x2x4", "--batch="), "--batch is empty"),
    ((PAIR, "--topology=v4:2x2x4", "--lookahead=-1"), "whole number from 0"),
    ((PAIR, "--topology=v4:2x2x4", "--live=4096"), "give fewer"),
    ((PAIR, "--topology=v4:2x2x4", "--strategies=tensors"), "no strategy"),
    ((PAIR, "--topology=v4:2x2x4", "word"), "no flag"),
    (
      (PAIR, "--topology=v4:2x2x4", f"--against={CONFIGS}/none.py"),
      "--against=",
    ),
    (
      (PAIR, "--topology=v4:2x2x4", "--against=x.py", "--csv=x.csv"),
      "--csv does nothing beside --against",
    ),
  ],
)
def test_a_wrong_command_line_is_refused_by_name(flags, says):
  with pytest.raises(command.UsageError, match=says):
    parse(*flags)


def test_help_names_every_flag(capsys):
  assert lab.main(["specjax-lab", "--help"]) == 0
  shown = capsys.readouterr().out
  for name in lab_settings.FIELDS:
    assert f"--{name}" in shown


def test_a_file_in_no_folder_is_refused_before_anything_is_compiled(capsys):
  code = lab.main(
    ["specjax-lab", PAIR, "--topology=v4:2x2x4", "--json=no/where.json"]
  )
  assert code == 2 and "--json=no/where.json" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif(
  not topology.is_installed(),
  reason="the TPU compiler is not installed: pip install 'specjax[lab]'",
)
def test_rows_are_shown_and_written(tmp_path, capsys):
  pytest.importorskip("matplotlib")
  files = {name: tmp_path / f"lab.{name}" for name in ("json", "csv", "png")}
  code = lab.main(
    [
      "specjax-lab",
      f"--config={CONFIGS}/chinchilla_tiny.py",
      "--topology=v5e:2x2",
      "--lookahead=0,2",
      f"--json={files['json']}",
      f"--csv={files['csv']}",
      f"--plot={files['png']}",
    ]
  )
  shown = capsys.readouterr()
  assert code == 0, shown.err
  assert "never" in shown.out or "nothing here is a measured" in shown.out
  rows = json.loads(files["json"].read_text())["rows"]
  assert [row["lookahead"] for row in rows] == [0, 2]
  assert all(row["fits"] for row in rows)
  with open(files["csv"], newline="") as file:
    written = list(csv.DictReader(file))
  assert [row["topology"] for row in written] == ["v5e:2x2"] * 2
  assert float(written[1]["traffic.target_weights"]) > 0
  assert files["png"].stat().st_size > 10_000
