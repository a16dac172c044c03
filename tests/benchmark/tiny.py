"""A tiny Llama folder with a tokenizer, and a file of prompts."""

import contextlib
import functools
import json
from unittest import mock

import jax

from specjax.checkpoints import hf
from specjax.engine import programs
from specjax.models import config as config_lib
from specjax.models import decoder
from tests.text import tokenizers_made

VOCAB = 264  # the tokenizer has 262 ids
CONTEXT = 512
TEMPLATE = (
  "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
  "{% if add_generation_prompt %}assistant: {% endif %}"
)
PROMPTS = ("the cat, the cat, the cat", "a longer one: hello hello hello")


def folder(path, *, seed=0, layers=1, tied=True):
  """Random weights of the same tokenizer."""
  config = dict(
    architectures=["LlamaForCausalLM"],
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=layers,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=CONTEXT,
    tie_word_embeddings=tied,
  )
  model = decoder.build(config_lib.from_hugging_face(config))
  hf.save_params(path, model, model.init(seed), config=config)
  settings = {"eos_token": tokenizers_made.EOS, "chat_template": TEMPLATE}
  return tokenizers_made.folder(
    path, tokenizers_made.byte_level(), tokenizer_config__json=settings
  )


def prompts(path, texts=PROMPTS, **settings):
  """A prompt file; `settings` are in every row."""
  rows = [{"prompt": text, **settings} for text in texts]
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


_compile = functools.cache(programs.compile_programs)


@contextlib.contextmanager
def compiled_quickly():
  """Programs compile fast and run slowly; engines of one shape share them."""
  option = "jax_disable_most_optimizations"
  before = jax.config.read(option)
  jax.config.update(option, True)
  try:
    with mock.patch.object(programs, "compile_programs", _compile):
      yield
  finally:
    jax.config.update(option, before)
