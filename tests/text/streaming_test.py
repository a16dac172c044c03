import hypothesis
import pytest
from hypothesis import strategies as st

from specjax import text
from tests.text.tokenizers_made import (
  byte_fallback,
  byte_level,
  metaspace,
  word_piece,
)

BACKENDS = {
  function.__name__: text.Tokenizer(function())
  for function in (byte_level, byte_fallback, metaspace, word_piece)
}


# Detokenizer


def cuts(draw, length: int) -> list[slice]:
  """Pieces, empty ones too, that together are a whole of some length."""
  borders = draw(st.lists(st.integers(0, length), max_size=length))
  borders = [0, *sorted(borders), length]
  return [slice(a, b) for a, b in zip(borders, borders[1:], strict=False)]


@st.composite
def token_stream(draw):
  name = draw(st.sampled_from(sorted(BACKENDS)))
  size = BACKENDS[name].vocab_size + 1  # one id has no token
  ids = draw(st.lists(st.integers(0, size), max_size=24))
  return name, ids, cuts(draw, len(ids)), draw(st.booleans())


# An id without a token does not end a run of byte tokens.
@hypothesis.example(("byte_fallback", [1, 263, 129], [slice(0, 3)], False))
@hypothesis.given(token_stream())
@hypothesis.settings(max_examples=400, deadline=None)
def test_pieces_of_any_size_join_to_decode_of_the_whole(case):
  name, ids, pieces, skip_special = case
  tokenizer = BACKENDS[name]
  stream = text.Detokenizer(tokenizer, skip_special=skip_special)
  pushed = [stream.push(ids[piece]) for piece in pieces]
  joined = "".join(pushed) + stream.flush()
  assert joined == tokenizer.decode(ids, skip_special=skip_special)


@hypothesis.given(st.text(max_size=12), st.data())
@hypothesis.settings(max_examples=200, deadline=None)
def test_no_half_character_is_ever_shown(sample, data):
  hypothesis.assume("\ufffd" not in sample)
  tokenizer = BACKENDS["byte_level"]
  ids = tokenizer.encode(sample)
  stream = text.Detokenizer(tokenizer, skip_special=False)
  shown = ""
  for piece in cuts(data.draw, len(ids)):
    shown += stream.push(ids[piece])
    assert sample.startswith(shown)
  assert shown == sample and stream.flush() == ""


def test_whole_characters_are_shown_at_once():
  tokenizer = BACKENDS["byte_level"]
  stream = text.Detokenizer(tokenizer)
  for character in "hé 日👩":
    *first, last = tokenizer.encode(character)
    assert stream.push(first) == ""
    assert stream.push([last]) == character


def test_bytes_that_never_become_a_character_appear_at_the_end():
  tokenizer = BACKENDS["byte_level"]
  ids = tokenizer.encode("日")[:2]
  stream = text.Detokenizer(tokenizer)
  assert stream.push(ids) == ""
  assert stream.flush() == "\ufffd"


def test_a_run_of_byte_tokens_is_held_until_it_ends():
  tokenizer = BACKENDS["byte_fallback"]
  stream = text.Detokenizer(tokenizer)
  a, b = 258, 259
  assert stream.push([a]) == "a"
  # A lone letter in bytes is a letter, until a broken byte follows it.
  assert stream.push([1 + ord("x")]) == ""
  assert stream.push([1 + 0xE2]) == ""
  assert stream.push([b]) == "\ufffd\ufffdb"


def test_a_decoder_that_looks_ahead_is_shown_at_the_end():
  tokenizer = BACKENDS["word_piece"]
  stream = text.Detokenizer(tokenizer)
  assert stream.push([1, 2, 3]) == ""
  assert stream.flush() == tokenizer.decode([1, 2, 3])


def test_a_flushed_detokenizer_starts_anew():
  tokenizer = BACKENDS["byte_fallback"]
  stream = text.Detokenizer(tokenizer)
  for _ in range(2):
    assert stream.push([260, 260]) + stream.flush() == "a a"


# StopStrings


def reference(sample: str, stops: list[str]) -> tuple[str, bool]:
  """Reads letter by letter: the first stop to be complete, the longest."""
  for end in range(len(sample) + 1):
    hits = [stop for stop in stops if sample[:end].endswith(stop)]
    if hits:
      return sample[: end - max(map(len, hits))], True
  return sample, False


@st.composite
def stop_case(draw):
  # Two letters, so that stops overlap, nest and begin alike.
  stops = draw(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
  sample = draw(st.text("abc", max_size=16))
  return sample, stops, cuts(draw, len(sample))


@hypothesis.given(stop_case())
@hypothesis.settings(max_examples=500, deadline=None)
def test_stops_do_not_depend_on_how_the_text_is_cut(case):
  sample, stops, pieces = case
  stream = text.StopStrings(stops)
  shown, hit = "", False
  for piece in pieces:
    safe, hit = stream.push(sample[piece])
    shown += safe
  shown += stream.flush()
  assert (shown, hit) == reference(sample, stops)


def test_a_stop_across_pieces_is_never_shown():
  stream = text.StopStrings(["\n\nQ:"])
  assert stream.push("A.\n") == ("A.", False)
  assert stream.push("\n") == ("", False)
  assert stream.push("Q: next") == ("", True)
  assert stream.push("more") == ("", True)
  assert stream.flush() == ""


def test_a_tail_that_was_no_stop_is_given_back():
  stream = text.StopStrings(["END"])
  assert stream.push("the EN") == ("the ", False)
  assert stream.push("try") == ("ENtry", False)
  assert stream.push("E") == ("", False)
  assert stream.flush() == "E"


def test_no_stops_hold_nothing_back():
  stream = text.StopStrings([])
  assert stream.push("abc") == ("abc", False)
  assert stream.flush() == ""


@pytest.mark.parametrize("stops", ["END", [""], ["a", None], [3]])
def test_malformed_stops_are_refused(stops):
  with pytest.raises(ValueError, match="stop="):
    text.StopStrings(stops)
