"""The flags of a mesh: what reaches specjax.load, and what is refused."""

import re

import pytest

from specjax.cli import checks, command, generate, settings

DRAFT = ("--proposer=draft_model", "--draft_model=d")


def check(*flags):
  argv = ["specjax-generate", "--model=m", "--prompt=p", *flags]
  given = settings.parse(argv)
  checks.check(given)
  return given.settings


@pytest.fixture
def config(tmp_path):
  def write(*lines):
    path = tmp_path / "config.py"
    body = "".join(f"  c.{line}\n" for line in lines)
    path.write_text(
      "import ml_collections\ndef get_config():\n"
      f"  c = ml_collections.ConfigDict()\n{body}  return c\n"
    )
    return f"--config={path}"

  return write


def test_both_models_get_the_mesh_and_rules_of_their_own(api):
  flags = ("--mesh=model:1", "--strategy=fsdp", "--cache_sharding=rows")
  argv = ["specjax-generate", "--model=m", "--prompt=p", *flags, *DRAFT]
  assert generate.main([*argv, "--draft_strategy=replicated"]) == 0
  assert api.loaded["m"]["strategy"] == "fsdp"
  assert api.loaded["d"]["strategy"] == "replicated"
  for options in api.loaded.values():
    assert options["mesh"] == "model:1"
    assert options["cache_sharding"] == "rows"
    assert options["pad_heads"] is False
  assert generate.main(argv) == 0
  assert api.loaded["d"]["strategy"] == "fsdp"


def test_padding_that_pads_nothing_is_refused(api, capsys):
  argv = ["specjax-generate", "--model=m", "--prompt=p", "--mesh=model:1"]
  assert generate.main([*argv, "--pad_heads"]) == 2
  err = capsys.readouterr().err
  assert "--pad_heads does nothing: all heads divide over --mesh=model:1" in err


def test_rules_of_ones_own_are_a_dict_in_a_config(config):
  lines = (
    "mesh='model:1'",
    "strategy=dict(parameters=dict(heads='model'), arrays=dict(mlp=['data']))",
  )
  s = check(config(*lines))
  assert s.strategy == {
    "parameters": {"heads": "model"},
    "arrays": {"mlp": ["data"]},
  }
  assert check(config(*lines), "--strategy=tensor").strategy == "tensor"


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--mesh=model",), "--mesh=model: 'model' is no axis; give NAME:SIZE"),
    (("--mesh=a:1,a:1",), "axis 'a' is there twice"),
    (("--strategy=tensor",), "--strategy=tensor does nothing without --mesh"),
    (("--pad_heads",), "--pad_heads does nothing without --mesh"),
    (("--cache_sharding=rows",), "does nothing without --mesh"),
    ((*DRAFT, "--draft_strategy=fsdp"), "does nothing without --mesh"),
    (
      ("--mesh=model:1", "--draft_strategy=fsdp"),
      "--draft_strategy=fsdp does nothing with --proposer=none, the default",
    ),
    (
      ("--mesh=model:1", "--strategy=best"),
      "<tensor|tensor2d|fsdp|replicated>",
    ),
    (("--mesh=model:1", "--cache_sharding=x"), "<heads|rows|sequence>"),
  ],
)
def test_a_wrong_flag_of_a_mesh_is_refused(flags, words):
  with pytest.raises(command.UsageError, match=re.escape(words)):
    check(*flags)


@pytest.mark.parametrize(
  "line, words",
  [
    ("strategy='best'", "config.strategy='best': give one of tensor, tensor2d"),
    ("strategy=4", "config.strategy=4: give one of tensor, tensor2d"),
    ("strategy=dict(arrays={})", "strategy: missing 'parameters'"),
    (
      "strategy=dict(parameters=dict(legs='model'), arrays={})",
      "there is no logical axis 'legs'",
    ),
    (
      "strategy=dict(parameters={}, arrays={}, caches=dict(rows='data'));"
      " c.cache_sharding='rows'",
      "and the strategy's own caches contradict each other",
    ),
    (
      "draft_strategy=dict(parameters={}, arrays={}, caches=dict(rows='data'));"
      " c.cache_sharding='rows'",
      "and the draft_strategy's own caches contradict each other",
    ),
  ],
)
def test_wrong_rules_in_a_config_are_refused(config, line, words):
  with pytest.raises(command.UsageError, match=re.escape(words)):
    check(config("mesh='model:1'", line))
