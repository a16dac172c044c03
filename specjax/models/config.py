"""A decoder's sizes and settings, read from a Hugging Face config.json."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from specjax.models import config_keys, t5_family
from specjax.models.config_keys import number
from specjax.models.families import (
  ACTIVATIONS,
  FAMILIES,
  HARMLESS,
  REQUIRED,
  Family,
)


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
class LinearScaling:
  """Rope scaling that slows every wavelength by `factor`."""

  factor: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
  """Sizes and features of a decoder. Where a feature has a default, it is
  the one of Llama: absent.

  Attributes:
    vocab_size: V. d_model: D. layers: L. heads: N. kv_heads: K. head_dim: H.
    d_ff: F.
    rope_theta: base of the rotary wavelengths; None for a learned table of
      `max_position` positions, or `relative_buckets`, instead.
    rope_scaling: of the rotary wavelengths, or None.
    norm_eps: added to the mean square, or variance, in every norm.
    tied: whether the head reads the embedding's weights.
    max_position: the longest context the model was made for, in tokens.
    architecture: Hugging Face's name. It says which tensors of a file are
      which parameters; no layer reads it.
    activation: of the MLP: "silu", "relu", or "gelu_tanh" (its tanh
      approximation).
    gated: whether the MLP multiplies two products, or has one alone.
    norm: "rms" (RMSNorm), "rms_plus_one" (its weights are offsets from one)
      or "layer" (LayerNorm with bias).
    post_norms: whether attention's and MLP's outputs have norms of their own.
    qk_norm: whether each head's query and key have norms.
    qkv_bias: of the query, key and value products.
    o_bias: of attention's output product.
    mlp_bias: of the MLP's products.
    embed_scale: multiplies the embedding, or None.
    attention_scale: multiplies the scores; None for 1 / sqrt(H).
    attention_softcap: bounds the scores, or None; see `attend`.
    logit_softcap: bounds the logits in the same way, or None.
    windows: of each layer, how many positions a query sees, its own
      included, 0 for all; empty if no layer has a window.
    local_rope_theta: base, unscaled, in layers with a window; None if theirs
      is everyone's.
    relative_buckets: into how many classes the distance between a query and a
      key falls, of which each adds a number of its own to a head's scores
      (T5); None where scores do not depend on distance.
    relative_distance: from so many tokens on all are of the last class.
    head_scale: multiplies the logits, or None.
    encoder_layers: of the encoder that reads a source, to which every layer
      attends; 0 for a model without one.
    start_id: the token before the first of every output, of a model with an
      encoder; None elsewhere: there the prompt comes before it.
    heads_in_file: (N, K) of the checkpoint where this model has more; see
      `models.padding`. None where they are its own.
  """

  vocab_size: int
  d_model: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  d_ff: int
  rope_theta: float | None
  rope_scaling: RopeScaling | LinearScaling | None
  norm_eps: float
  tied: bool
  max_position: int
  architecture: str = "LlamaForCausalLM"
  activation: str = "silu"
  gated: bool = True
  norm: str = "rms"
  post_norms: bool = False
  qk_norm: bool = False
  qkv_bias: bool = False
  o_bias: bool = False
  mlp_bias: bool = False
  embed_scale: float | None = None
  attention_scale: float | None = None
  attention_softcap: float | None = None
  logit_softcap: float | None = None
  windows: tuple[int, ...] = ()
  local_rope_theta: float | None = None
  relative_buckets: int | None = None
  relative_distance: int = 128
  head_scale: float | None = None
  encoder_layers: int = 0
  start_id: int | None = None
  heads_in_file: tuple[int, int] | None = None

  @property
  def has_position_table(self) -> bool:
    """Whether a learned position is added to each token's embedding."""
    return self.rope_theta is None and self.relative_buckets is None


ARCHITECTURES = (*FAMILIES, *t5_family.ARCHITECTURES)
_MOST_LAYERS = 10_000  # a damaged file must not make lists without end


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
  if names[0] in t5_family.ARCHITECTURES:
    sizes = t5_family.fields(config)
    _refuse_too_many(sizes["layers"], "num_decoder_layers")
    _refuse_too_many(sizes["encoder_layers"], "num_layers")
    return DecoderConfig(architecture=names[0], **sizes)
  family = FAMILIES[names[0]]
  if family.text_config:
    config = _text_part(config, family)
  _refuse_unknown(config, family)

  def read(field, kind, default=None):
    key = family.keys[field]
    return number(config, key, kind, family.defaults.get(key, default))

  d_model, layers = read("d_model", int), read("layers", int)
  _refuse_too_many(layers, family.keys["layers"])
  max_position = read("max_position", int)
  d_ff = family.mlp_ratio and family.mlp_ratio * d_model
  sizes = _head_sizes(config, family, d_model)
  if family.rope_theta is None:
    positions = {"rope_theta": None, "rope_scaling": None}
  else:
    positions = _rope(config, family, sizes["head_dim"], max_position)
  return DecoderConfig(
    vocab_size=read("vocab_size", int),
    d_model=d_model,
    layers=layers,
    d_ff=read("d_ff", int, d_ff),
    norm_eps=read("norm_eps", float),
    tied=config_keys.flag(
      config,
      family.keys["tied"],
      family.defaults[family.keys["tied"]],
    ),
    max_position=max_position,
    architecture=names[0],
    windows=family.windows(config, layers),
    **sizes,
    **positions,
    **_features(config, family, d_model),
  )


def _refuse_too_many(layers: int, key: str) -> None:
  if layers > _MOST_LAYERS:
    raise ValueError(
      f"config.json: {key} is {layers}; more than {_MOST_LAYERS} are not "
      "supported"
    )


def _text_part(config, family) -> Mapping[str, Any]:
  """The text model's settings, of a file that holds others beside them."""
  beside = {
    "text_config", "vision_config", "boi_token_index", "eoi_token_index",
    "image_token_index", "mm_tokens_per_image",
  }  # fmt: skip
  _refuse_unknown({k: v for k, v in config.items() if k not in beside}, family)
  return config_keys.mapping(config, "text_config")


def _refuse_unknown(config, family: Family) -> None:
  """Raises an error for any key that could change the result unseen."""
  known = set(family.keys.values()) | family.known | family.harmless
  if family.rope_theta is not None:
    known |= {"rope_theta", "rope_scaling", "rope_parameters"}
  required = {**REQUIRED, **family.required}
  config_keys.refuse_unknown(config, known | HARMLESS, required)


def _head_sizes(config, family: Family, d_model: int) -> dict[str, int]:
  """heads, kv_heads and head_dim, which depend on each other."""
  keys, defaults = family.keys, family.defaults
  heads = number(config, keys["heads"], int, defaults.get(keys["heads"]))
  kv_heads = heads
  # Null, unlike an absent key, means one for each query head.
  if "kv_heads" in keys and config.get(keys["kv_heads"], 0) is not None:
    kv_default = defaults.get(keys["kv_heads"], heads)
    kv_heads = number(config, keys["kv_heads"], int, kv_default)
  if heads % kv_heads:
    raise ValueError(
      f"config.json: {keys['heads']} {heads} is not a multiple of "
      f"{keys['kv_heads']} {kv_heads}"
    )
  head_dim = d_model // heads
  given = None
  if "head_dim" in keys:
    given = config.get(keys["head_dim"], defaults.get(keys["head_dim"]))
  if given is None and d_model % heads:
    raise ValueError(
      f"config.json: {keys['d_model']} {d_model} is not a multiple of "
      f"{keys['heads']} {heads} and head_dim is not given"
    )
  if given is not None:
    head_dim = number({keys["head_dim"]: given}, keys["head_dim"], int)
  return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


def _features(config, family: Family, d_model: int) -> dict[str, Any]:
  """What the architecture fixes and what the file says beyond sizes."""
  features, keys = dict(family.features), family.keys
  name = config.get(keys["activation"])
  name = family.defaults[keys["activation"]] if name is None else name
  if not isinstance(name, str) or name not in ACTIVATIONS:
    raise ValueError(
      f"config.json: {keys['activation']} is {name!r}; supported: "
      + ", ".join(ACTIVATIONS)
    )
  features["activation"] = ACTIVATIONS[name]
  for field in ("logit_softcap", "attention_softcap"):
    if field in keys and keys[field] not in family.required:
      default = family.defaults[keys[field]]
      features[field] = config_keys.optional(
        config, keys[field], float, default
      )
  if "attention_bias" in family.known:
    biased = config_keys.flag(config, "attention_bias", False)
    features |= {"qkv_bias": biased, "o_bias": biased}
  if "mlp_bias" in family.known:
    features["mlp_bias"] = config_keys.flag(config, "mlp_bias", False)
  if "query_pre_attn_scalar" in family.known:
    scalar = number(config, "query_pre_attn_scalar", float, 256)
    features |= {"attention_scale": scalar**-0.5, "embed_scale": d_model**0.5}
  if "scale_attn_weights" in family.known:
    if not config_keys.flag(config, "scale_attn_weights", True):
      features["attention_scale"] = 1.0
  return features


_ROPE_KEYS = frozenset(
  """
  rope_type type rope_theta factor low_freq_factor high_freq_factor
  original_max_position_embeddings
""".split()
)


def _rope(config, family: Family, head_dim, max_position) -> dict[str, Any]:
  """The rotation's fields, from either spelling of its settings."""
  if head_dim % 2:
    raise ValueError(
      f"config.json: head_dim {head_dim} is odd; rotary positions need pairs"
    )
  # transformers 5 writes one `rope_parameters`, of objects by kind of layer
  # where kinds differ; before, `rope_theta` stood beside `rope_scaling`.
  parameters = config_keys.mapping(config, "rope_parameters")
  scaling = config_keys.mapping(config, "rope_scaling")
  shared = (scaling, family.rope_theta, max_position)
  if family.local_rope_theta is None:
    theta, scaled = _one_rope(config, parameters, *shared)
    return {"rope_theta": theta, "rope_scaling": scaled}
  _require_known(parameters, "rope_parameters", _KINDS)
  full, local = (config_keys.mapping(parameters, kind) for kind in _KINDS)
  theta, scaled = _one_rope(config, full, *shared)
  older = {"rope_theta": config.get("rope_local_base_freq")}
  near, near_scaled = _one_rope(older, local, {}, family.local_rope_theta)
  if near_scaled is not None:
    raise ValueError(
      f"config.json: rope_parameters has the rope type {local['rope_type']!r} "
      "for sliding_attention; supported: 'default'"
    )
  return {
    "rope_theta": theta,
    "rope_scaling": scaled,
    "local_rope_theta": near,
  }


_KINDS = ("full_attention", "sliding_attention")


def _require_known(settings, where: str, known) -> None:
  for name in settings:
    if name not in known:
      raise ValueError(
        f"config.json: {where} has the unknown setting {name!r}, which could "
        "change the result; known: " + ", ".join(sorted(known))
      )


def _one_rope(config, parameters, scaling, default_theta, max_position=None):
  """(theta, scaling) of the layers that share them."""
  _require_known(parameters, "rope_parameters", _ROPE_KEYS)
  _require_known(scaling, "rope_scaling", _ROPE_KEYS)
  rope = {**config, **scaling, **parameters}
  theta = number(rope, "rope_theta", float, default_theta)
  kind = parameters.get("rope_type") or scaling.get("rope_type")
  kind = kind or parameters.get("type") or scaling.get("type") or "default"
  if kind == "default":
    return theta, None
  if kind == "linear":
    return theta, LinearScaling(factor=number(rope, "factor", float))
  if kind != "llama3":
    raise ValueError(
      f"config.json: rope type {kind!r} is not supported; use a checkpoint "
      "with rope type 'default', 'linear' or 'llama3'"
    )
  original = "original_max_position_embeddings"
  rope.setdefault(original, max_position)
  return theta, RopeScaling(
    factor=number(rope, "factor", float),
    low_freq_factor=number(rope, "low_freq_factor", float),
    high_freq_factor=number(rope, "high_freq_factor", float),
    original_max_position=number(rope, original, int),
  )
