"""A vocabulary of sub-words, as the product's own loading reads it."""

import json
import re

import pytest

from specjax.text import Tokenizer
from specjax.training import subwords

WORDS = "das Haus die Maus der Hase eine Reise keine Eile weit und fern".split()


def test_a_folder_is_made_that_a_model_can_have(tmp_path, capsys):
  rows = [
    {"prompt": f"{a} {b} {c}", "answer": f"{c} {a}"}
    for a in WORDS
    for b in WORDS
    for c in WORDS[:4]
  ]
  file = tmp_path / "a.jsonl"
  file.write_text("\n".join(map(json.dumps, rows)))
  flags = [f"--data={file}", f"--output={tmp_path}/t", "--size=60"]
  assert subwords.main(flags) == 0
  made = Tokenizer.from_folder(tmp_path / "t")
  assert made.eos_ids == (1,) and made.special_ids == {0, 1, 2}
  assert made.vocab_size <= 60 and made.streamable
  text = "keine Reise und das Haus"
  assert made.encode(text) == [*made.encode_more(text), 1]
  assert made.decode(made.encode(text)) == text
  assert subwords.main(flags) == 1
  assert "is there already" in capsys.readouterr().err
  file.write_text("{}\nno")
  assert subwords.main([*flags[:1], f"--output={tmp_path}/u"]) == 1
  assert "a.jsonl, line 2: it is no JSON from" in capsys.readouterr().err


@pytest.mark.parametrize(
  "content, size, words",
  [
    ("[1]", 60, "a.jsonl, line 1: it is no JSON object"),
    ('{"n": 3}\n{"text": " "}', 60, "no text in it"),
    ("", 60, "a.jsonl: no text in it"),
    ('{"text": "one two"}', -1, "--size=-1: give 4 tokens at least"),
    ('{"text": "one two"}', 5, "--size=5: .*; give more"),
  ],
)
def test_what_gives_no_vocabulary_is_named(
  tmp_path, content, size, words, capsys
):
  file = tmp_path / "a.jsonl"
  file.write_text(content)
  flags = [f"--data={file}", f"--output={tmp_path}/t", f"--size={size}"]
  assert subwords.main(flags) == 1
  assert re.search(words, capsys.readouterr().err)
  assert not (tmp_path / "t").exists()


def test_a_vocabulary_smaller_than_asked_for_is_told(tmp_path, capsys):
  file = tmp_path / "a.jsonl"
  file.write_text('{"text": "one two three"}')
  flags = [f"--data={file}", f"--output={tmp_path}/t", "--size=300"]
  assert subwords.main(flags) == 0
  assert "for the texts have no more" in capsys.readouterr().out
