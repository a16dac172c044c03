import json
import sys
from unittest import mock

import pytest
import tokenizers
from tokenizers import processors

from specjax import text
from tests.text.tokenizers_made import BOS, END, EOS, byte_level, folder


def test_encode_and_decode_are_inverse(tmp_path):
  tokenizer = text.Tokenizer.from_folder(folder(tmp_path, byte_level()))
  for sample in ("", "hello", "naïve 日本 👩‍👩‍👧\r\n\t", " two  blanks "):
    assert tokenizer.decode(tokenizer.encode(sample)) == sample


def test_a_folder_says_its_name_size_and_special_ids(tmp_path):
  tokenizer = text.Tokenizer.from_folder(
    folder(
      tmp_path,
      byte_level(),
      tokenizer_config__json={"bos_token": BOS, "eos_token": {"content": EOS}},
      generation_config__json={"eos_token_id": [261, 260]},
      config__json={"eos_token_id": 7},
    )
  )
  assert tokenizer.name == str(tmp_path)
  assert tokenizer.vocab_size == 262
  assert tokenizer.bos_id == 259
  assert tokenizer.eos_ids == (7, 260, 261)


def test_the_tokenizer_alone_is_a_folder(tmp_path):
  tokenizer = text.Tokenizer.from_folder(folder(tmp_path, byte_level()))
  assert tokenizer.eos_ids == ()
  assert tokenizer.bos_id is None


def test_special_tokens_map_fills_what_the_config_leaves_out(tmp_path):
  tokenizer = text.Tokenizer.from_folder(
    folder(
      tmp_path,
      byte_level(),
      special_tokens_map__json={"bos_token": BOS, "eos_token": EOS},
      tokenizer_config__json={"eos_token": END},
    )
  )
  assert tokenizer.bos_id == 259
  assert tokenizer.eos_ids == (261,)


def test_encode_adds_what_the_post_processor_adds(tmp_path):
  backend = byte_level()
  backend.post_processor = processors.TemplateProcessing(
    single=[BOS, "$A"], pair=None, special_tokens=[(BOS, 259)]
  )
  tokenizer = text.Tokenizer.from_folder(folder(tmp_path, backend))
  plain = text.Tokenizer(byte_level()).encode("hello")
  assert tokenizer.encode("hello") == [259, *plain]


@pytest.mark.parametrize(
  "config, before, after",
  [
    ({"add_bos_token": True}, [259], []),
    ({"add_bos_token": True, "add_eos_token": True}, [259], [260]),
    ({"add_bos_token": False}, [], []),
    ({"add_eos_token": True}, [], [260]),
  ],
)
def test_add_bos_token_in_the_config_wins(tmp_path, config, before, after):
  backend = byte_level()
  backend.post_processor = processors.TemplateProcessing(
    single=[END, "$A"], pair=None, special_tokens=[(END, 261)]
  )
  config = {"bos_token": BOS, "eos_token": EOS, **config}
  tokenizer = text.Tokenizer.from_folder(
    folder(tmp_path, backend, tokenizer_config__json=config)
  )
  plain = text.Tokenizer(byte_level()).encode("hello")
  assert tokenizer.encode("hello") == [*before, *plain, *after]


def test_truncation_and_padding_of_the_file_are_off(tmp_path):
  backend = byte_level()
  backend.enable_truncation(2)
  backend.enable_padding(length=50)
  tokenizer = text.Tokenizer.from_folder(folder(tmp_path, backend))
  assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"
  assert len(tokenizer.encode("xyz")) == 3


def test_decode_leaves_control_tokens_out_unless_asked(tmp_path):
  tokenizer = text.Tokenizer(byte_level())
  ids = [259, *tokenizer.encode("he"), 260]
  assert tokenizer.decode(ids) == "he"
  assert tokenizer.decode(ids, skip_special=False) == f"{BOS}he{EOS}"


def test_ids_that_only_pad_the_vocabulary_decode_to_nothing():
  tokenizer = text.Tokenizer(byte_level())
  assert tokenizer.decode([*tokenizer.encode("he"), 300, 5000]) == "he"


def test_a_token_that_only_the_config_calls_special_is_special(tmp_path):
  backend = byte_level()
  backend.add_tokens(["<turn>"])
  tokenizer = text.Tokenizer.from_folder(
    folder(tmp_path, backend, tokenizer_config__json={"sep_token": "<turn>"})
  )
  assert tokenizer.decode(tokenizer.encode("he<turn>")) == "he"


# Bad input


def test_older_vocabulary_files_go_through_transformers(tmp_path, monkeypatch):
  # A stand-in: the tests do without transformers, as the usual path does.
  auto = mock.Mock()
  auto.from_pretrained.return_value.backend_tokenizer = byte_level()
  monkeypatch.setitem(
    sys.modules, "transformers", mock.Mock(AutoTokenizer=auto)
  )
  (tmp_path / "vocab.json").touch()
  tokenizer = text.Tokenizer.from_folder(tmp_path)
  assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
  auto.from_pretrained.side_effect = OSError("cannot\nread")
  with pytest.raises(ValueError, match="vocabulary files: cannot$"):
    text.Tokenizer.from_folder(tmp_path)


def test_older_vocabulary_files_without_transformers_say_so(
  tmp_path, monkeypatch
):
  monkeypatch.setitem(sys.modules, "transformers", None)
  (tmp_path / "tokenizer.model").touch()
  with pytest.raises(ImportError, match=r"specjax\[transformers\]"):
    text.Tokenizer.from_folder(tmp_path)


def test_a_missing_folder_is_named(tmp_path):
  with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
    text.Tokenizer.from_folder(tmp_path / "nowhere")


def test_a_folder_without_a_tokenizer_says_so(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json in it"):
    text.Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}'])
def test_a_broken_tokenizer_names_its_file(tmp_path, content):
  folder(tmp_path, tokenizer__json=content)
  with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer"):
    text.Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]", "nul"])
def test_a_broken_config_names_its_file(tmp_path, content):
  folder(tmp_path, byte_level(), generation_config__json=content)
  with pytest.raises(ValueError, match=r"generation_config\.json: "):
    text.Tokenizer.from_folder(tmp_path)


def test_an_unknown_special_token_is_named(tmp_path):
  folder(tmp_path, byte_level(), tokenizer_config__json={"eos_token": "<no>"})
  with pytest.raises(ValueError, match="'<no>' is not in the vocabulary"):
    text.Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
  "value", ["2", [1, None], -1, [0, -1], True, 1.5, {}, float("nan")]
)
def test_a_malformed_eos_id_is_named(tmp_path, value):
  folder(tmp_path, byte_level(), config__json={"eos_token_id": value})
  with pytest.raises(ValueError, match=r"config\.json: eos_token_id="):
    text.Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("file", ["config", "generation_config"])
@pytest.mark.parametrize("value", [262, 2**32, 2**40, 10**400])
def test_an_end_outside_the_vocabulary_is_named(tmp_path, file, value):
  folder(
    tmp_path,
    byte_level(),
    **{f"{file}__json": {"eos_token_id": [260, value]}},
  )
  with pytest.raises(ValueError) as error:
    text.Tokenizer.from_folder(tmp_path)
  assert str(error.value) == (
    f"{tmp_path / file}.json: eos_token_id={value} is no id of the vocabulary "
    "(0 to 261)"
  )


def test_an_end_may_be_in_the_padding_of_the_models_vocabulary(tmp_path):
  folder(
    tmp_path,
    byte_level(),
    generation_config__json={"eos_token_id": 299},
    config__json={"vocab_size": 300},
  )
  assert text.Tokenizer.from_folder(tmp_path).eos_ids == (299,)


def word_level() -> text.Tokenizer:
  backend = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({"a": 0}, unk_token="[UNK]")
  )
  return text.Tokenizer(backend, name="words")


def test_what_the_tokenizer_cannot_encode_is_one_line():
  tokenizer = word_level()
  assert tokenizer.encode("a") == [0]
  with pytest.raises(ValueError, match=r"^words: the tokenizer failed .*UNK"):
    tokenizer.encode("b")


@pytest.mark.parametrize("sample", ["\ud800", "a\udfff", "a\ud83d b"])
def test_half_a_surrogate_pair_is_refused(sample):
  with pytest.raises(ValueError, match="^tokenizer: .*half a surrogate pair"):
    text.Tokenizer(byte_level()).encode(sample)


@pytest.mark.parametrize("sample", [None, 3, b"a", ["a"], ("a", "b")])
def test_what_is_no_text_is_refused(sample):
  with pytest.raises(ValueError, match="^tokenizer: .*must be a text"):
    text.Tokenizer(byte_level()).encode(sample)


@pytest.mark.parametrize("ids", [[-1], [2**40], ["a"], [1.5]])
def test_ids_that_are_none_are_refused(ids):
  with pytest.raises(ValueError, match="^tokenizer: .*failed on the ids"):
    text.Tokenizer(byte_level()).decode(ids)


@pytest.mark.parametrize(
  "content, reason",
  [
    ('{"a": ' * 100000 + "1" + "}" * 100000, "nested too deep"),
    ('{"a": ' + "[" * 100000 + "]" * 100000 + "}", "nested too deep"),
    ('{"a": ' + "9" * 5000 + "}", "4300 digits"),
    ('{"a": -' + "9" * 5000 + "}", "4300 digits"),
  ],
)
def test_json_that_python_refuses_names_its_file(tmp_path, content, reason):
  path = tmp_path / "config.json"
  path.write_text(content)
  with pytest.raises(ValueError, match=rf"config\.json: .*{reason}") as error:
    text.read_json(path)
  assert "\n" not in str(error.value)


def test_a_byte_order_mark_is_accepted(tmp_path):
  folder(
    tmp_path,
    tokenizer__json="\ufeff" + byte_level().to_str(),
    tokenizer_config__json="\ufeff" + json.dumps({"eos_token": EOS}),
  )
  assert text.Tokenizer.from_folder(tmp_path).eos_ids == (260,)


def test_json_that_is_not_utf8_names_its_file(tmp_path):
  path = tmp_path / "config.json"
  path.write_bytes(b'{"a": "\xff"}')
  with pytest.raises(ValueError, match=r"config\.json: not UTF-8"):
    text.read_json(path)


@pytest.mark.parametrize("role", ["bos_token", "eos_token", "sep_token"])
def test_a_special_token_that_is_no_text_is_named(tmp_path, role):
  folder(tmp_path, byte_level(), tokenizer_config__json={role: "\ud800"})
  with pytest.raises(ValueError, match=f": {role}: .*half a surrogate pair"):
    text.Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("token", ["a:b", "$A", "$B", "$", "<s>:1", "x:9"])
def test_a_bos_may_look_like_the_language_of_templates(tmp_path, token):
  backend = byte_level()
  backend.add_special_tokens([token])
  config = {"bos_token": token, "add_bos_token": True}
  folder(tmp_path, backend, tokenizer_config__json=config)
  tokenizer = text.Tokenizer.from_folder(tmp_path)
  assert tokenizer.encode("he") == [tokenizer.bos_id, 256]


@pytest.mark.parametrize(
  "piece",
  [
    {"SpecialToken": {"id": "<s>", "type_id": 0}},
    {"Sequence": {"id": "B", "type_id": 0}},
  ],
)
def test_a_panic_inside_the_tokenizer_is_an_error_like_others(piece):
  state = json.loads(byte_level().to_str())
  state["post_processor"] = {
    "type": "TemplateProcessing",
    "single": [piece],
    "pair": [],
    "special_tokens": {},
  }
  backend = tokenizers.Tokenizer.from_str(json.dumps(state))
  with pytest.raises(ValueError, match="^tokenizer: the tokenizer failed"):
    text.Tokenizer(backend).encode("he")


# Fingerprint


def test_the_fingerprint_ignores_names_and_templates(tmp_path):
  one = text.Tokenizer.from_folder(folder(tmp_path / "a", byte_level()))
  other = text.Tokenizer.from_folder(
    folder(
      tmp_path / "b",
      byte_level(),
      tokenizer_config__json={"eos_token": EOS, "chat_template": "x"},
    )
  )
  assert one.name != other.name
  assert one.fingerprint() == other.fingerprint()


def test_the_fingerprint_sees_every_token_and_merge():
  fingerprints = {text.Tokenizer(byte_level()).fingerprint()}
  longer = byte_level()
  longer.add_tokens(["<more>"])
  fingerprints.add(text.Tokenizer(longer).fingerprint())
  state = json.loads(byte_level().to_str())
  vocab = state["model"]["vocab"]
  vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
  swapped = tokenizers.Tokenizer.from_str(json.dumps(state))
  fingerprints.add(text.Tokenizer(swapped).fingerprint())
  state = json.loads(byte_level().to_str())
  state["model"]["merges"].reverse()
  reordered = tokenizers.Tokenizer.from_str(json.dumps(state))
  fingerprints.add(text.Tokenizer(reordered).fingerprint())
  assert len(fingerprints) == 4
