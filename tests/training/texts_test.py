"""Text files and JSON lines become token ids, or an error that names them."""

import json

import pytest

from specjax.checkpoints import random_folder
from specjax.text import Tokenizer
from specjax.training import texts

V = 264


@pytest.fixture(scope="module")
def tokenizer():
  backend = random_folder.byte_tokenizer()
  return Tokenizer(
    backend, eos_ids=[V - 1], chat_template="{{ messages[0]['content'] }}>"
  )


def read(path, tokenizer):
  made = texts.corpus(path, tokenizer, vocab_size=V)
  pairs = zip(made.starts[:-1], made.starts[1:], strict=True)
  return [
    (tokenizer.decode(made.tokens[a:b], skip_special=False), int(answer))
    for (a, b), answer in zip(pairs, made.answer, strict=True)
  ]


END = random_folder.EOS


def test_a_folders_files_are_a_text_each(tmp_path, tokenizer):
  (tmp_path / "b.txt").write_text("two")
  (tmp_path / "in").mkdir()
  (tmp_path / "in" / "c.md").write_text("three")
  (tmp_path / "a.txt").write_text("one")
  (tmp_path / "x.png").write_bytes(b"\xff")
  found = read(tmp_path, tokenizer)
  assert found == [(f"{t}{END}", 0) for t in ("one", "two", "three")]


def test_lines_of_json_are_a_text_each(tmp_path, tokenizer):
  rows = [
    {"text": "one"},
    {"prompt": "ask", "answer": "say"},
    {
      "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"},
      ]
    },
  ]
  file = tmp_path / "a.jsonl"
  file.write_text("\n\n".join(map(json.dumps, rows)))
  assert read(file, tokenizer) == [
    (f"one{END}", 0),
    (f"asksay{END}", 3),
    (f"hi>yes{END}", 3),
  ]


@pytest.mark.parametrize(
  "name, content, words",
  [
    (
      "a.jsonl",
      b'{"text": 3}',
      r"a\.jsonl, line 1: it has the keys \['text'\]",
    ),
    ("a.jsonl", b'{"text": "x"}\nno', r"a\.jsonl, line 2: it is no JSON from"),
    ("a.jsonl", b'{"text": "\\ud800"}', "line 1: it has half a surrogate pair"),
    ("a.jsonl", b"[1]", "line 1: it has no object"),
    ("a.txt", b"ab\xff", r"a\.txt: byte 2 is no UTF-8"),
    ("a.txt", b" \n", "no text in it; give files that hold some"),
  ],
)
def test_what_is_no_text_is_named(tmp_path, tokenizer, name, content, words):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(ValueError, match=words):
    read(tmp_path / name, tokenizer)


def test_files_that_are_not_there_are_named(tmp_path, tokenizer):
  with pytest.raises(FileNotFoundError, match="absent: no such file or folder"):
    read(tmp_path / "absent", tokenizer)
  with pytest.raises(
    FileNotFoundError, match="it needs files that end in .txt"
  ):
    read(tmp_path, tokenizer)


def test_ids_beyond_the_vocabulary_are_refused(tmp_path, tokenizer):
  (tmp_path / "a.txt").write_text("abc")
  with pytest.raises(ValueError, match="the target's vocabulary is 10"):
    texts.corpus(tmp_path, tokenizer, vocab_size=10)


def pairs_of(path, tokenizer, most=8):
  return texts.corpus(path, tokenizer, vocab_size=V, pairs=most)


def test_an_encoder_decoder_learns_pairs(tmp_path, tokenizer):
  file = tmp_path / "a.jsonl"
  file.write_text('{"prompt": "ask", "answer": "say", "id": 3}\n\n')
  made = pairs_of(file, tokenizer)
  assert made.is_pairs and made.answer.tolist() == [3]
  assert tokenizer.decode(made.tokens, skip_special=False) == f"asksay{END}"


@pytest.mark.parametrize(
  "line, words",
  [
    ('{"text": "a"}', "prompt is missing; an encoder-decoder learns pairs"),
    ('{"prompt": "a"}', "answer is missing; .* give a text that is not empty"),
    ('{"prompt": "a", "answer": 3}', "answer is 3; "),
    ('{"prompt": " ", "answer": "b"}', "prompt is ' '; "),
    ('{"prompt": "aaaaabbbb", "answer": "b"}', "prompt has 9 tokens, and --l"),
    (
      '{"prompt": "a", "answer": "bcdfgklp"}',
      "answer has 9 .* longer --length",
    ),
    ("[]", "it is no object; give one with prompt and answer"),
    ("{", "it is no JSON from character 2 on"),
  ],
)
def test_a_line_that_is_no_pair_is_named(tmp_path, tokenizer, line, words):
  file = tmp_path / "a.jsonl"
  file.write_text('{"prompt": "ask", "answer": "say"}\n' + line)
  with pytest.raises(ValueError, match=f"a.jsonl, line 2: {words}") as found:
    pairs_of(file, tokenizer)
  assert "\n" not in str(found.value)


def test_only_a_line_feed_ends_a_line(tmp_path, tokenizer):
  """JSON may hold Unicode's other ends of lines as they are."""
  file = tmp_path / "a.jsonl"
  row = {"prompt": "a\u2028b", "answer": "c\x85d\u2029"}
  file.write_text(json.dumps(row, ensure_ascii=False) + "\n\n[]\n")
  with pytest.raises(ValueError, match="a.jsonl, line 3: it is no object"):
    pairs_of(file, tokenizer)
  assert [row for _, row in texts.json_lines(file)] == [row, []]


def test_a_text_file_is_no_pair(tmp_path, tokenizer):
  file = tmp_path / "a.txt"
  file.write_text("some text")
  with pytest.raises(ValueError, match="a.txt: it is a text, and an encoder-"):
    pairs_of(file, tokenizer)
