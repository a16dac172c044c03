"""What each family's config.json may say and what it means, as data.

One `Family` an architecture. Key names, defaults and meanings are those of
transformers (5.24), which wrote the files.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from specjax.models import config_keys

# Keys that do not change the result of a forward pass, or only say how the
# checkpoint was made; everything else must be known or be refused by name.
HARMLESS = frozenset(
  """
  _name_or_path architectures model_type torch_dtype dtype transformers_version
  use_cache bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id
  decoder_start_token_id initializer_range pretraining_tp
  transformers.js_config attention_dropout hidden_dropout return_dict
  output_hidden_states output_attentions tokenizer_class finetuning_task
  resid_pdrop embd_pdrop id2label label2id problem_type chunk_size_feed_forward
  gradient_checkpointing task_specific_params auto_map _attn_implementation
  _attn_implementation_autoset cache_implementation torchscript use_bfloat16
  tf_legacy_loss prefix _commit_hash
  max_length min_length do_sample early_stopping num_beams num_beam_groups
  diversity_penalty temperature top_k top_p typical_p repetition_penalty
  length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
  bad_words_ids num_return_sequences output_scores return_dict_in_generate
  forced_bos_token_id forced_eos_token_id remove_invalid_values
  exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
""".split()
)

# Key -> the only values under which our decoder computes what theirs does.
REQUIRED = {
  "rope_interleaved": (False, None),
  "is_decoder": (True, False, None),
  "is_encoder_decoder": (False, None),
  "add_cross_attention": (False, None),
  "cross_attention_hidden_size": (None,),
  "partial_rotary_factor": (1.0, None),
  "quantization_config": (None,),
  "pruned_heads": ({}, None),
  "tie_encoder_decoder": (False, None),
}

# What a file calls an activation -> what a DecoderConfig calls it.
ACTIVATIONS = {
  "silu": "silu",
  "swish": "silu",
  "gelu_pytorch_tanh": "gelu_tanh",
  "gelu_new": "gelu_tanh",
}

Windows = Callable[[Mapping[str, Any], int], tuple[int, ...]]


def _no_window(config, layers):
  del config, layers
  return ()


def _window_everywhere(config, layers):
  window = config_keys.optional(config, "sliding_window", int, 4096)
  return (window,) * layers if window else ()


def _window_by_type(config, window, types, layers):
  """Windows of layers whose `layer_types`, or else `types`, say sliding."""
  types = config.get("layer_types") or types
  known = {"full_attention": 0, "sliding_attention": window}
  if not isinstance(types, (list, tuple)) or not all(
    isinstance(kind, str) and kind in known for kind in types
  ):
    raise ValueError(
      f"config.json: layer_types is {types!r}; supported: {', '.join(known)}"
    )
  if len(types) != layers:
    raise ValueError(
      f"config.json: layer_types names {len(types)} layers, but there are "
      f"{layers}"
    )
  if "sliding_attention" in types and window is None:
    raise ValueError(
      "config.json: layer_types has sliding_attention, but no sliding_window "
      "is in use; give sliding_window"
    )
  windows = tuple(known[kind] for kind in types)
  return windows if any(windows) else ()


def _window_in_upper_layers(config, layers):
  """Qwen: the layers from `max_window_layers` on, once it is switched on."""
  window = None
  if config_keys.flag(config, "use_sliding_window", False):
    window = config_keys.optional(config, "sliding_window", int, 4096)
  types = ["full_attention"] * layers
  if window is not None:
    first = config.get("max_window_layers", 28)
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
      raise ValueError(
        f"config.json: max_window_layers is {first!r}; give a whole number"
      )
    types[first:] = ["sliding_attention"] * len(types[first:])
  return _window_by_type(config, window, types, layers)


def _window_in_pattern(period):
  """Gemma: all layers but every `period`-th."""

  def windows(config, layers):
    window = config_keys.optional(config, "sliding_window", int, 4096)
    every = config_keys.number(config, "sliding_window_pattern", int, period)
    types = [
      "sliding_attention" if (layer + 1) % every else "full_attention"
      for layer in range(layers)
    ]
    return _window_by_type(config, window, types, layers)

  return windows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """How one architecture's config.json reads.

  Attributes:
    keys: field of DecoderConfig -> key in the file.
    defaults: key -> what transformers takes where it is absent. A size
      without a default must be there.
    features: fields of DecoderConfig that the architecture itself fixes.
    known: further keys that are read.
    harmless: further keys that change nothing here.
    required: further keys -> the only values allowed.
    windows: the layers' windows, of a config and the number of layers.
    rope_theta: base of the rotation where the file has none; None for
      learned positions.
    local_rope_theta: the same for layers with a window, if it is another.
    mlp_ratio: F over D where the file does not give F.
    text_config: whether the settings lie under that key, beside others' of
      parts that are not used.
  """

  keys: Mapping[str, str]
  defaults: Mapping[str, Any]
  features: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  known: frozenset[str] = frozenset()
  harmless: frozenset[str] = frozenset()
  required: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
  windows: Windows = _no_window
  rope_theta: float | None = 10000.0
  local_rope_theta: float | None = None
  mlp_ratio: int | None = None
  text_config: bool = False


_KEYS = {
  "vocab_size": "vocab_size",
  "d_model": "hidden_size",
  "layers": "num_hidden_layers",
  "heads": "num_attention_heads",
  "kv_heads": "num_key_value_heads",
  "head_dim": "head_dim",
  "d_ff": "intermediate_size",
  "activation": "hidden_act",
  "norm_eps": "rms_norm_eps",
  "tied": "tie_word_embeddings",
  "max_position": "max_position_embeddings",
}
_DEFAULTS = {
  "hidden_act": "silu",
  "rms_norm_eps": 1e-6,
  "tie_word_embeddings": False,
}
_NO_SOFTCAPS = {
  "attn_logit_softcapping": (None,),
  "final_logit_softcapping": (None,),
}
_QWEN = {
  "windows": _window_in_upper_layers,
  "known": frozenset(
    "use_sliding_window sliding_window max_window_layers layer_types".split()
  ),
  "required": {**_NO_SOFTCAPS, "use_mrope": (False, None)},
}
_GEMMA_KEYS = {
  **_KEYS,
  "activation": "hidden_activation",
  "logit_softcap": "final_logit_softcapping",
  "attention_softcap": "attn_logit_softcapping",
}
_GEMMA_DEFAULTS = {
  "hidden_activation": "gelu_pytorch_tanh",
  "rms_norm_eps": 1e-6,
  "tie_word_embeddings": True,
  "head_dim": 256,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
}
_GEMMA_FEATURES = {
  "norm": "rms_plus_one",
  "post_norms": True,
}
_GEMMA_KNOWN = frozenset(
  "query_pre_attn_scalar sliding_window layer_types attention_bias".split()
)
# transformers reads `hidden_activation` alone.
_GEMMA_HARMLESS = frozenset({"hidden_act", "sliding_window_size"})
_GEMMA3 = Family(
  keys=_GEMMA_KEYS,
  defaults={
    **_GEMMA_DEFAULTS,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
  },
  features={**_GEMMA_FEATURES, "qk_norm": True},
  known=_GEMMA_KNOWN | {"sliding_window_pattern", "rope_local_base_freq"},
  harmless=_GEMMA_HARMLESS | {"_sliding_window_pattern"},
  # transformers has the attention's key too and never reads it.
  required={
    "attn_logit_softcapping": (None,),
    "use_bidirectional_attention": (False, None),
  },
  windows=_window_in_pattern(6),
  rope_theta=1_000_000.0,
  local_rope_theta=10_000.0,
)

FAMILIES: Mapping[str, Family] = {
  "LlamaForCausalLM": Family(
    keys=_KEYS,
    defaults={**_DEFAULTS, "max_position_embeddings": 2048},
    known=frozenset({"attention_bias", "mlp_bias"}),
    harmless=frozenset({"is_llama_config"}),
    required={**_NO_SOFTCAPS, "sliding_window": (None,)},
  ),
  "MistralForCausalLM": Family(
    keys=_KEYS,
    defaults={
      **_DEFAULTS,
      "num_key_value_heads": 8,
      "max_position_embeddings": 131_072,
    },
    known=frozenset({"sliding_window"}),
    required={**_NO_SOFTCAPS, "attention_bias": (False, None)},
    windows=_window_everywhere,
  ),
  "Qwen2ForCausalLM": Family(
    keys=_KEYS,
    defaults={
      **_DEFAULTS,
      "num_key_value_heads": 32,
      "max_position_embeddings": 32_768,
    },
    features={"qkv_bias": True},
    **_QWEN,
  ),
  # Qwen 2 with modules beside it that predict further on; see proposers.mtp.
  "MiMoForCausalLM": Family(
    keys=_KEYS,
    defaults={
      **_DEFAULTS,
      "num_key_value_heads": 32,
      "max_position_embeddings": 32_768,
    },
    features={"qkv_bias": True},
    harmless=frozenset({"num_nextn_predict_layers"}),
    **{
      **_QWEN,
      "required": {**_QWEN["required"], "attention_bias": (True, None)},
    },
  ),
  "Qwen3ForCausalLM": Family(
    keys=_KEYS,
    defaults={
      **_DEFAULTS,
      "num_key_value_heads": 32,
      "head_dim": 128,
      "max_position_embeddings": 32_768,
    },
    features={"qk_norm": True},
    **{**_QWEN, "known": _QWEN["known"] | {"attention_bias"}},
  ),
  "Gemma2ForCausalLM": Family(
    keys=_GEMMA_KEYS,
    defaults={
      **_GEMMA_DEFAULTS,
      "max_position_embeddings": 8192,
      "final_logit_softcapping": 30.0,
      "attn_logit_softcapping": 50.0,
    },
    features=_GEMMA_FEATURES,
    known=_GEMMA_KNOWN,
    harmless=_GEMMA_HARMLESS,
    required={"use_bidirectional_attention": (False, None)},
    windows=_window_in_pattern(2),
  ),
  "Gemma3ForCausalLM": _GEMMA3,
  # The text part alone; transformers caps no logits here.
  "Gemma3ForConditionalGeneration": dataclasses.replace(
    _GEMMA3,
    required={
      **_GEMMA3.required,
      **_NO_SOFTCAPS,
      "tie_word_embeddings": (True, None),
    },
    text_config=True,
  ),
  # Our own: a Llama with one product in its MLP; see presets.py.
  "ChinchillaForCausalLM": Family(
    keys=_KEYS,
    defaults={
      **_DEFAULTS,
      "hidden_act": "gelu_new",
      "tie_word_embeddings": True,
      "max_position_embeddings": 2048,
    },
    features={"gated": False},
    required=_NO_SOFTCAPS,
  ),
  "GPT2LMHeadModel": Family(
    keys={
      "vocab_size": "vocab_size",
      "d_model": "n_embd",
      "layers": "n_layer",
      "heads": "n_head",
      "d_ff": "n_inner",
      "activation": "activation_function",
      "norm_eps": "layer_norm_epsilon",
      "tied": "tie_word_embeddings",
      "max_position": "n_positions",
    },
    defaults={
      "activation_function": "gelu_new",
      "layer_norm_epsilon": 1e-5,
      "tie_word_embeddings": True,
      "n_positions": 1024,
    },
    features={
      "norm": "layer",
      "gated": False,
      "qkv_bias": True,
      "o_bias": True,
      "mlp_bias": True,
    },
    known=frozenset({"scale_attn_weights"}),
    # Keys are scaled before the product, or scores after it: the same number.
    harmless=frozenset(
      """
      n_ctx n_special predict_special_tokens attn_pdrop summary_activation
      summary_first_dropout summary_proj_to_labels
      summary_type summary_use_proj reorder_and_upcast_attn _num_labels
    """.split()
    ),
    required={"scale_attn_by_inverse_layer_idx": (False, None)},
    rope_theta=None,
    mlp_ratio=4,
  ),
}
