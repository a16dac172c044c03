"""Decoding a stream of token ids, and stopping it at a text."""

from collections.abc import Iterable, Sequence

from specjax.text import tokenizer as tokenizer_lib

_REPLACEMENT = "\ufffd"


class Detokenizer:
  """Turns a stream of token ids into text that never has to be taken back.

  The texts of all pushes and of the flush, joined, equal `decode` of all the
  ids. A character whose bytes have not all arrived is held back, and so is a
  run of byte-fallback tokens until it ends: one more byte may change it
  whole. A decoder that rewrites what it said earlier is held back entirely.
  """

  def __init__(
    self, tokenizer: tokenizer_lib.Tokenizer, skip_special: bool = True
  ):
    """Starts an empty stream.

    Args:
      tokenizer: decodes.
      skip_special: whether control tokens are left out of the text.
    """
    self._tokenizer = tokenizer
    self._skip = tokenizer.special_ids if skip_special else frozenset()
    # Tokens whose text is out, kept so that the next one is not decoded as
    # the first of a text, and after them the tokens still in doubt.
    self._context: list[int] = []
    self._pending: list[int] = []
    self._sent = 0  # characters of _text(context + pending) that are out

  def push(self, ids: Iterable[int]) -> str:
    """Takes new token ids; returns the text that became final."""
    known = self._tokenizer.has_token
    self._pending.extend(i for i in ids if i not in self._skip and known(i))
    if not self._tokenizer.streamable:
      return ""
    whole = len(self._pending)
    while whole and self._pending[whole - 1] in self._tokenizer.byte_ids:
      whole -= 1
    text = self._text(self._context + self._pending[:whole])
    # An unfinished character at the end decodes to one replacement
    # character; any before it can no longer change.
    final = len(text) - text.endswith(_REPLACEMENT)
    out = text[self._sent : final]
    self._sent = max(self._sent, final)
    if final == len(text) and whole == len(self._pending):
      self._advance()
    return out

  def flush(self) -> str:
    """Ends the stream; returns the text still held back."""
    text = self._text(self._context + self._pending)
    out = text[self._sent :]
    self._context, self._pending, self._sent = [], [], 0
    return out

  def _advance(self) -> None:
    """Makes the pending tokens the context of those to come."""
    context = self._text(self._pending)
    # Decoders strip leading blanks: a context without text would leave the
    # next token in the place of the first.
    if context:
      self._context, self._pending = self._pending, []
      self._sent = len(context)

  def _text(self, ids: Sequence[int]) -> str:
    return self._tokenizer.decode(ids, skip_special=False)


class StopStrings:
  """Finds stop strings in a stream of text, also across its pieces.

  The hit is the occurrence that is complete first, and of those that end at
  the same place the longest. So the result does not depend on how the text
  was cut into pieces.
  """

  def __init__(self, stops: Sequence[str]):
    """Starts an empty stream.

    Args:
      stops: texts to stop before; may be empty.

    Raises:
      ValueError: `stops` is a bare string or has an empty or non-text entry.
    """
    if isinstance(stops, str):
      raise ValueError(f"stop={stops!r} must be a list of strings: [{stops!r}]")
    for stop in stops:
      if not isinstance(stop, str) or not stop:
        raise ValueError(
          f"stop={list(stops)!r} has the entry {stop!r}; give non-empty strings"
        )
    self._stops = tuple(stops)
    self._longest = max(map(len, self._stops), default=0)
    self._held = ""
    self._hit = False

  def push(self, text: str) -> tuple[str, bool]:
    """Takes the next piece of text.

    Returns:
      The text that is safe to show, and whether a stop string was met. On a
      hit the safe text ends right before the stop string, and whatever
      comes later is dropped.
    """
    if self._hit:
      return "", True
    text = self._held + text
    ends = {s: text.find(s) + len(s) for s in self._stops if s in text}
    if ends:
      end = min(ends.values())
      start = end - max(len(s) for s in ends if ends[s] == end)
      self._held, self._hit = "", True
      return text[:start], True
    keep = len(text) - self._doubtful(text)
    self._held = text[keep:]
    return text[:keep], False

  def flush(self) -> str:
    """Ends the stream; returns the text held back as a possible beginning."""
    held, self._held = self._held, ""
    return held

  def _doubtful(self, text: str) -> int:
    """Length of the longest end of `text` that a stop string begins with."""
    for size in range(min(self._longest - 1, len(text)), 0, -1):
      tail = text[-size:]
      if any(stop.startswith(tail) for stop in self._stops):
        return size
    return 0
