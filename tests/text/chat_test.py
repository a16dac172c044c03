import pytest
from tokenizers import processors

from specjax import text
from tests.text.tokenizers_made import BOS, byte_level, folder


def chat_tokenizer(template: str, backend=None, **special) -> text.Tokenizer:
  return text.Tokenizer(
    backend or byte_level(), special_tokens=special, chat_template=template
  )


# The template of SmolLM2, and what transformers 5.24 makes of it.
SMOLLM2 = (
  "{% for message in messages %}{% if loop.first and messages[0]['role'] != "
  "'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named "
  "SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' "
  "+ message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
  "{% endif %}"
)


def test_smollm2_renders_as_in_transformers():
  tokenizer = chat_tokenizer(SMOLLM2)
  assert tokenizer.render_chat([{"role": "user", "content": "Hi <b>&\n"}]) == (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained "
    "by Hugging Face<|im_end|>\n<|im_start|>user\nHi <b>&\n<|im_end|>\n"
    "<|im_start|>assistant\n"
  )
  messages = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "{{ x }}"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": ""},
  ]
  assert tokenizer.render_chat(messages) == (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{{ x }}"
    "<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\n"
    "<|im_end|>\n<|im_start|>assistant\n"
  )


@pytest.mark.parametrize(
  "template, expected",
  [
    # Blocks leave no line and no indentation behind.
    ("{% if true %}\n  {% set x = 1 %}\na{{ x }}\n{% endif %}\nb", "a1\nb"),
    # JSON is not escaped as HTML.
    ("{{ messages[0] | tojson }}", '{"role": "user", "content": "<é>"}'),
    ("{{ messages | length | tojson(indent=2) }}", "1"),
    ("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}", "user"),
    ("{% generation %}x{% endgeneration %}y", "xy"),
    ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
    ("{{ bos_token }}{{ strftime_now('%%') }}", "<s>%"),
  ],
)
def test_the_dialect_is_that_of_transformers(template, expected):
  tokenizer = chat_tokenizer(template, bos_token=BOS)
  messages = [{"role": "user", "content": "<é>"}]
  assert tokenizer.render_chat(messages) == expected


def test_a_chat_has_one_bos():
  backend = byte_level()
  backend.post_processor = processors.TemplateProcessing(
    single=[BOS, "$A"], pair=None, special_tokens=[(BOS, 259)]
  )
  tokenizer = chat_tokenizer(
    "{{ bos_token }}{{ messages[0].content }}", backend, bos_token=BOS
  )
  ids = tokenizer.encode_chat([{"role": "user", "content": "hello"}])
  assert ids.count(259) == 1 and ids[0] == 259


def test_a_template_beside_the_config_comes_first(tmp_path):
  path = folder(
    tmp_path,
    byte_level(),
    tokenizer_config__json={"chat_template": "config"},
    chat_template__jinja="file",
  )
  assert text.Tokenizer.from_folder(path).chat_template == "file"


def test_of_named_templates_the_default_counts(tmp_path):
  named = [
    {"name": "tool_use", "template": "t"},
    {"name": "default", "template": "d"},
  ]
  path = folder(
    tmp_path, byte_level(), tokenizer_config__json={"chat_template": named}
  )
  assert text.Tokenizer.from_folder(path).chat_template == "d"


def test_a_malformed_template_entry_is_an_error(tmp_path):
  folder(tmp_path, byte_level(), tokenizer_config__json={"chat_template": 3})
  with pytest.raises(ValueError, match="chat_template must be a text"):
    text.Tokenizer.from_folder(tmp_path)


def test_without_a_template_a_chat_is_refused():
  with pytest.raises(ValueError, match="no chat template"):
    text.Tokenizer(byte_level()).encode_chat(
      [{"role": "user", "content": "hi"}]
    )


@pytest.mark.parametrize(
  "messages",
  [
    [],
    "hi",
    {"role": "user", "content": "hi"},
    ["hi"],
    [{"role": "user"}],
    [{"content": "hi"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": ["hi"]}],
  ],
)
def test_malformed_messages_are_refused(messages):
  with pytest.raises(ValueError, match="messages"):
    chat_tokenizer(SMOLLM2).encode_chat(messages)


@pytest.mark.parametrize(
  "template, reason",
  [
    ("{{ raise_exception('no\n system role') }}", "no system role"),
    ("{{ raise_exception(3) }}", "3"),
    ("{{ raise_exception('') }}", "TemplateError"),
    ("{% if %}", "Expected an expression"),
    ("{{ x.y.z }}", "'x' is undefined"),
    ("{{ tools|length }}", "TypeError: .*NoneType"),
    ("{{ messages[0].content + 1 }}", "TypeError: .*str"),
    ("{{ 1/0 }}", "ZeroDivisionError: division by zero"),
    ("{{ strftime_now(3) }}", "TypeError: "),
    ("{{ strftime_now() }}", "TypeError: "),
    ("{% for i in range(10**9) %}{% endfor %}", "OverflowError: Range too big"),
    ("{{ 10**5000 }}", "ValueError: .*4300 digits"),
    ("{{ 2.0**5000 }}", "OverflowError: "),
    ("{{ 10**(10**10) }}", "OverflowError: the result of \\*\\* is too large"),
    ("{{ 2**(10**9) }}", "OverflowError: "),
    ("{% set x = 9**(9**9) %}", "OverflowError: "),
    ("{{ 'ab' * 10**9 }}", "OverflowError: the result of \\* is too large"),
    ("{{ 10**9 * [1] }}", "OverflowError: "),
    (
      "{% set n = namespace(x=10**5000) %}"
      "{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
      "OverflowError: ",
    ),
    ("{{ {}['a'].b }}", ".*undefined|.*no attribute"),
    ("{{ 1|no_such_filter }}", "No filter named"),
    ("{{ '%d' % 'a' }}", "TypeError: "),
    ("{{ range|tojson }}", "TypeError: .*JSON serializable"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError: "),
    ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "RecursionError: "),
    ("{{ '\ud800'|urlencode }}", "UnicodeEncodeError: "),
  ],
)
def test_a_template_that_fails_is_one_line_that_says_why(template, reason):
  tokenizer = chat_tokenizer(template)
  with pytest.raises(
    ValueError, match=f"^tokenizer: the chat template failed .*: {reason}"
  ) as error:
    tokenizer.encode_chat([{"role": "user", "content": "hi"}])
  assert "\n" not in str(error.value)


def test_half_a_surrogate_pair_out_of_a_template_is_refused():
  tokenizer = chat_tokenizer("{{ messages[0].content }}")
  with pytest.raises(ValueError, match="half a surrogate pair"):
    tokenizer.encode_chat([{"role": "user", "content": "hi\ud800"}])


def test_a_template_that_is_not_utf8_names_its_file(tmp_path):
  folder(tmp_path, byte_level())
  (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
  with pytest.raises(ValueError, match=r"chat_template\.jinja: not UTF-8"):
    text.Tokenizer.from_folder(tmp_path)


def test_odd_entries_among_named_templates_are_passed_over(tmp_path):
  named = [3, {"name": ["x"]}, {"name": "default", "template": "d"}]
  folder(
    tmp_path, byte_level(), tokenizer_config__json={"chat_template": named}
  )
  assert text.Tokenizer.from_folder(tmp_path).chat_template == "d"


def test_a_template_reaches_nothing_outside():
  tokenizer = chat_tokenizer("{{ messages.__class__.__mro__ }}")
  with pytest.raises(ValueError, match="chat template failed"):
    tokenizer.render_chat([{"role": "user", "content": "hi"}])


def test_a_template_may_multiply():
  template = "{{ 2 * 3 }} {{ '-' * 3 }} {{ 3 * 'ab' }} {{ 2**10 }} {{ 2**-1 }}"
  template += " {{ 1**10**9 }} {{ 0.5 * 3 }} {{ 2**0.5 > 1 }}"
  assert chat_tokenizer(template).render_chat(
    [{"role": "user", "content": "hi"}]
  ) == ("6 --- ababab 1024 0.5 1 1.5 True")
