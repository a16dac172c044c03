"""The module map of DESIGN.md, held against the imports of the source.

A unit is a module or package directly under specjax, or a module that lies
lower than the package it lives in (the bases). An import is allowed when the
map has the arrow, or when a unit at an arrow's end may import it itself.
"""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent / "specjax"

LOWER = {
  "types": (),
  "text": (),
  # Beyond DESIGN.md: where compiled programs are kept between starts.
  "user_cache": (),
  "compilation_cache": ("user_cache",),
  # Beyond DESIGN.md: whether a picture can be drawn, asked by three commands.
  "pictures": (),
  "sharding": ("types",),
  "cache": ("types", "models.cpu_kernel"),
  # Beyond DESIGN.md: the CPU's own kernels, which lie with the models, most of
  # whose work they do; one reads a vocabulary for sampling.
  "models.cpu_kernel": ("types", "user_cache", "models.int8"),
  # Beyond DESIGN.md: weights that products take in an array's place.
  "models.int8": ("types",),
  "sampling": ("types", "models.cpu_kernel"),
  # Beyond DESIGN.md: where the rows' arrays lie on a mesh.
  "layout": ("types", "cache", "sharding"),
  # Beyond DESIGN.md: what a row's own words do to logits, and what a target
  # thinks of emitted tokens, each in a file of its own.
  "penalties": ("types",),
  "logprobs": ("types",),
  # Beyond DESIGN.md: what a step needs of any model, as a Protocol.
  "models.base": ("types",),
  # Beyond DESIGN.md: user_cache, where the CPU's compiled product is kept.
  "models": ("types", "cache", "sharding", "user_cache", "models.base"),
  "proposers.base": (
    "types",
    "cache",
    "sampling",
    "penalties",
    "sharding",
    "models.base",
  ),
  # Beyond DESIGN.md: to decode plainly the engine proposes nothing.
  "proposers.none": ("proposers.base",),
  "proposers": (
    "types",
    "cache",
    "sampling",
    "layout",
    "models",
    "proposers.base",
  ),
  "verifiers.base": ("types", "sampling", "proposers.base"),
  "verifiers": ("types", "sampling", "proposers.base", "verifiers.base"),
  # Beyond DESIGN.md: what a step keeps of a proposal, and its state, in files
  # of their own.
  "judging": ("sampling", "sharding", "proposers.base", "verifiers"),
  "state": (
    "sampling",
    "penalties",
    "logprobs",
    "models.base",
    "proposers.base",
    "judging",
  ),
  "step": (
    "cache",
    "sampling",
    "sharding",
    "state",
    "proposers.base",
    "verifiers.base",
  ),
  "metrics": ("types",),
  "engine": (
    "step",
    "text",
    "metrics",
    "layout",
    "models",
    "proposers.none",
  ),
  "jobs": ("engine",),
  # Beyond DESIGN.md: weights that come with specjax, by name.
  "shipped": (),
  # Beyond DESIGN.md: text, for reading the JSON files of a model's folder.
  "checkpoints": ("models", "proposers", "text", "user_cache", "shipped"),
  # Beyond DESIGN.md: a checkpoint opened, below all that runs it.
  "pretrained": ("checkpoints",),
  # Beyond DESIGN.md: the same for what drafts beside one, and the proposer that
  # a user's words ask for.
  "heads": ("pretrained",),
  "making": ("heads", "proposers", "proposers.none"),
  # Beyond DESIGN.md: jobs, for prompt files and their requests.
  "training": (
    "models",
    "proposers",
    "checkpoints",
    "pretrained",
    "heads",
    "engine",
    "jobs",
  ),
}
EVERYTHING = tuple(LOWER)
MAP = LOWER | {
  "lab": (*EVERYTHING, "api"),
  "api": (*EVERYTHING, "lab"),
  # Beyond DESIGN.md: what specjax-benchmark measures, and how.
  "benchmark": (*EVERYTHING, "api"),
  "cli": (*EVERYTHING, "lab", "api", "benchmark"),
  # specjax/__init__.py: what `import specjax` offers.
  "": ("api",),
}


def reachable(unit: str) -> set[str]:
  if not unit:  # A name offered at the top has gone through api.
    return set(MAP[unit])
  seen, stack = {"types"}, [unit]
  while stack:
    for lower in MAP[stack.pop()]:
      if lower not in seen:
        seen.add(lower)
        stack.append(lower)
  return seen


def unit_of(module: str) -> str | None:
  """The unit of a module named below specjax ("proposers.base"), or None."""
  parts = module.split(".")
  for name in (".".join(parts[:2]), parts[0]):
    if name in MAP:
      return name
  return None


def is_module(module: str) -> bool:
  path = ROOT.joinpath(*module.split("."))
  return module in MAP or path.is_dir() or path.with_suffix(".py").is_file()


def imported(tree: ast.AST) -> list[tuple[int, str]]:
  """(line, module below specjax) of every import; "" is specjax itself."""
  found = []

  def add(node, name):
    if name == "specjax" or name.startswith("specjax."):
      found.append((node.lineno, name.removeprefix("specjax")[1:]))

  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        add(node, alias.name)
    elif isinstance(node, ast.ImportFrom):
      if node.level:
        found.append((node.lineno, "." * node.level))
      elif node.module:
        for alias in node.names:
          name = f"{node.module}.{alias.name}"
          below = name.removeprefix("specjax.")
          # `from specjax import text` names a module, `load` an attribute.
          add(node, name if is_module(below) else node.module)
    elif isinstance(node, ast.Call) and node.args:
      called = ast.unparse(node.func).rpartition(".")[2]
      if called in ("import_module", "__import__"):
        if isinstance(node.args[0], ast.Constant):
          add(node, str(node.args[0].value))
  return found


def violations(module: str, source: str) -> list[str]:
  """What `source`, as specjax.`module`, imports against the map."""
  unit = unit_of(module) if module else ""
  if unit is None:
    return [f"specjax.{module} is not in the module map"]
  wrong = []
  for line, name in imported(ast.parse(source)):
    where = f"specjax.{module}:{line}"
    if name.startswith("."):
      wrong.append(f"{where} imports relatively; imports are absolute")
      continue
    target = unit_of(name) if name else ""
    inside = target == unit or (target or "").startswith(f"{unit}.")
    if unit and inside:
      continue
    if target not in reachable(unit):
      wrong.append(f"{where} ({unit}) imports specjax.{name} ({target})")
  return wrong


def modules() -> dict[str, pathlib.Path]:
  names = {}
  for path in sorted(ROOT.rglob("*.py")):
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[-1] == "__init__":
      parts = parts[:-1]
    names[".".join(parts)] = path
  return names


def test_every_import_is_an_arrow_of_the_map():
  found = modules()
  assert found, f"no modules under {ROOT}"
  wrong = []
  for module, path in found.items():
    wrong += violations(module, path.read_text())
  assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
  "module, source",
  [
    ("verifiers.rejection", "from specjax import models"),
    ("verifiers.rejection", "from specjax.models import decoder"),
    ("verifiers.rejection", "import specjax.proposers.ngram"),
    ("proposers.base", "from specjax.proposers import ngram"),
    ("proposers.base", "from specjax.models import decoder"),
    ("engine.loop", "from specjax.proposers import ngram"),
    ("text", "from specjax import cache"),
    ("jobs.run", "from specjax import api"),
    ("models.decoder", "def f():\n  from specjax import sampling"),
    ("metrics", "import importlib\nimportlib.import_module('specjax.engine')"),
    ("engine.loop", "from specjax.cli import generate"),
    ("lab.account", "from specjax.cli import generate"),
    ("cache", "from . import types"),
    ("cache", "import specjax"),
    ("odd", "import os"),
    ("", "from specjax import engine"),
  ],
)
def test_a_wrong_arrow_is_found(module, source):
  assert violations(module, source)


@pytest.mark.parametrize(
  "module, source",
  [
    ("verifiers.rejection", "from specjax.proposers import base"),
    ("verifiers.rejection", "from specjax.verifiers import base"),
    ("engine.loop", "from specjax import sampling, step, text, types"),
    ("jobs.run", "from specjax.engine import request\nimport json"),
    ("text", "from specjax import types"),
    ("proposers.ngram", "from specjax.proposers.base import Proposal"),
    ("api", "from specjax.engine import loop"),
    ("cli.generate", "def main():\n  from specjax import api"),
    ("", "def f():\n  from specjax import api"),
  ],
)
def test_an_arrow_of_the_map_passes(module, source):
  assert violations(module, source) == []


def test_the_map_has_no_cycle_below_api():
  for unit in LOWER:
    for lower in reachable(unit) - {unit}:
      assert unit not in reachable(lower), f"{unit} ⇄ {lower}"


def loaded_after(statement: str) -> set[str]:
  """Names of the top-level modules loaded after a statement, run afresh."""
  program = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
  done = subprocess.run(
    [sys.executable, "-c", program],
    capture_output=True,
    text=True,
    check=True,
    cwd=ROOT.parent,
  )
  return {name.partition(".")[0] for name in done.stdout.split()}


def test_generate_starts_without_torch_or_transformers_or_jax():
  loaded = loaded_after("import specjax.cli.generate")
  assert not loaded & {"torch", "transformers", "jax", "flax"}


def test_the_path_from_generate_down_needs_no_torch_or_transformers():
  loaded = loaded_after(
    "import specjax.cli.generate\nimport specjax.api, specjax.jobs.run"
  )
  assert "jax" in loaded
  # Orbax is for those who save with it.
  assert not loaded & {"torch", "transformers", "orbax", "tensorstore"}
