"""The lab's rows as files: JSON with all that is known, CSV for a sheet."""

import csv
import dataclasses
import importlib.metadata
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from specjax.lab.rows import Row
from specjax.lab.table import CAVEATS


def write_json(path: str | os.PathLike, rows: Sequence[Row]) -> None:
  """An object with the rows, the caveats and the compiler's version."""
  known = {
    "caveats": CAVEATS,
    "versions": {
      name: importlib.metadata.version(name) for name in ("jax", "libtpu")
    },
    "rows": [row.as_json() for row in rows],
  }
  text = json.dumps(known, indent=1, ensure_ascii=False)
  pathlib.Path(path).write_text(text + "\n", encoding="utf-8")


def write_csv(path: str | os.PathLike, rows: Sequence[Row]) -> None:
  """A line a row; what a row has by part or by kind gets columns of its own."""
  flat = [_flat(row) for row in rows]
  names = [field.name for field in dataclasses.fields(Row)]
  order = lambda name: (names.index(name.split(".")[0]), name)
  columns = sorted({name for row in flat for name in row}, key=order)
  with open(path, "w", newline="", encoding="utf-8") as file:
    writer = csv.DictWriter(file, columns)
    writer.writeheader()
    writer.writerows(flat)


def _flat(row: Row) -> dict[str, Any]:
  found = {}
  for name, value in row.as_json().items():
    if not isinstance(value, dict):
      found[name] = value
      continue
    for key, inner in value.items():
      if isinstance(inner, tuple):
        found[f"{name}.{key}.count"], found[f"{name}.{key}.bytes"] = inner
      else:
        found[f"{name}.{key}"] = inner
  return found
