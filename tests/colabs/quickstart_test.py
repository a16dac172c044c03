"""Runs the notebook from a clean kernel, as it lies in the repository."""

import copy
import pathlib
import runpy

import nbclient
import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOK = ROOT / "colabs" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def notebook():
  return nbformat.read(NOTEBOOK, as_version=4)


def test_it_runs_and_speculation_changes_no_token(notebook, monkeypatch):
  # The demo's model and compiled programs, so fetched at most once.
  runpy.run_path(str(ROOT / "demo/smollm2.py"))["fetch"]()
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "xla"))
  run = copy.deepcopy(notebook)
  nbclient.NotebookClient(
    run,
    timeout=600,
    kernel_name="python3",
    resources={"metadata": {"path": str(NOTEBOOK.parent)}},
  ).execute()
  printed = {}
  for cell in run.cells:
    if cell.cell_type == "code":
      # Nothing but text, and nothing of it on stderr.
      assert {o.get("name") for o in cell.outputs} <= {"stdout"}, cell.outputs
      printed[cell.id] = "".join(o.text for o in cell.outputs)
  assert "identical: True\n" in printed["compare"]
  assert "speculative" in printed["compare"]
  assert " kept\n" in printed["accepted"]
  assert printed["stream"].strip()
