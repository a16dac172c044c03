"""Proposers that come with specjax, by name: trained for models anyone can get.

Each is a folder here, as a training run leaves it, and a card in its README.md.
"""

import pathlib

_ROOT = pathlib.Path(__file__).parent


def names() -> tuple[str, ...]:
  """All names there are, in order."""
  found = (path.parent.name for path in _ROOT.glob("*/config.json"))
  return tuple(sorted(found))


def find(name: str) -> pathlib.Path | None:
  """The folder of a name; None where there is none of that name."""
  return _ROOT / name if name in names() else None
