"""from_hugging_face: what it takes, and what it refuses by name.

The three configs are the published ones, key for key as far as they bear on
the model; transformers 4 wrote them, so rotary settings lie in `rope_theta`
and `rope_scaling`. Version 5 writes `rope_parameters` instead.
"""

import json
import math
import pathlib

import pytest

from specjax.models import config as config_lib
from specjax.models import decoder

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"

LLAMA2_7B = {
  "architectures": ["LlamaForCausalLM"],
  "bos_token_id": 1,
  "eos_token_id": 2,
  "hidden_act": "silu",
  "hidden_size": 4096,
  "initializer_range": 0.02,
  "intermediate_size": 11008,
  "max_position_embeddings": 4096,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 32,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": None,
  "tie_word_embeddings": False,
  "torch_dtype": "float16",
  "transformers_version": "4.31.0.dev0",
  "use_cache": True,
  "vocab_size": 32000,
}
LLAMA31_8B = {
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": False,
  "attention_dropout": 0.0,
  "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009],
  "hidden_act": "silu",
  "hidden_size": 4096,
  "initializer_range": 0.02,
  "intermediate_size": 14336,
  "max_position_embeddings": 131072,
  "mlp_bias": False,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 8,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
  },
  "rope_theta": 500000.0,
  "tie_word_embeddings": False,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.42.3",
  "use_cache": True,
  "vocab_size": 128256,
}
SMOLLM2_135M = {
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": False,
  "attention_dropout": 0.0,
  "bos_token_id": 1,
  "eos_token_id": 2,
  "hidden_act": "silu",
  "hidden_size": 576,
  "initializer_range": 0.041666666666666664,
  "intermediate_size": 1536,
  "is_llama_config": True,
  "max_position_embeddings": 8192,
  "mlp_bias": False,
  "model_type": "llama",
  "num_attention_heads": 9,
  "num_hidden_layers": 30,
  "num_key_value_heads": 3,
  "pad_token_id": 2,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_interleaved": False,
  "rope_scaling": None,
  "rope_theta": 100000,
  "tie_word_embeddings": True,
  "torch_dtype": "bfloat16",
  "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
  "transformers_version": "4.42.3",
  "use_cache": True,
  "vocab_size": 49152,
}

from_hugging_face = config_lib.from_hugging_face


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize(
  "published, count",
  [
    (LLAMA2_7B, 6_738_415_616),
    (LLAMA31_8B, 8_030_261_248),
    (SMOLLM2_135M, 134_515_008),
  ],
  ids=["llama2_7b", "llama31_8b", "smollm2_135m"],
)
def test_published_models_have_their_published_parameter_count(
  published, count, scan_layers
):
  model = decoder.build(from_hugging_face(published), scan_layers=scan_layers)
  assert sum(math.prod(shape.shape) for shape in model.shapes) == count


def test_both_spellings_of_the_rotary_settings_mean_the_same():
  scaling = LLAMA31_8B["rope_scaling"]
  newer = {
    k: v
    for k, v in LLAMA31_8B.items()
    if k not in ("rope_theta", "rope_scaling")
  }
  newer["rope_parameters"] = {**scaling, "rope_theta": 500000.0}
  older = {**LLAMA31_8B, "rope_scaling": {**scaling, "type": "llama3"}}
  del older["rope_scaling"]["rope_type"]
  expected = from_hugging_face(LLAMA31_8B)
  assert from_hugging_face(newer) == expected
  assert from_hugging_face(older) == expected


def test_rope_type_default_is_no_scaling():
  plain = {**LLAMA2_7B, "rope_scaling": {"rope_type": "default"}}
  assert from_hugging_face(plain) == from_hugging_face(LLAMA2_7B)


@pytest.mark.parametrize(
  "name",
  [
    "llama_untied",
    "llama_untied_draft",
    "llama_tied",
    "llama_rope3",
    "llama_head_dim",
    "llama_bias",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
  ],
)
def test_configs_written_by_transformers_5_are_read(name):
  raw = json.loads((GOLDENS / name / "config.json").read_text())
  model = decoder.build(from_hugging_face(raw))
  shapes = dict(zip(model.paths, (s.shape for s in model.shapes), strict=True))
  heads = raw["num_attention_heads"]
  head_dim = raw.get("head_dim", raw["hidden_size"] // heads)
  assert shapes["layers.0.attention.q.weight"] == (
    heads,
    head_dim,
    raw["hidden_size"],
  )
  assert ("head.weight" in shapes) == (not raw["tie_word_embeddings"])


def test_an_absent_key_means_what_it_means_to_hugging_face():
  defaults = {
    "hidden_act": "silu",
    "num_key_value_heads": LLAMA2_7B["num_attention_heads"],
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "head_dim": None,
    "max_position_embeddings": 2048,
  }
  spelled = {**LLAMA2_7B, **defaults}
  absent = {k: v for k, v in spelled.items() if k not in defaults}
  assert from_hugging_face(absent) == from_hugging_face(spelled)


@pytest.mark.parametrize(
  "key, value",
  [
    ("hidden_size", 8192),
    ("intermediate_size", 11000),
    ("num_attention_heads", 64),
    ("num_hidden_layers", 31),
    ("num_key_value_heads", 8),
    ("head_dim", 96),
    ("rms_norm_eps", 1e-6),
    ("rope_theta", 20000.0),
    ("tie_word_embeddings", True),
    ("vocab_size", 32001),
    ("max_position_embeddings", 2048),
    ("hidden_act", "gelu_pytorch_tanh"),
    ("attention_bias", True),
    ("mlp_bias", True),
    ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
  ],
)
def test_no_setting_is_hidden_by_a_default(key, value):
  changed = from_hugging_face({**LLAMA2_7B, key: value})
  assert changed != from_hugging_face(LLAMA2_7B)


@pytest.mark.parametrize(
  "key", ["factor", "low_freq_factor", "high_freq_factor"]
)
def test_no_rope_setting_is_hidden_by_a_default(key):
  scaling = {**LLAMA31_8B["rope_scaling"], key: 3.0}
  changed = from_hugging_face({**LLAMA31_8B, "rope_scaling": scaling})
  assert changed != from_hugging_face(LLAMA31_8B)


def test_an_unknown_architecture_is_refused_by_name():
  raw = {
    **LLAMA2_7B,
    "model_type": "mamba",
    "architectures": ["MambaForCausalLM"],
  }
  with pytest.raises(ValueError, match=r"(?i)mamba"):
    from_hugging_face(raw)


@pytest.mark.parametrize(
  "key, value",
  [
    ("hidden_act", "relu"),
    ("rope_interleaved", True),
    ("partial_rotary_factor", 0.5),
    ("sliding_window", 1024),
    ("quantization_config", {"quant_method": "gptq", "bits": 4}),
    ("attention_multiplier", 0.5),
    ("logits_scaling", 8.0),
    ("final_logit_softcapping", 30.0),
  ],
)
def test_a_setting_that_would_change_the_result_is_refused_by_name(key, value):
  with pytest.raises(ValueError, match=key):
    from_hugging_face({**LLAMA2_7B, key: value})


@pytest.mark.parametrize("rope_type", ["yarn", "dynamic", "longrope"])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_an_unknown_rope_type_is_refused_by_name(key, rope_type):
  raw = {**LLAMA2_7B}
  raw[key] = {"rope_type": rope_type, "factor": 4.0, "rope_theta": 10000.0}
  with pytest.raises(ValueError, match=rope_type):
    from_hugging_face(raw)


@pytest.mark.parametrize(
  "key", ["factor", "low_freq_factor", "high_freq_factor"]
)
def test_a_missing_rope_setting_is_named(key):
  scaling = {k: v for k, v in LLAMA31_8B["rope_scaling"].items() if k != key}
  with pytest.raises(ValueError, match=key):
    from_hugging_face({**LLAMA31_8B, "rope_scaling": scaling})


def test_an_absent_original_context_is_the_models_own():
  # As transformers 5 reads it; version 4 refused.
  key = "original_max_position_embeddings"
  scaling = {**LLAMA31_8B["rope_scaling"], key: 131072}
  spelled = {**LLAMA31_8B, "rope_scaling": dict(scaling)}
  del scaling[key]
  absent = {**LLAMA31_8B, "rope_scaling": scaling}
  assert from_hugging_face(absent) == from_hugging_face(spelled)


@pytest.mark.parametrize(
  "key",
  [
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
  ],
)
def test_a_missing_size_is_named(key):
  raw = {k: v for k, v in LLAMA2_7B.items() if k != key}
  with pytest.raises(ValueError, match=key):
    from_hugging_face(raw)


def test_key_value_heads_that_do_not_divide_the_heads_are_refused():
  with pytest.raises(ValueError, match="num_key_value_heads"):
    from_hugging_face({**LLAMA2_7B, "num_key_value_heads": 5})


def test_refuses_unknown_keys_inside_the_rope_settings():
  for key in ("rope_parameters", "rope_scaling"):
    config = dict(SMOLLM2_135M, **{key: {"partial_rotary_factor": 0.5}})
    with pytest.raises(ValueError, match="partial_rotary_factor"):
      from_hugging_face(config)


def test_refuses_a_tie_flag_that_is_not_a_boolean():
  config = dict(SMOLLM2_135M, tie_word_embeddings="false")
  with pytest.raises(ValueError, match="tie_word_embeddings"):
    from_hugging_face(config)
