"""Each family's own settings: what is read, what it means, what is refused.

The sizes are those of the goldens; defaults are transformers' own.
"""

import json
import pathlib

import pytest

from specjax.models import config as config_lib

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
from_hugging_face = config_lib.from_hugging_face


def raw(name):
  return json.loads((GOLDENS / name / "config.json").read_text())


def read(name, **changes):
  """The config of a golden with keys changed, or with ... left out."""
  config = {**raw(name), **changes}
  return from_hugging_face({k: v for k, v in config.items() if v is not ...})


@pytest.mark.parametrize(
  "name, defaults",
  [
    (
      "mistral",
      dict(
        sliding_window=4096,
        max_position_embeddings=131072,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        hidden_act="silu",
      ),
    ),
    (
      "qwen2",
      dict(
        use_sliding_window=False,
        sliding_window=4096,
        max_window_layers=28,
        layer_types=None,
        max_position_embeddings=32768,
        tie_word_embeddings=False,
      ),
    ),
    (
      "qwen3",
      dict(
        head_dim=128,
        attention_bias=False,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
      ),
    ),
    (
      "gemma2",
      dict(
        head_dim=256,
        num_attention_heads=8,
        num_key_value_heads=4,
        hidden_activation="gelu_pytorch_tanh",
        max_position_embeddings=8192,
        query_pre_attn_scalar=256,
        sliding_window=4096,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        tie_word_embeddings=True,
        layer_types=None,
      ),
    ),
    (
      "gemma3",
      dict(
        vocab_size=262208,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=131072,
        query_pre_attn_scalar=256,
        sliding_window=4096,
        final_logit_softcapping=None,
        layer_types=None,
        sliding_window_pattern=6,
        rope_parameters={
          "full_attention": {"rope_theta": 1e6},
          "sliding_attention": {"rope_theta": 1e4},
        },
      ),
    ),
    (
      "gpt2",
      dict(
        activation_function="gelu_new",
        layer_norm_epsilon=1e-5,
        n_positions=1024,
        n_inner=4 * 24,
        scale_attn_weights=True,
        tie_word_embeddings=True,
      ),
    ),
  ],
)
def test_an_absent_key_means_what_it_means_to_hugging_face(name, defaults):
  absent = dict.fromkeys(defaults, ...)
  assert read(name, **absent) == read(name, **defaults)
  for key, value in defaults.items():
    assert read(name, **{**defaults, key: ...}) == read(name, **defaults), key
    if isinstance(value, (int, float)) and key != "num_key_value_heads":
      assert read(name, **absent) == read(name, **{**absent, key: value})


@pytest.mark.parametrize(
  "name, key, value",
  [
    ("mistral", "sliding_window", 8),
    ("mistral", "sliding_window", None),
    ("qwen2", "max_window_layers", 2),
    ("qwen2", "use_sliding_window", False),
    ("qwen3", "attention_bias", True),
    ("gemma2", "query_pre_attn_scalar", 21),
    ("gemma2", "attn_logit_softcapping", None),
    ("gemma2", "final_logit_softcapping", 4.0),
    ("gemma2", "attention_bias", True),
    ("gemma3", "final_logit_softcapping", 4.0),
    ("gemma3", "sliding_window", 6),
    ("gpt2", "n_inner", None),
    ("gpt2", "n_positions", 65),
    ("gpt2", "scale_attn_weights", False),
    ("gpt2", "tie_word_embeddings", False),
  ],
)
def test_no_setting_is_hidden_by_a_default(name, key, value):
  changes = {key: value}
  if name == "qwen2":
    changes["layer_types"] = None
  assert read(name, **changes) != read(name)


@pytest.mark.parametrize(
  "name, key, value",
  [
    ("mistral", "layer_types", ["sliding_attention"] * 2),
    ("mistral", "attention_bias", True),
    ("mistral", "sliding_window", -1),
    ("mistral", "num_hidden_layers", 2**60),
    ("qwen2", "use_mrope", True),
    ("qwen2", "max_window_layers", "all"),
    ("qwen3", "final_logit_softcapping", 30.0),
    ("gemma2", "use_bidirectional_attention", True),
    ("gemma2", "hidden_activation", "gelu"),
    ("gemma2", "sliding_window_pattern", 3),
    ("gemma2", "attn_logit_softcapping", 0),
    ("gemma3", "attn_logit_softcapping", 50.0),
    ("gemma3", "use_bidirectional_attention", True),
    ("gemma3_vision", "tie_word_embeddings", False),
    ("gemma3_vision", "use_bidirectional_attention", True),
    ("gemma3_vision", "audio_config", {}),
    ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ("gpt2", "add_cross_attention", True),
    ("gpt2", "rope_theta", 10000.0),
  ],
)
def test_a_setting_that_would_change_the_result_is_refused_by_name(
  name, key, value
):
  with pytest.raises(ValueError, match=key):
    read(name, **{key: value})


@pytest.mark.parametrize(
  "types, problem",
  [
    (["full_attention"], "1 layers"),
    (["full_attention", "chunked_attention", "full_attention"], "chunked"),
    ("sliding_attention", "layer_types is 'sliding_attention'"),
    ([["full_attention"]] * 3, "layer_types"),
  ],
)
@pytest.mark.parametrize("name", ["qwen2", "gemma2"])
def test_kinds_of_layers_must_be_known_and_as_many_as_layers(
  name, types, problem
):
  with pytest.raises(ValueError, match=problem):
    read(name, layer_types=types)


def test_sliding_layers_need_a_window():
  with pytest.raises(ValueError, match="sliding_window"):
    read("gemma2", sliding_window=None)
  with pytest.raises(ValueError, match="sliding_window"):
    read("qwen2", use_sliding_window=False)  # its layer_types still slide


def test_kinds_of_layers_equal_the_older_settings():
  assert read("gemma2", layer_types=None) == read("gemma2")
  assert read("qwen2", layer_types=None) == read("qwen2")
  by_pattern = read("gemma3", layer_types=None, sliding_window_pattern=3)
  assert by_pattern == read("gemma3")


def test_gemma_3_spells_its_rotations_in_two_ways():
  older = read(
    "gemma3",
    rope_parameters=...,
    rope_theta=900.0,
    rope_local_base_freq=50.0,
    rope_scaling={"type": "linear", "factor": 4.0},
  )
  assert older == read("gemma3")
  assert (older.rope_theta, older.local_rope_theta) == (900.0, 50.0)


@pytest.mark.parametrize(
  "parameters, problem",
  [
    ({"rope_theta": 1e4}, "'rope_theta'"),
    ({"sliding_attention": {"rope_type": "linear", "factor": 2}}, "sliding"),
    ({"full_attention": {"rope_type": "yarn", "factor": 2}}, "yarn"),
    ({"full_attention": {"rope_type": "linear"}}, "factor"),
    ({"full_attention": 3}, "full_attention"),
  ],
)
def test_gemma_3s_rotations_are_refused_by_name(parameters, problem):
  with pytest.raises(ValueError, match=problem):
    read("gemma3", rope_parameters=parameters)


def test_a_text_part_beside_an_image_part_is_the_text_model():
  whole, text = read("gemma3_vision"), read("gemma3")
  assert whole.architecture != text.architecture
  for field in ("windows", "rope_theta", "local_rope_theta", "attention_scale"):
    assert getattr(whole, field) == getattr(text, field)
  inner = {**raw("gemma3_vision")["text_config"], "surprise": 1}
  with pytest.raises(ValueError, match="surprise"):
    read("gemma3_vision", text_config=inner)
  with pytest.raises(ValueError, match="text_config"):
    read("gemma3_vision", text_config=7)


def test_heads_that_are_null_are_one_for_each_query_head():
  assert read("mistral", num_key_value_heads=None).kv_heads == 4
  assert read("mistral", num_attention_heads=8).kv_heads == 2
