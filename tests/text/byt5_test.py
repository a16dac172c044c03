"""ByT5's tokenizer: the ids are those that transformers (5.24) gave."""

import pytest

from specjax import text
from tests.text import tokenizers_made

CONFIG = {"tokenizer_class": "ByT5Tokenizer", "eos_token": "</s>"}


def made(path, **changes):
  return text.Tokenizer.from_folder(
    tokenizers_made.folder(path, tokenizer_config__json={**CONFIG, **changes})
  )


def test_a_token_is_a_byte_and_a_text_ends(tmp_path):
  tokenizer = made(tmp_path)
  assert tokenizer.encode("Hé, x\n") == [75, 198, 172, 47, 35, 123, 13, 1]
  assert tokenizer.encode("") == [1]
  assert tokenizer.vocab_size == 384
  assert tokenizer.eos_ids == (1,)


def test_every_byte_comes_back(tmp_path):
  tokenizer = made(tmp_path)
  every = "".join(map(chr, range(1, 0x250))) + "日本 🙂"
  assert tokenizer.decode(tokenizer.encode(every)) == every
  assert tokenizer.decode([75, 198, 172, 3, 1, 0]) == "Hé\x00"
  assert tokenizer.streamable


def test_tokens_for_gaps_and_ends_are_read_as_such(tmp_path):
  tokenizer = made(tmp_path)
  ids = tokenizer.encode("a</s>b<extra_id_0>c<extra_id_124>")
  assert ids == [100, 1, 101, 259, 102, 383, 1]
  assert tokenizer.decode(ids) == "abc"


def test_the_number_of_gaps_may_be_another(tmp_path):
  assert made(tmp_path, extra_ids=2).vocab_size == 261
  with pytest.raises(ValueError, match="extra_ids is 'two'"):
    made(tmp_path, extra_ids="two")


def test_a_folder_that_names_no_tokenizer_is_still_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match="no tokenizer.json"):
    made(tmp_path, tokenizer_class="T5Tokenizer")
