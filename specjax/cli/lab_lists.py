"""Lists that flags of specjax-lab are: numbers with commas between."""

from specjax.cli import command, table

_MOST = 2**20


def numbers(
  name: str, text: str | None, default: int, least: int = 1
) -> tuple[int, ...]:
  """A list of whole numbers.

  Args:
    name: the flag's.
    text: its value, or None.
    default: what None stands for.
    least: of each number.

  Raises:
    UsageError: it is none, or one is there twice.
  """

  def one(part: str) -> int:
    if not part.isdecimal() or not least <= int(part) <= _MOST:
      raise ValueError(
        f"--{name}={text}: {part!r} is no whole number from {least} to {_MOST}"
      )
    return int(part)

  if text is not None and not text.strip():
    raise command.UsageError(f"--{name} is empty; give numbers, as 1,8")
  return table.listed(name, str(default) if text is None else text, one)


def shares(name: str, text: str) -> tuple[float, ...]:
  """A list of numbers from 0 to 1.

  Args:
    name: the flag's.
    text: its value.

  Raises:
    UsageError: it is none, or one is there twice.
  """

  def one(part: str) -> float:
    try:
      found = float(part)
    except ValueError:
      found = -1.0
    if not 0 <= found <= 1:
      raise ValueError(
        f"--{name}={text}: {part!r} is no number from 0 to 1; give some, as"
        " 0.6,0.8"
      )
    return found

  return table.listed(name, text, one)
