"""Every config is accepted, fits its mesh and says what can be computed."""

import math
import pathlib
import re
import shlex

import jax
import pytest

from specjax.cli import checks, command, init, settings
from specjax.models import decoder, padding, presets
from specjax.sharding import axes, rules, shape
from specjax.sharding.placement import Placement

ROOT = pathlib.Path(__file__).parent.parent
# Those of specjax-generate; those of training are tried with its commands.
CONFIGS = sorted(
  path
  for path in (ROOT / "configs").glob("*.py")
  if not path.stem.startswith(("distill_", "train_"))
)
# config -> the presets of its target and draft.
PAIRS = {
  "chinchilla_70b": ("chinchilla_70b", "chinchilla_4b"),
  "chinchilla_tiny": ("chinchilla_tiny", "chinchilla_tiny_draft"),
  "llama2_70b": ("llama2_70b", "llama2_7b"),
  "llama3_70b": ("llama3_70b", "llama3_1b"),
  "qwen3_32b": ("qwen3_32b", "qwen3_0_6b"),
  "gemma3_27b": ("gemma3_27b", "gemma3_1b"),
  "t5_xxl_small": ("t5_xxl", "t5_small"),
  "t5_xxl_base": ("t5_xxl", "t5_base"),
  "t5_xxl_large": ("t5_xxl", "t5_large"),
}
FLOOR = re.compile(
  r"at (\d+) GB/s a chip. .*target's pass takes at least ([\d.]+) ms, "
  r"a draft's ([\d.]+) ms"
)


def header(name):
  """A config's docstring as one line, and its commands."""
  text = (ROOT / f"configs/{name}.py").read_text().split('"""')[1]
  (block,) = re.findall(r"^Command:(.*?)^\w+:", text, re.M | re.S)
  lines = block.replace("\\\\\n", " ").splitlines()
  words = [
    shlex.split(line, comments=True) for line in lines if "`" not in line
  ]
  return " ".join(text.split()), [line for line in words if line]


def of(name):
  return settings.parse(
    ["specjax-generate", f"--config={ROOT}/configs/{name}.py"]
  ).settings


def sizes(name, config):
  """A preset's model on the config's mesh, and that mesh's placement."""
  axes_of_mesh = {"data": 1, "model": 1} | shape.parse(config.mesh)
  mesh = jax.sharding.AbstractMesh(
    tuple(axes_of_mesh.values()), tuple(axes_of_mesh)
  )
  placement = Placement(mesh, rules.find(config.strategy))
  made = presets.get(name)
  if config.pad_heads:
    made = padding.padded(made, placement.ways(axes.KV_HEADS))
  model = decoder.build(
    made, dtype=config.dtype, scan_layers=True, placement=placement
  )
  return model, placement


def test_every_config_is_tried():
  assert {path.stem for path in CONFIGS} == {*PAIRS, "smollm2"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_command_of_the_header_is_accepted(path, monkeypatch):
  monkeypatch.chdir(ROOT)
  _, commands = header(path.stem)
  assert commands
  for words in commands:
    if words[0] == "specjax-init":
      init.parse(words)
      continue
    if words[0] == "launch/local_pod.sh":
      words = words[2:]  # Its last number stands for the program's name.
    given = settings.parse(words)
    checks.check(given)
    assert given.config, "the command does not load the config"


@pytest.mark.parametrize("name", PAIRS)
def test_a_prompt_will_do_where_a_file_would(name):
  flags = [f"--config={ROOT}/configs/{name}.py", "--prompt=p"]
  flags += ["--model=m", "--draft_model=d"]
  checks.check(settings.parse(["specjax-generate", *flags]))


def test_a_model_that_is_not_published_must_be_named():
  flags = [f"--config={ROOT}/configs/chinchilla_70b.py", "--prompt=p"]
  for more, missing in (([], "--model is"), (["--model=m"], "--draft_model")):
    with pytest.raises(command.UsageError, match=missing):
      checks.check(settings.parse(["specjax-generate", *flags, *more]))


@pytest.mark.parametrize("name", PAIRS)
def test_target_and_draft_divide_over_the_mesh(name):
  config = of(name)
  for preset in PAIRS[name]:
    model, placement = sizes(preset, config)
    placement.check({axes.ROWS: config.slots}, preset, ("arrays", "caches"))
    assert config.capacity <= model.config.max_position
  padded = [
    sizes(preset, config)[0].config.heads_in_file for preset in PAIRS[name]
  ]
  assert config.pad_heads == any(padded), "pad_heads does nothing"


@pytest.mark.parametrize("name", sorted(set(PAIRS) - {"chinchilla_tiny"}))
def test_the_times_in_the_header_are_what_the_weights_take(name):
  text, _ = header(name)
  assert "computed, not measured" in text
  (found,) = FLOOR.findall(text)
  bandwidth, *stated = map(float, found)
  config = of(name)
  chips = math.prod(shape.parse(config.mesh).values())
  assert f"{chips} chips" in text
  for preset, ms in zip(PAIRS[name], stated, strict=True):
    model, _ = sizes(preset, config)
    count = sum(
      math.prod(spec.shape)
      for path, spec in zip(model.paths, model.shapes, strict=True)
      if not decoder.is_of_source(path)
    )
    if not model.config.tied:  # An embedding is looked up, not read.
      count -= model.config.vocab_size * model.config.d_model
    assert round(2 * count / chips / bandwidth / 1e6, 2) == ms, preset
