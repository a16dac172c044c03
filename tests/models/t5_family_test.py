"""What a T5's config.json says: defaults, meanings, and what is refused."""

import json
import pathlib

import pytest

from specjax.models import config as config_lib

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"


def read(name="t5", **changes):
  """The config of a golden with keys changed, or with ... left out."""
  raw = json.loads((GOLDENS / name / "config.json").read_text())
  config = {**raw, **changes}
  return config_lib.from_hugging_face(
    {k: v for k, v in config.items() if v is not ...}
  )


def bare(architecture):
  return config_lib.from_hugging_face({"architectures": [architecture]})


def test_an_absent_key_means_what_it_means_to_hugging_face():
  t5 = bare("T5ForConditionalGeneration")
  assert (t5.vocab_size, t5.d_model, t5.d_ff) == (32_128, 512, 2048)
  assert (t5.layers, t5.encoder_layers) == (6, 6)
  assert (t5.heads, t5.kv_heads, t5.head_dim) == (8, 8, 64)
  assert (t5.relative_buckets, t5.relative_distance) == (32, 128)
  assert (t5.activation, t5.gated, t5.tied) == ("relu", False, True)
  assert t5.norm_eps == 1e-6 and t5.start_id == 0
  mt5 = bare("MT5ForConditionalGeneration")
  assert (mt5.vocab_size, mt5.d_ff, mt5.heads) == (250_112, 1024, 6)
  assert (mt5.activation, mt5.gated, mt5.layers) == ("gelu_tanh", True, 8)


def test_scores_are_not_scaled_and_positions_are_distances():
  config = read()
  assert config.attention_scale == 1
  assert config.rope_theta is None and not config.has_position_table


def test_a_tied_head_is_scaled_and_an_untied_one_is_not():
  assert read().head_scale == 24**-0.5
  assert read(tie_word_embeddings=...).head_scale == 24**-0.5
  untied = read(tie_word_embeddings=False)
  assert (untied.tied, untied.head_scale) == (False, None)
  # transformers 5 writes down what it made of it, and never scales an mT5's.
  assert read(scale_decoder_outputs=False).head_scale is None
  assert read("mt5", tie_word_embeddings=True).head_scale is None


def test_encoder_and_decoder_have_numbers_of_layers_of_their_own():
  config = read("byt5")
  assert (config.encoder_layers, config.layers) == (3, 1)
  assert read("byt5", num_decoder_layers=...).layers == 3


def test_the_output_begins_with_the_token_that_the_file_names():
  assert read(decoder_start_token_id=5).start_id == 5
  assert read(decoder_start_token_id=..., pad_token_id=7).start_id == 7
  with pytest.raises(ValueError, match="decoder_start_token_id is 'a'"):
    read(decoder_start_token_id="a")


@pytest.mark.parametrize(
  "key, value, message",
  [
    ("feed_forward_proj", "gelu", "feed_forward_proj is 'gelu'; supported"),
    ("feed_forward_proj", 3, "feed_forward_proj is 3"),
    ("is_encoder_decoder", False, "is_encoder_decoder is False"),
    ("relative_attention_num_buckets", 6, "num_buckets is 6"),
    ("relative_attention_max_distance", 4, "max_distance 4"),
    ("num_layers", 0, "num_layers is 0"),
    ("num_layers", 20_000, "num_layers is 20000; more than 10000"),
    ("num_decoder_layers", 20_000, "num_decoder_layers is 20000"),
    ("hidden_size", 24, "unknown settings hidden_size"),
  ],
)
def test_what_cannot_be_followed_is_refused_by_name(key, value, message):
  with pytest.raises(ValueError, match=message):
    read(**{key: value})
