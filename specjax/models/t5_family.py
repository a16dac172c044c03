"""What a T5's config.json may say and what it means.

T5 v1.0, v1.1 and Flan, ByT5 (whose encoder is deeper than its decoder) and mT5.
Key names, defaults and meanings are those of transformers (5.24) and of the
files that its older versions wrote.
"""

from collections.abc import Mapping
from typing import Any

from specjax.models import config_keys
from specjax.models.config_keys import flag, number
from specjax.models.families import HARMLESS, REQUIRED

T5, MT5 = "T5ForConditionalGeneration", "MT5ForConditionalGeneration"
ARCHITECTURES = (T5, MT5)

# Distances have no end: past the last class of them nothing changes. This is
# far beyond what any was trained on.
_MAX_POSITION = 32_768
_START = "decoder_start_token_id"
_KNOWN = frozenset(
  """
  vocab_size d_model d_kv d_ff num_layers num_decoder_layers num_heads
  relative_attention_num_buckets relative_attention_max_distance
  layer_norm_epsilon feed_forward_proj tie_word_embeddings scale_decoder_outputs
""".split()
)
# `dense_act_fn` and `is_gated_act` are what transformers makes of
# `feed_forward_proj`, which alone it reads.
_HARMLESS = frozenset(
  """
  dropout_rate initializer_factor classifier_dropout n_positions output_past
  dense_act_fn is_gated_act
""".split()
)
_REQUIRED = {
  **REQUIRED,
  "is_encoder_decoder": (True, None),
  "is_decoder": (False, None),
  # Of a T5 some keys say whether encoder and decoder share their layers.
  "tie_encoder_decoder": (False, None),
}
# `feed_forward_proj` -> (activation, whether it is gated).
_FEED_FORWARD = {
  "relu": ("relu", False),
  "gated-relu": ("relu", True),
  "silu": ("silu", False),
  "gated-silu": ("silu", True),
  "gelu_new": ("gelu_tanh", False),
  "gated-gelu": ("gelu_tanh", True),
  "gated-gelu_new": ("gelu_tanh", True),
}


def fields(config: Mapping[str, Any]) -> dict[str, Any]:
  """What a DecoderConfig has of a T5 beside its architecture.

  Args:
    config: the parsed JSON object; its architecture is one of ARCHITECTURES.

  Raises:
    ValueError: names the key that cannot be followed.
  """
  config_keys.refuse_unknown(config, _KNOWN | _HARMLESS | HARMLESS, _REQUIRED)
  is_mt5 = config["architectures"][0] == MT5
  read = lambda key, default: number(config, key, int, default)
  heads = read("num_heads", 6 if is_mt5 else 8)
  layers = read("num_layers", 8 if is_mt5 else 6)
  d_model = read("d_model", 512)
  name = config.get("feed_forward_proj")
  if name is None:
    name = "gated-gelu" if is_mt5 else "relu"
  if not isinstance(name, str) or name not in _FEED_FORWARD:
    raise ValueError(
      f"config.json: feed_forward_proj is {name!r}; supported: "
      + ", ".join(_FEED_FORWARD)
    )
  activation, gated = _FEED_FORWARD[name]
  tied = flag(config, "tie_word_embeddings", True)
  # A tied head reads D numbers as large as an embedding's; mT5's never does.
  scaled = flag(config, "scale_decoder_outputs", tied and not is_mt5)
  return dict(
    vocab_size=read("vocab_size", 250_112 if is_mt5 else 32_128),
    d_model=d_model,
    layers=read("num_decoder_layers", layers),
    encoder_layers=layers,
    heads=heads,
    kv_heads=heads,
    head_dim=read("d_kv", 64),
    d_ff=read("d_ff", 1024 if is_mt5 else 2048),
    rope_theta=None,
    rope_scaling=None,
    norm_eps=number(config, "layer_norm_epsilon", float, 1e-6),
    tied=tied,
    max_position=_MAX_POSITION,
    activation=activation,
    gated=gated,
    attention_scale=1.0,
    head_scale=d_model**-0.5 if scaled else None,
    start_id=_start_id(config),
    **_classes(config),
  )


def untied(config: Mapping[str, Any]) -> dict[str, Any] | None:
  """The config.json of the same model with a head of its own.

  transformers 5 writes `tie_word_embeddings: true` for every T5 that it saves.
  One that was published with a head of its own is told by the scale it goes
  without (v1.1, Flan, ByT5), or is an mT5. None where the file means what it
  says, and a head in it only repeats the embedding.

  Args:
    config: the parsed JSON object, of any architecture.
  """
  names = config.get("architectures")
  if not isinstance(names, list) or names[:1] not in [[T5], [MT5]]:
    return None
  tied = config.get("tie_word_embeddings")
  if tied is not None and tied is not True:
    return None
  if config.get("scale_decoder_outputs") is not False and names[0] != MT5:
    return None
  return {**config, "tie_word_embeddings": False}


def _start_id(config) -> int:
  """T5's decoder begins with the padding token unless the file says other."""
  for key in (_START, "pad_token_id"):
    value = config.get(key)
    if value is not None:
      if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"config.json: {key} is {value!r}; give a token id")
      return value
  return 0


def _classes(config) -> dict[str, int]:
  """Into what classes distances fall."""
  buckets = number(config, "relative_attention_num_buckets", int, 32)
  distance = number(config, "relative_attention_max_distance", int, 128)
  # The encoder halves them for keys before and behind; half of each half is
  # one distance a class, and the others need room beyond.
  if buckets % 4 or distance <= buckets // 2:
    raise ValueError(
      "config.json: relative_attention_num_buckets is "
      f"{buckets} and relative_attention_max_distance {distance}; supported: "
      "a multiple of 4, and a distance of more than half of it"
    )
  return {"relative_buckets": buckets, "relative_distance": distance}
