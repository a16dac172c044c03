"""Runs the laboratory's notebook from a clean kernel, for a small pair."""

import copy
import pathlib

import nbclient
import nbformat
import pytest

from specjax.lab import topology

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOK = ROOT / "colabs" / "sharding_lab.ipynb"

# What the test picks; a reader's own choice is a pair of the README's size.
CHOICE = {
  'TARGET = "llama3_8b"': 'TARGET = "chinchilla_tiny"',
  'DRAFT = "llama3_1b"': 'DRAFT = "chinchilla_tiny_draft"',
  'TOPOLOGY = "v5e:2x4"': 'TOPOLOGY = "v5e:2x2"',
  "CONTEXT = 2048": "CONTEXT = 256",
}


@pytest.fixture(scope="module")
def notebook():
  return nbformat.read(NOTEBOOK, as_version=4)


def test_what_the_reader_picks_is_there_to_be_picked(notebook):
  (choose,) = (cell for cell in notebook.cells if cell.id == "choose")
  for line in CHOICE:
    assert choose.source.count(f"{line}  # @param") == 1


@pytest.mark.long
@pytest.mark.skipif(
  not topology.is_installed(),
  reason="the TPU compiler is not installed: pip install 'specjax[lab]'",
)
def test_it_runs_and_accounts_for_a_small_pair(notebook):
  run = copy.deepcopy(notebook)
  for cell in run.cells:
    if cell.id == "choose":
      for theirs, ours in CHOICE.items():
        cell.source = cell.source.replace(theirs, ours)
  nbclient.NotebookClient(
    run,
    timeout=600,
    kernel_name="python3",
    resources={"metadata": {"path": str(NOTEBOOK.parent)}},
  ).execute()
  cells = {cell.id: cell for cell in run.cells if cell.cell_type == "code"}
  for cell in cells.values():
    # Text and a picture, and nothing on stderr.
    assert not any(one.get("name") == "stderr" for one in cell.outputs)
  printed = {
    name: "".join(one.get("text", "") for one in cell.outputs)
    for name, cell in cells.items()
  }
  assert "4 chips" in printed["choose"]
  assert printed["account"].count("4 of 4") == 4
  assert "target_weights" in printed["parts"]
  assert printed["acceptance"].count("0.9:") == 2
  (picture,) = cells["plots"].outputs
  assert "image/png" in picture["data"]
