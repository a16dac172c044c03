import json
import re

import hypothesis
import pytest
from hypothesis import strategies as st

from specjax.jobs import prompts


def parse(text):
  data = text if isinstance(text, bytes) else text.encode()
  return prompts.parse(data, 7)


def test_a_prompt_with_everything():
  settings = {
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 1,
    "min_p": 0.1,
    "seed": -1,
    "max_new_tokens": 9,
    "lookahead": 0,
  }
  fields = {"prompt": "Hé", "id": "a", "stop": ["x", "y"], **settings}
  row = parse(json.dumps(fields))
  assert (row.line, row.id, row.prompt, row.messages) == (7, "a", "Hé", None)
  assert row.settings == settings | {"stop": ("x", "y")}


def test_messages_a_number_as_id_and_a_single_stop():
  messages = [{"role": "user", "content": "Hi"}]
  row = parse(json.dumps({"messages": messages, "id": 3, "stop": "\n"}))
  assert row.messages == tuple(messages)
  assert row.prompt is None
  assert row.id == "3"
  assert row.settings == {"stop": ("\n",)}


def test_the_id_is_the_line_number_if_not_given():
  assert parse('{"prompt": ""}').id == "7"


@pytest.mark.parametrize(
  "line, words",
  [
    ("{", "not JSON: Expecting property name .* column 2"),
    ('{"prompt": "a"} x', "not JSON: Extra data .* column 17"),
    (b'{"prompt": "\xff"}', "not UTF-8: byte 0xff at column 13"),
    ('["prompt"]', "the line is a list"),
    ('"prompt"', "the line is a string"),
    ("{}", "neither of prompt and messages"),
    ('{"prompt": "a", "messages": []}', "both of prompt and messages"),
    ('{"prompt": 1}', "prompt must be a string, not a whole number"),
    ('{"prompt": null}', "prompt must be a string, not null"),
    (
      '{"promt": "a"}',
      r"unknown field 'promt' \(did you mean prompt\?\); a row may have",
    ),
    (
      '{"prompt": "a", "max_tokens": 5}',
      r"unknown field 'max_tokens' \(did you mean max_new_tokens\?\); a row",
    ),
    ('{"prompt": "a", "zzz": 5}', "unknown field 'zzz'; a row may have prompt"),
    ('{"prompt": "a", "prompt": "b"}', "'prompt' is given twice"),
    ('{"prompt": "\\ud800"}', "prompt holds half of a surrogate pair"),
    ('{"prompt": "a", "id": 1.5}', "id must be a string or a whole number"),
    ('{"prompt": "a", "id": true}', "id must be .*, not true or false"),
    ('{"prompt": "a", "id": "\\ud800"}', "id holds half of a surrogate"),
    ('{"prompt": "a", "top_k": 1.0}', "top_k must be a whole number"),
    ('{"prompt": "a", "top_k": true}', "top_k must be .* not true or false"),
    ('{"prompt": "a", "top_p": "1"}', "top_p must be a number, not a string"),
    ('{"prompt": "a", "temperature": NaN}', "NaN is not a JSON value"),
    ('{"prompt": "a", "temperature": 1e999}', "temperature is inf"),
    ('{"prompt": "a", "temperature": 1' + 5000 * "0" + "}", "5001 digits"),
    ('{"prompt": "a", "stop": [1]}', "stop must be a string"),
    ('{"prompt": "a", "seed": null}', "seed must be a whole number, not null"),
    ('{"messages": []}', "messages must be a list"),
    ('{"messages": "hi"}', "messages must be a list"),
    ('{"messages": ["hi"]}', r"messages\[0\] must be an object"),
    (
      '{"messages": [{"role": "user", "content": "a", "name": "b"}]}',
      r"messages\[0\] must be an object of role and content alone",
    ),
    (
      '{"messages": [{"role": "user", "content": null}]}',
      r"messages\[0\].content must be a string, not null",
    ),
    (100000 * "[", "nested too deeply"),
  ],
)
def test_a_bad_line_says_why(line, words):
  row = parse(line)
  assert isinstance(row, prompts.BadRow)
  assert (row.line, row.id) == (7, "7")
  assert re.search(words, row.error), row.error
  assert "\n" not in row.error


def test_a_bad_row_keeps_its_id():
  assert parse('{"id": "mine", "prompt": 1}').id == "mine"


@hypothesis.given(st.binary(max_size=200))
def test_any_line_is_a_row_or_a_bad_row(data):
  row = prompts.parse(data, 1)
  assert isinstance(row, (prompts.Row, prompts.BadRow))
  json.dumps(row.id).encode()


def test_no_row_is_refused_for_an_id_that_nobody_wrote(tmp_path):
  path = tmp_path / "in.jsonl"
  path.write_text(
    'nonsense\n{"prompt": "a", "id": "1"}\n{"prompt": "b", "id": 4}\n'
    '{"prompt": "c"}\n{"prompt": "d", "id": 4}\n'
  )
  rows = list(prompts.read(path))
  assert [row.id for row in rows] == ["1", "1", "4", "line 4", "4"]
  bad = [row.line for row in rows if isinstance(row, prompts.BadRow)]
  assert bad == [1, 5]


def test_read_counts_lines_skips_empty_ones_and_goes_on(tmp_path):
  path = tmp_path / "in.jsonl"
  path.write_bytes(
    b"\xef\xbb\xbf"
    b'{"prompt": "a"}\r\n'
    b"\n"
    b"nonsense\n"
    b'{"prompt": "\xff"}\n'
    b'{"prompt": "b", "id": 1}\n'
    b'{"prompt": "c", "id": "x"}\n'
    b'{"prompt": "d", "id": "x"}\n'
    b'{"prompt": "e"}'
  )
  rows = list(prompts.read(path))
  assert [row.line for row in rows] == [1, 3, 4, 5, 6, 7, 8]
  bad = {row.line: row for row in rows if isinstance(row, prompts.BadRow)}
  assert sorted(bad) == [3, 4, 5, 7]
  assert "id '1' is taken by line 1" in bad[5].error
  assert "id 'x' is taken by line 6" in bad[7].error
