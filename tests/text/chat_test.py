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
  "template",
  ["{{ raise_exception('no system role') }}", "{% if %}", "{{ x.y.z }}"],
)
def test_a_template_that_refuses_is_one_line(template):
  with pytest.raises(ValueError, match="chat template refused") as error:
    chat_tokenizer(template).encode_chat([{"role": "user", "content": "hi"}])
  assert "\n" not in str(error.value)


def test_a_template_reaches_nothing_outside():
  tokenizer = chat_tokenizer("{{ messages.__class__.__mro__ }}")
  with pytest.raises(ValueError, match="chat template refused"):
    tokenizer.render_chat([{"role": "user", "content": "hi"}])
