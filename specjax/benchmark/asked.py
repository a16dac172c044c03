"""What a benchmark's run is asked for by: `ngram`, `eagle:FOLDER@4+3`.

Nothing here needs jax: a command line is checked against it.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Sequence

from specjax.proposers import kinds

PLAIN = "plain"
KINDS = (PLAIN, *(kind for kind in kinds.KINDS if kind != "none"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
  """A run as it was asked for.

  Attributes:
    kind: of KINDS.
    what: the folder that drafts, or of layer_skip the layers; None if the run
      names none of its own.
    lookahead: C; None for plain decoding, or if the run names none of its own.
    siblings: M.
  """

  kind: str
  what: str | None = None
  lookahead: int | None = None
  siblings: int = 0

  @property
  def name(self) -> str:
    """What the run is called: "plain", "eagle smollm2-eagle C=4 M=3"."""
    parts = [self.kind]
    if self.what is not None:
      parts.append(self.what.rstrip("/").rpartition("/")[2] or self.what)
    if self.lookahead is not None:
      parts.append(f"C={self.lookahead}")
    if self.siblings:
      parts.append(f"M={self.siblings}")
    return " ".join(parts)

  @property
  def reads(self) -> bool:
    """Whether it drafts with what lies in a folder."""
    return self.kind != PLAIN and kinds.KINDS[self.kind].reads is not None


def parse(text: str) -> Asked:
  """Reads `KIND`, `KIND:WHAT`, `KIND@C` or `KIND:WHAT@C`; or `…@C+M`.

  C is the lookahead, M the siblings. WHAT is a folder; of layer_skip it is a
  number of layers, or which, with a plus between: `layer_skip:0+1+5`.

  Raises:
    ValueError: it is none of them; says what is wrong.
  """
  head, at, counts = text.rpartition("@")
  lookahead, siblings = None, 0
  found = re.fullmatch(r"(\d+)(?:\+(-?\d+))?", counts, re.ASCII)
  if at and found:
    lookahead, siblings = int(found[1]), int(found[2] or 0)
    if lookahead < 1:
      raise ValueError(f"{text!r} drafts nothing; give a number above 0")
    if found[2] and not 1 <= siblings <= kinds.MOST_SIBLINGS:
      raise ValueError(
        f"{text!r}: give 1 to {kinds.MOST_SIBLINGS} siblings after the plus, or"
        " leave it out"
      )
  else:
    head = text
  kind, colon, what = head.partition(":")
  if kind not in KINDS:
    close = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.7)
    meant = f" (did you mean {close[0]}?)" if close else ""
    raise ValueError(f"{kind!r} is no run{meant}; give {', '.join(KINDS)}")
  if kind == PLAIN and lookahead is not None:
    raise ValueError(f"{text!r}: plain drafts nothing; leave @{lookahead} out")
  if siblings and not kinds.KINDS[kind].ranks:
    raise ValueError(
      f"{text!r}: {kind} has no second guesses; leave +{siblings} out"
    )
  if colon and not Asked(kind=kind).reads and kind != "layer_skip":
    raise ValueError(f"{text!r}: {kind} needs no folder; leave :{what} out")
  if colon and not what:
    raise ValueError(f"{text!r} names nothing after the colon")
  if colon and kind == "layer_skip":
    what = what.replace("+", ",")
    try:
      kinds.layers(what)
    except ValueError:
      raise ValueError(
        f"{text!r}: give how many of the first layers, as layer_skip:8, or"
        " which, as layer_skip:0+1+5"
      ) from None
  return Asked(
    kind=kind,
    what=what if colon else None,
    lookahead=lookahead,
    siblings=siblings,
  )


def every(runs: Iterable[str], lookahead: Sequence[int]) -> list[Asked]:
  """All runs, plain decoding first.

  Args:
    runs: as `parse` takes them.
    lookahead: a run for each of these where one names none of its own.

  Raises:
    ValueError: two runs would have one name.
  """
  found = [Asked(kind=PLAIN)]
  for one in map(parse, runs):
    if one.kind == PLAIN:
      continue
    if one.lookahead is not None:
      found.append(one)
    else:
      found += [dataclasses.replace(one, lookahead=c) for c in lookahead]
  names = [one.name for one in found]
  for name in names:
    if names.count(name) > 1:
      raise ValueError(f"one is there twice, as {name!r}; keep one")
  return found


def folderless(asked: Iterable[Asked]) -> tuple[str, ...]:
  """Kinds of runs that name no folder, and so draft with --draft_model's.

  mtp is one of them only where no other is: it may find what it reads in the
  model's own folder.
  """
  left = dict.fromkeys(
    one.kind for one in asked if one.reads and one.what is None
  )
  needing = tuple(kind for kind in left if not kinds.KINDS[kind].optional)
  return needing or tuple(left)
