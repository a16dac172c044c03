"""Well-known models by name: their config.json, without any of their weights.

Chinchilla's sizes are those of Hoffmann et al. 2022 (Table 4), its draft's
those of Chen et al. 2023; the rest are the published config.json files. Two
things differ from the Chinchilla that was trained. Its positions are
Transformer-XL's relative ones (Dai et al. 2019), ours rotate, so that the
counts are 64.69 and 3.82 billion; its position projection, D x (N H) in every
layer, would make them 70.06 and 4.12. Its activation and epsilon are not
stated; GPT-2's GELU (tanh) and 1e-6 stand in.

`chinchilla_tiny` and `t5_tiny` with their drafts have the same parts as the
large ones, eight heads and a vocabulary of bytes: they rehearse on simulated
devices what a pod runs.
"""

import copy
from collections.abc import Mapping
from typing import Any

from specjax.models import config as config_lib
from specjax.models.config import DecoderConfig


def _chinchilla(d_model, layers, heads, head_dim=128, vocab_size=32_000):
  return {
    "architectures": ["ChinchillaForCausalLM"],
    "model_type": "chinchilla",
    "vocab_size": vocab_size,
    "hidden_size": d_model,
    "intermediate_size": 4 * d_model,
    "num_hidden_layers": layers,
    "num_attention_heads": heads,
    "head_dim": head_dim,
    "hidden_act": "gelu_new",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
  }


def _llama(d_model, d_ff, layers, heads, kv_heads, **others):
  return {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": d_model,
    "intermediate_size": d_ff,
    "num_hidden_layers": layers,
    "num_attention_heads": heads,
    "num_key_value_heads": kv_heads,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    **others,
  }


def _llama3(*sizes, factor=8.0, tied=False):
  return _llama(
    *sizes,
    vocab_size=128_256,
    rope_theta=500_000.0,
    max_position_embeddings=131_072,
    tie_word_embeddings=tied,
    rope_scaling={
      "rope_type": "llama3",
      "factor": factor,
      "low_freq_factor": 1.0,
      "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192,
    },
  )


def _qwen3(d_model, d_ff, layers, heads, *, tied):
  return {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": d_model,
    "intermediate_size": d_ff,
    "num_hidden_layers": layers,
    "num_attention_heads": heads,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": tied,
  }


def _gemma3(d_model, d_ff, layers, heads, kv_heads, head_dim, **others):
  return {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": d_model,
    "intermediate_size": d_ff,
    "num_hidden_layers": layers,
    "num_attention_heads": heads,
    "num_key_value_heads": kv_heads,
    "head_dim": head_dim,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
    **others,
  }


def _t5(d_model, d_ff, layers, heads, head_dim=64, vocab_size=32_128):
  return {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "is_encoder_decoder": True,
    "vocab_size": vocab_size,
    "d_model": d_model,
    "d_kv": head_dim,
    "d_ff": d_ff,
    "num_layers": layers,
    "num_decoder_layers": layers,
    "num_heads": heads,
    "feed_forward_proj": "gated-gelu",
    "layer_norm_epsilon": 1e-6,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "tie_word_embeddings": False,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
  }


# 256 bytes, seven pairs of letters and the end of a text: divides by 8.
_BYTES = 264

PRESETS: Mapping[str, Mapping[str, Any]] = {
  "chinchilla_70b": _chinchilla(8192, 80, 64),
  "chinchilla_4b": _chinchilla(6144, 8, 48),
  "chinchilla_tiny": _chinchilla(128, 4, 8, 16, vocab_size=_BYTES),
  "chinchilla_tiny_draft": _chinchilla(64, 2, 8, 8, vocab_size=_BYTES),
  "llama2_70b": _llama(8192, 28_672, 80, 64, 8),
  "llama2_7b": _llama(4096, 11_008, 32, 32, 32),
  # 3.1, and 3.2 for the smallest.
  "llama3_70b": _llama3(8192, 28_672, 80, 64, 8),
  "llama3_8b": _llama3(4096, 14_336, 32, 32, 8),
  "llama3_1b": _llama3(2048, 8192, 16, 32, 8, factor=32.0, tied=True),
  "qwen3_32b": _qwen3(5120, 25_600, 64, 64, tied=False),
  "qwen3_0_6b": _qwen3(1024, 3072, 28, 16, tied=True),
  # Of the 27B model the part that reads and writes text.
  "gemma3_27b": _gemma3(
    5376,
    21_504,
    62,
    32,
    16,
    128,
    vocab_size=262_208,
    query_pre_attn_scalar=168,
    sliding_window=1024,
    max_position_embeddings=131_072,
    rope_scaling={"rope_type": "linear", "factor": 8.0},
  ),
  "gemma3_1b": _gemma3(
    1152,
    6912,
    26,
    4,
    1,
    256,
    vocab_size=262_144,
    query_pre_attn_scalar=256,
    sliding_window=512,
    max_position_embeddings=32_768,
  ),
  # v1.1, the sizes of Leviathan et al. 2023; layers are of each side.
  "t5_xxl": _t5(4096, 10_240, 24, 64),
  "t5_large": _t5(1024, 2816, 24, 16),
  "t5_base": _t5(768, 2048, 12, 12),
  "t5_small": _t5(512, 1024, 8, 6),
  "t5_tiny": _t5(64, 128, 2, 8, 8, vocab_size=_BYTES),
  "t5_tiny_draft": _t5(64, 64, 1, 8, 8, vocab_size=_BYTES),
}


def config_json(name: str) -> dict[str, Any]:
  """The content of a preset's config.json.

  Raises:
    ValueError: there is no such preset; it names those that there are.
  """
  if name not in PRESETS:
    raise ValueError(
      f"there is no preset {name!r}; there are {', '.join(PRESETS)}"
    )
  return copy.deepcopy(dict(PRESETS[name]))


def get(name: str) -> DecoderConfig:
  """A preset's configuration; errors as `config_json`."""
  return config_lib.from_hugging_face(config_json(name))
