"""Reading the JSON files of a model folder."""

import json
import os
import pathlib


def read_json(path: os.PathLike | str, *, missing_ok: bool = False) -> dict:
  """Reads a JSON object from a file, with errors that name the file.

  A byte-order mark is accepted, as editors on Windows write one.

  Args:
    path: the file.
    missing_ok: whether an absent file reads as an empty object.

  Raises:
    FileNotFoundError: the file is absent and `missing_ok` is false.
    ValueError: the file is not UTF-8, not JSON, or not a JSON object.
  """
  path = pathlib.Path(path)
  if missing_ok and not path.exists():
    return {}
  try:
    value = json.loads(path.read_text(encoding="utf-8-sig"))
  except FileNotFoundError:
    raise FileNotFoundError(f"{path}: no such file") from None
  except UnicodeDecodeError as error:
    raise ValueError(f"{path}: not UTF-8 text ({error})") from None
  except RecursionError:
    raise ValueError(f"{path}: the JSON is nested too deep") from None
  except ValueError as error:  # no JSON, or a number of over 4300 digits
    reason = str(error).partition(";")[0]
    raise ValueError(f"{path}: not valid JSON ({reason})") from None
  if not isinstance(value, dict):
    raise ValueError(
      f"{path}: expected a JSON object {{…}}, found {type(value).__name__}"
    )
  return value
