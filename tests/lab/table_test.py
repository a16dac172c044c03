"""Rows as text and files, without a compiler."""

import csv
import dataclasses
import importlib.metadata
import json

import pytest

from specjax.lab import files, lower, table
from specjax.lab.rows import Row

PLAIN = Row(
  config="one",
  topology="v4:2x2x4",
  chips=16,
  strategy="tensor",
  proposer="draft_model",
  batch=1,
  lookahead=0,
  context=2048,
  live=2048,
  fits=True,
  usable_bytes=33_000_000_000,
  held=dict.fromkeys(lower.PARTS, 1),
  argument_bytes=8_950_000_000,
  temp_bytes=4_000_000,
  donated_bytes=383_000_000,
  resting_bytes=0,
  state_bytes=383_000_000,
  cache_bytes=382_000_000,
  cache_leaves=4,
  cache_leaves_aliased=4,
  hbm_traffic_bytes=8_400_000_000,
  ideal_traffic_bytes=8_000_000_000,
  traffic_ms=7.0,
  flops=10**9,
  flops_ms=0.1,
  traffic=dict.fromkeys(lower.PARTS, 1_000_000_000),
  ideal=dict.fromkeys(lower.PARTS, 900_000_000),
  collectives={"all-reduce": (160, 13_000_000)},
  sampling={"all-reduce": (4, 1000)},
  cycles=1000,
  compile_s=12.0,
)
DRAFTS = dataclasses.replace(PLAIN, lookahead=4, traffic_ms=8.75)
FULL = dataclasses.replace(
  PLAIN, batch=64, fits=False, short_bytes=5_000_000_000, needed_bytes=1
)
REFUSED = dataclasses.replace(PLAIN, strategy="x", fits=False, refused="odd")


def test_the_table_has_a_line_a_row_with_what_it_is_not():
  text = table.table([PLAIN, DRAFTS, FULL, REFUSED])
  assert "1.05" in text  # of the ideal
  assert "160  13.00" in text and "4 of 4" in text
  assert "no, 5.00 GB short" in text
  assert "x: odd" in text and "draft_model" in text
  assert "measured latency" in " ".join(text.split())


def test_what_rests_beside_the_arguments_lies_in_memory_too():
  row = dataclasses.replace(PLAIN, resting_bytes=3_200_000_000)
  assert "  12.15  " in table.table([row])  # 8.95 of arguments
  assert " 8.95 | 12.15" in table.against([PLAIN], [row])


def test_speed_ups_stand_below_where_there_is_a_plain_row():
  assert "speed-up" not in table.table([DRAFTS])
  text = table.table([PLAIN, DRAFTS])
  tokens = sum(0.6**n for n in range(5))
  assert f"{tokens * 7.0 / 8.75:.2f}x" in text


def test_what_a_draft_costs_stands_beside_the_acceptances_asked_for():
  *_, head, line = [
    text.split()
    for text in table.table([PLAIN, DRAFTS], (0.75, 1)).splitlines()
    if text.split()[-1:] in (["1"], ["4.00x"])
  ]
  assert head == ["c", "0.75", "1"]
  # 8.75 ms for 7.0, of four drafts: 1 / 16.
  tokens = sum(0.75**n for n in range(5))
  assert line[-3:] == ["0.062", f"{tokens / 1.25:.2f}x", "4.00x"]


@pytest.mark.parametrize(
  "field, value",
  [("context", 4096), ("proposer", "ngram"), ("variant", "3")],
)
def test_a_plain_row_of_another_case_is_none(field, value):
  other = dataclasses.replace(PLAIN, **{field: value})
  assert table.beside_plain([other, DRAFTS]) == []
  assert table.beside_plain([PLAIN, DRAFTS]) == [(DRAFTS, PLAIN)]


def test_the_table_says_what_was_chosen_of_a_proposer():
  row = dataclasses.replace(PLAIN, proposer="eagle", variant="3, 8000 ids")
  assert "  eagle 3, 8000 ids  " in table.table([row])


def test_siblings_have_a_column_and_what_they_give_is_not_known():
  row = dataclasses.replace(DRAFTS, siblings=3, traffic_ms=9.1)
  head, units, *lines = table.table([PLAIN, DRAFTS, row]).splitlines()
  place = head.index("  M  ") + 2
  assert len(head) == len(lines[0])
  assert [line[place] for line in lines[:3]] == ["0", "0", "3"]
  text = "\n".join(lines)
  assert "siblings cost, and give nothing" in text
  assert "  C 4  " in text and "  C 4 M 3  " in text
  tokens = sum(0.6**n for n in range(5))
  assert f"{tokens * 7.0 / 9.1:.2f}x" in text
  assert "siblings" not in table.table([PLAIN, DRAFTS])
  _, head, line, *_ = table.against([row], [row]).splitlines()
  assert line[head.index("  M  ") + 2] == "3"


def test_two_configs_stand_side_by_side():
  other = dataclasses.replace(PLAIN, config="two", traffic_ms=9.0)
  text = table.against([PLAIN, FULL], [other, REFUSED])
  assert "one | two" in text
  assert "7.00 | 9.00" in text
  assert "no room | refused" in text


@pytest.fixture
def versions(monkeypatch):
  """Also where the compiler is not installed."""
  monkeypatch.setattr(importlib.metadata, "version", lambda name: "1")


def test_files_hold_the_rows(tmp_path, versions):
  rows = [PLAIN, FULL]
  files.write_json(tmp_path / "a.json", rows)
  read = json.loads((tmp_path / "a.json").read_text())
  assert read["rows"][0]["collectives"] == {"all-reduce": [160, 13_000_000]}
  assert read["rows"][1]["fits"] is False and read["caveats"]
  files.write_csv(tmp_path / "a.csv", rows)
  with open(tmp_path / "a.csv", newline="") as file:
    first, second = csv.DictReader(file)
  assert first["lookahead"] == first["siblings"] == "0"
  assert first["traffic.draft_cache"] == "1000000000"
  assert first["collectives.all-reduce.count"] == "160"
  assert second["short_bytes"] == "5000000000"


@pytest.mark.parametrize("rows", [[], [FULL], [PLAIN, DRAFTS, FULL, REFUSED]])
def test_a_picture_is_drawn_of_any_rows(tmp_path, rows):
  pytest.importorskip("matplotlib")
  from specjax.lab import plots

  path = tmp_path / "lab.png"
  plots.draw(rows, path)
  assert path.stat().st_size > 10_000
