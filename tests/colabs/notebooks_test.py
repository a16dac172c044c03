"""What every notebook in the repository keeps to."""

import pathlib

import nbformat
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "colabs"


@pytest.fixture(
  params=sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem
)
def notebook(request):
  return nbformat.read(request.param, as_version=4)


def test_there_are_some():
  assert {"quickstart", "sharding_lab"} <= {p.stem for p in FOLDER.glob("*")}


def test_it_is_kept_without_outputs(notebook):
  nbformat.validate(notebook)
  for cell in notebook.cells:
    if cell.cell_type == "code":
      assert not cell.outputs and cell.execution_count is None


def test_prose_stands_between_the_cells_and_at_the_end(notebook):
  kinds = [cell.cell_type for cell in notebook.cells]
  assert kinds[0] == kinds[-1] == "markdown"
  assert ("code", "code") not in zip(kinds, kinds[1:], strict=False)
