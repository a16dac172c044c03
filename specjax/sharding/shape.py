"""A mesh's axes and their sizes, as text. Needs no jax."""

import re
from collections.abc import Mapping

_AXIS = re.compile(r"\s*([a-z_][a-z0-9_]*)\s*:\s*([0-9]{1,6})\s*", re.A)


def parse(text: str) -> dict[str, int]:
  """Axes of a mesh and their sizes, of a text such as "data:2,model:4".

  Raises:
    ValueError: names --mesh, what is wrong in it and the fix.
  """
  shape: dict[str, int] = {}
  for part in text.split(","):
    found = _AXIS.fullmatch(part)
    if found is None or int(found.group(2)) < 1:
      raise ValueError(
        f"--mesh={text}: {part.strip()!r} is no axis; give NAME:SIZE, as in "
        "data:2,model:4"
      )
    if found.group(1) in shape:
      raise ValueError(
        f"--mesh={text}: axis {found.group(1)!r} is there twice; keep one"
      )
    shape[found.group(1)] = int(found.group(2))
  return shape


def spell(shape: Mapping[str, int]) -> str:
  """A mesh's axes and sizes as --mesh has them."""
  return ",".join(f"{name}:{size}" for name, size in shape.items())
