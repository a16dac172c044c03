"""Lists that flags of specjax-lab are: numbers with commas between."""

from collections.abc import Sequence

from specjax.cli import command, table
from specjax.proposers import kinds

_MOST = 2**20


def numbers(
  name: str,
  text: str | None,
  default: int,
  least: int = 1,
  most: int = _MOST,
) -> tuple[int, ...]:
  """A list of whole numbers.

  Args:
    name: the flag's.
    text: its value, or None.
    default: what None stands for.
    least, most: of each number.

  Raises:
    UsageError: it is none, or one is there twice.
  """

  def one(part: str) -> int:
    if not part.isdecimal() or not least <= int(part) <= most:
      raise ValueError(
        f"--{name}={text}: {part!r} is no whole number from {least} to {most}"
      )
    return int(part)

  if text is not None and not text.strip():
    raise command.UsageError(f"--{name} is empty; give numbers, as 1,8")
  return table.listed(name, str(default) if text is None else text, one)


def siblings(
  text: str | None,
  default: int,
  proposers: Sequence[str],
  lookahead: Sequence[int],
) -> tuple[int, ...]:
  """The list of how many second guesses there are beside the drafts.

  Args:
    text: of the flag, or None.
    default: what None stands for, where anybody makes them.
    proposers, lookahead: the lists of who drafts, and how much.

  Raises:
    UsageError: it is none, or nobody makes any.
  """
  ranks = any(kinds.KINDS[name].ranks for name in proposers)
  makes = ranks and any(lookahead)
  if text is None and not makes:
    return (0,)
  found = numbers("siblings", text, default, least=0, most=kinds.MOST_SIBLINGS)
  if any(found) and not makes:
    why = (
      f"--proposers={','.join(proposers)}, which have no second guesses"
      if not ranks
      else "lookahead 0, which drafts nothing"
    )
    raise command.UsageError(
      f"--siblings={text} does nothing with {why}; leave it out"
    )
  return found


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
