"""docs/t5.md against Leviathan et al.'s own formula."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "t5.md"
_ROW = re.compile(
  r"^\| (T5-\w+) \| ([\w/-]+), T=[01] \| (\d) \| (0\.\d\d) \| ([\d.]+)x \|"
  r" ([\d.]+) \| ([\d.]+)x \| (-?[\d.]+) \|$",
  re.M,
)
ROWS = _ROW.findall(PAGE.read_text(encoding="utf-8"))


def test_every_row_of_the_papers_table_is_there():
  assert len(ROWS) == 12 == len(set(ROWS))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:3]))
def test_what_is_predicted_follows_from_acceptance_and_cost(row):
  _, _, *numbers = row
  lookahead, a, measured, c, predicted, wanted = map(float, numbers)
  tokens = sum(a**n for n in range(int(lookahead) + 1))
  # c is rounded.
  least, most = (
    tokens / (lookahead * (c + by) + 1) for by in (0.0006, -0.0006)
  )
  assert least - 0.006 <= predicted <= most + 0.006
  exact = (tokens / measured - 1) / lookahead
  assert wanted == pytest.approx(exact, abs=0.0006)
