"""Rows of an output and their lines; names of what lies beside them."""

import json
from collections.abc import Mapping
from typing import Any

# What is added to an output's name for the file that says how it was made.
MANIFEST = ".job.json"


def encode(row: Mapping[str, Any], *, ascii: bool = False) -> bytes:
  """The line of a row: JSON and a line break, in UTF-8.

  Args:
    row: the row.
    ascii: whether to escape all other characters, for a stream of another
      encoding. It is the same JSON.
  """
  return (json.dumps(row, ensure_ascii=ascii) + "\n").encode()


def decode(line: bytes) -> dict[str, Any]:
  """The row of a line.

  Raises:
    ValueError: it is not a row that this package has written.
  """
  try:
    row = json.loads(line)
  except (ValueError, RecursionError):
    raise ValueError("not JSON") from None
  if not isinstance(row, dict):
    raise ValueError("not a JSON object")
  wanted = {"id": str, "finish_reason": str}
  if row.get("finish_reason") == "error":
    wanted["line"] = int
  if "sample" in row:
    wanted["sample"] = int
  for key, kind in wanted.items():
    if type(row.get(key)) is not kind:
      raise ValueError(f"no {key}")
  return row
