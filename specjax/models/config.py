"""A decoder's sizes and settings, read from a Hugging Face config.json."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
  """Llama-3's rope scaling: long wavelengths are slowed by `factor`.

  Attributes:
    factor: how much longer the context becomes.
    low_freq_factor: wavelengths over original / low are slowed in full.
    high_freq_factor: wavelengths under original / high are left alone.
    original_max_position: the context length of pre-training, in tokens.
  """

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_position: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
  """Sizes and settings of a decoder; every field changes the result.

  Attributes:
    vocab_size: V. d_model: D. layers: L. heads: N. kv_heads: K. head_dim: H.
    d_ff: F.
    rope_theta: base of the rotary wavelengths.
    rope_scaling: Llama-3's scaling, or None.
    norm_eps: added to the mean square in every RMSNorm.
    tied: whether the head reads the embedding's weights.
    max_position: the longest context the model was made for, in tokens.
  """

  vocab_size: int
  d_model: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  d_ff: int
  rope_theta: float
  rope_scaling: RopeScaling | None
  norm_eps: float
  tied: bool
  max_position: int


ARCHITECTURES = ("LlamaForCausalLM",)

# Keys that do not change the result of a forward pass, or only say how the
# checkpoint was made; everything else must be known or be refused by name.
_HARMLESS = frozenset(
  """
  _name_or_path architectures model_type torch_dtype dtype transformers_version
  use_cache bos_token_id eos_token_id pad_token_id unk_token_id is_llama_config
  initializer_range pretraining_tp rope_interleaved transformers.js_config
  attention_dropout hidden_dropout return_dict output_hidden_states
  output_attentions tokenizer_class finetuning_task id2label label2id
  problem_type chunk_size_feed_forward gradient_checkpointing
  task_specific_params
  resid_pdrop embd_pdrop auto_map _attn_implementation
  _attn_implementation_autoset
  max_length min_length do_sample num_beams temperature top_k top_p
""".split()
)

# Key -> the only values under which our decoder computes what theirs does.
_REQUIRED = {
  "hidden_act": ("silu", "swish"),
  "attention_bias": (False, None),
  "mlp_bias": (False, None),
  "rope_interleaved": (False, None),
  "is_decoder": (True, False, None),
  "is_encoder_decoder": (False, None),
  "add_cross_attention": (False, None),
  "sliding_window": (None,),
  "partial_rotary_factor": (1.0, None),
  "quantization_config": (None,),
  "final_logit_softcapping": (None,),
  "attn_logit_softcapping": (None,),
  "pruned_heads": ({}, None),
  "tie_encoder_decoder": (False, None),
}


def _number(config, key, kind, default=None):
  value = config.get(key)
  value = default if value is None else value
  whole = kind is int and isinstance(value, float) and value.is_integer()
  good = isinstance(value, (int, kind)) and not isinstance(value, bool)
  if (good or whole) and 0 < value < 2**62:
    return kind(value)
  raise ValueError(
    f"config.json: {key} is {value!r}; it must be a positive "
    f"{'whole number' if kind is int else 'number'}"
  )


def _flag(config, key, default):
  value = config.get(key)
  value = default if value is None else value
  if not isinstance(value, bool):
    raise ValueError(f"config.json: {key} is {value!r}; give true or false")
  return value


_ROPE_KEYS = frozenset(
  """
  rope_type type rope_theta factor low_freq_factor high_freq_factor
  original_max_position_embeddings
""".split()
)


def _rope(config):
  """(theta, scaling) from either spelling of the rope settings."""
  # transformers 5 writes one `rope_parameters`; before, `rope_theta` stood
  # beside `rope_scaling`.
  parameters = config.get("rope_parameters") or {}
  scaling = config.get("rope_scaling") or {}
  for key, value in (
    ("rope_parameters", parameters),
    ("rope_scaling", scaling),
  ):
    if not isinstance(value, Mapping):
      raise ValueError(f"config.json: {key} is {value!r}; it must be an object")
    for name in value:
      if name not in _ROPE_KEYS:
        raise ValueError(
          f"config.json: {key} has the unknown setting {name!r}, which could "
          "change the result; known: " + ", ".join(sorted(_ROPE_KEYS))
        )
  rope = {**config, **scaling, **parameters}
  theta = _number(rope, "rope_theta", float, 10000.0)
  kind = parameters.get("rope_type") or scaling.get("rope_type")
  kind = kind or parameters.get("type") or scaling.get("type") or "default"
  if kind == "default":
    return theta, None
  if kind != "llama3":
    raise ValueError(
      f"config.json: rope type {kind!r} is not supported; use a checkpoint "
      "with rope type 'default' or 'llama3'"
    )
  original = "original_max_position_embeddings"
  rope.setdefault(original, config.get("max_position_embeddings", 2048))
  return theta, RopeScaling(
    factor=_number(rope, "factor", float),
    low_freq_factor=_number(rope, "low_freq_factor", float),
    high_freq_factor=_number(rope, "high_freq_factor", float),
    original_max_position=_number(rope, original, int),
  )


def from_hugging_face(config: Mapping[str, Any]) -> DecoderConfig:
  """Reads the content of a Hugging Face config.json.

  Args:
    config: the parsed JSON object.

  Returns:
    The decoder's configuration.

  Raises:
    ValueError: names the key for an unknown architecture, a missing or
      malformed size, or a setting that would change the result.
  """
  if not isinstance(config, Mapping):
    raise ValueError(f"config.json: expected an object, found {config!r}")
  names = config.get("architectures") or [None]
  if not isinstance(names, (list, tuple)) or names[0] not in ARCHITECTURES:
    raise ValueError(
      f"config.json: architectures is {names!r}; supported: "
      + ", ".join(ARCHITECTURES)
    )
  for key, allowed in _REQUIRED.items():
    if key in config and config[key] not in allowed:
      raise ValueError(
        f"config.json: {key} is {config[key]!r}, which would change the "
        f"result; supported: {' or '.join(map(repr, allowed))}"
      )
  used = {
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "intermediate_size", "rope_theta",
    "rope_scaling", "rope_parameters", "rms_norm_eps", "tie_word_embeddings",
    "max_position_embeddings",
  }  # fmt: skip
  unknown = sorted(set(config) - used - _HARMLESS - set(_REQUIRED))
  if unknown:
    raise ValueError(
      f"config.json: unknown settings {', '.join(unknown)}; each could change "
      "the result. Remove them from config.json if they do not"
    )
  d_model = _number(config, "hidden_size", int)
  heads = _number(config, "num_attention_heads", int)
  kv_heads = _number(config, "num_key_value_heads", int, heads)
  if heads % kv_heads:
    raise ValueError(
      f"config.json: num_attention_heads {heads} is not a multiple of "
      f"num_key_value_heads {kv_heads}"
    )
  if config.get("head_dim") is None and d_model % heads:
    raise ValueError(
      f"config.json: hidden_size {d_model} is not a multiple of "
      f"num_attention_heads {heads} and head_dim is not given"
    )
  head_dim = _number(config, "head_dim", int, max(d_model // heads, 1))
  if head_dim % 2:
    raise ValueError(
      f"config.json: head_dim {head_dim} is odd; rotary positions need pairs"
    )
  theta, scaling = _rope(config)
  return DecoderConfig(
    vocab_size=_number(config, "vocab_size", int),
    d_model=d_model,
    layers=_number(config, "num_hidden_layers", int),
    heads=heads,
    kv_heads=kv_heads,
    head_dim=head_dim,
    d_ff=_number(config, "intermediate_size", int),
    rope_theta=theta,
    rope_scaling=scaling,
    norm_eps=_number(config, "rms_norm_eps", float, 1e-6),
    tied=_flag(config, "tie_word_embeddings", False),
    max_position=_number(config, "max_position_embeddings", int, 2048),
  )
