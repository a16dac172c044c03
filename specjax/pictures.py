"""Pictures are drawn by matplotlib, which not everybody has (extra `plot`)."""

import os
import pathlib


def is_possible() -> bool:
  """Whether matplotlib is installed."""
  try:
    import matplotlib  # noqa: F401
  except ImportError:
    return False
  return True


def check(path: str | os.PathLike) -> None:
  """Refuses a --plot that could not be drawn, before the work it would show.

  Raises:
    ImportError: matplotlib is missing.
    ValueError: the name's ending is no format of it.
  """
  if not is_possible():
    raise ImportError(
      f"--plot={path} needs matplotlib: pip install 'specjax[plot]', or leave"
      " it out"
    )
  from matplotlib import backend_bases

  known = backend_bases.FigureCanvasBase.get_supported_filetypes()
  if pathlib.Path(path).suffix.removeprefix(".") not in known:
    raise ValueError(
      f"--plot={path} ends in no format of a picture; give .png, .pdf or .svg"
    )
