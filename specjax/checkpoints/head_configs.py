"""What the config.json of a head's folder says, both ways, kind by kind.

A published head's config is that of a small Llama, with a few keys beside.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.checkpoints.head_layouts import HEAD, OFFSETS
from specjax.models import config as config_lib
from specjax.models import config_keys
from specjax.models.config import DecoderConfig
from specjax.models.heads import eagle
from specjax.models.heads.eagle import EagleConfig
from specjax.models.heads.medusa import MedusaConfig
from specjax.models.heads.mtp import MtpConfig
from specjax.models.heads.thin import ThinConfig
from specjax.proposers.kinds import EMBEDDINGS as EMBEDDINGS
from specjax.proposers.kinds import PROPOSER as PROPOSER

# Tensor name -> shape.
Shapes = Mapping[str, Sequence[int]]

_DEPTHS = "num_nextn_predict_layers"
_FEATURES = "eagle_aux_hidden_state_layer_ids"  # vLLM's name
_BESIDE = frozenset(
  {
    *("draft_vocab_size", "bias", "qkv_bias", _FEATURES, PROPOSER),
    *("target_hidden_size", "target_model_type"),
  }
)
# Of a target, what a head depends on: config.json's name to ours.
TARGET = {
  "hidden_size": "d_model",
  "num_hidden_layers": "layers",
  "vocab_size": "vocab_size",
}


def llama_layer(content: Mapping[str, Any]) -> DecoderConfig:
  """A head's layer, from a config that is that of a Llama of one layer.

  Raises:
    ValueError: names the key.
  """
  own = {key: v for key, v in content.items() if key not in _BESIDE}
  own["architectures"] = ["LlamaForCausalLM"]
  layer = config_lib.from_hugging_face(own)
  if layer.layers != 1:
    raise ValueError(
      f"config.json: num_hidden_layers is {layer.layers}; a head has 1"
    )
  biased = config_keys.flag(content, "qkv_bias", False) or layer.qkv_bias
  return dataclasses.replace(layer, tied=False, qkv_bias=biased)


def llama_content(layer: DecoderConfig) -> dict[str, Any]:
  """The config of a Llama of one layer, which `llama_layer` reads."""
  rope = layer.rope_scaling
  content = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": layer.vocab_size,
    "hidden_size": layer.d_model,
    "intermediate_size": layer.d_ff,
    "num_hidden_layers": 1,
    "num_attention_heads": layer.heads,
    "num_key_value_heads": layer.kv_heads,
    "head_dim": layer.head_dim,
    "hidden_act": "silu",
    "rms_norm_eps": layer.norm_eps,
    "rope_theta": layer.rope_theta,
    "max_position_embeddings": layer.max_position,
    "attention_bias": layer.o_bias,
    "mlp_bias": layer.mlp_bias,
    "tie_word_embeddings": False,
  }
  if layer.qkv_bias and not layer.o_bias:
    content["qkv_bias"] = True
  if isinstance(rope, config_lib.LinearScaling):
    content["rope_scaling"] = {"rope_type": "linear", "factor": rope.factor}
  elif rope is not None:
    content["rope_scaling"] = {
      "rope_type": "llama3",
      "factor": rope.factor,
      "low_freq_factor": rope.low_freq_factor,
      "high_freq_factor": rope.high_freq_factor,
      "original_max_position_embeddings": rope.original_max_position,
    }
  return content


def read_eagle(
  content: Mapping[str, Any], shapes: Shapes, target: DecoderConfig
) -> EagleConfig:
  """An EAGLE head's config.

  Which of the two kinds it is the tensors say, not the config.

  Raises:
    ValueError: names the key.
  """
  fuses = any(name.startswith("midlayer.") for name in shapes)
  width = content.get("target_hidden_size", target.d_model)
  if width != target.d_model:
    raise ValueError(
      f"config.json: target_hidden_size is {width!r}, and the target's is "
      f"{target.d_model}; take the head of this target"
    )
  layer = llama_layer(content)
  drafted = content.get("draft_vocab_size")
  if drafted is not None or fuses:
    drafted = config_keys.number(
      content, "draft_vocab_size", int, layer.vocab_size
    )
  features = (target.layers,)
  if fuses:
    features = eagle.published_features(target.layers)
    features = _numbers(content, _FEATURES, features)
  elif _FEATURES in content:
    raise ValueError(
      f"config.json: {_FEATURES} is for a head of EAGLE-3, and the tensors are "
      "those of EAGLE-1; remove it"
    )
  return EagleConfig(
    layer=layer,
    features=features,
    draft_vocab=drafted,
    fc_bias="fc.bias" in shapes,
  )


def eagle_content(config: EagleConfig) -> dict[str, Any]:
  """What `read_eagle` reads."""
  content = llama_content(config.layer)
  if config.draft_vocab is not None:
    content["draft_vocab_size"] = config.draft_vocab
  if config.fuses:
    content[_FEATURES] = list(config.features)
  else:
    content["bias"] = config.fc_bias
  return content


def read_draft(
  content: Mapping[str, Any], shapes: Shapes, target: DecoderConfig
) -> ThinConfig:
  """A draft model's config, which may say that its ends are the target's.

  Raises:
    ValueError: names the key.
  """
  del target
  own = {k: v for k, v in content.items() if k not in (EMBEDDINGS, PROPOSER)}
  config, is_thin = config_lib.from_hugging_face(own), _borrows(content)
  return ThinConfig(
    decoder=config,
    is_thin=is_thin,
    draft_vocab=_drafted(shapes),
    # What it has beside the target's embedding its tensors say.
    own_head=is_thin and HEAD in shapes,
  )


def draft_content(config: ThinConfig) -> dict[str, Any]:
  """What `read_draft` reads, of a Llama.

  Raises:
    ValueError: the draft is no Llama; its config.json has to be given.
  """
  if config.decoder.architecture != "LlamaForCausalLM":
    raise ValueError(
      f"the draft is a {config.decoder.architecture}; give its config.json's "
      "content"
    )
  content = llama_content(config.decoder) | {
    "num_hidden_layers": config.decoder.layers,
    "tie_word_embeddings": config.decoder.tied,
  }
  return content | ({EMBEDDINGS: "target"} if config.is_thin else {})


def read_medusa(
  content: Mapping[str, Any], shapes: Shapes, target: DecoderConfig
) -> MedusaConfig:
  """The config of Medusa's heads; of their sizes the tensors say the rest.

  Raises:
    ValueError: names the key.
  """
  known = {"medusa_num_heads", "medusa_num_layers"}
  odd = [key for key in content if key.startswith("medusa_")]
  if unknown := sorted(set(odd) - known):
    raise ValueError(
      f"config.json: unknown settings {', '.join(unknown)}; each could change "
      "the result. Remove them from config.json if they do not"
    )
  prefix = MedusaConfig.prefix
  if not any(name.startswith(prefix) for name in shapes):
    prefix = ""
  heads = config_keys.number(content, "medusa_num_heads", int)
  blocks = config_keys.number(content, "medusa_num_layers", int, 1)
  sizes = {
    name: config_keys.number(content, key, int, getattr(target, name))
    for key, name in (("hidden_size", "d_model"), ("vocab_size", "vocab_size"))
  }
  # Published configs say neither; the tensors do.
  block = shapes.get(f"{prefix}0.0.linear.weight", ())
  table = shapes.get(f"{prefix}0.{blocks}.weight", ())
  drafted = _drafted(shapes)
  if len(block) == 2:
    sizes["d_model"] = block[1]
  if len(table) == 2 and drafted is None:
    sizes["vocab_size"] = table[0]
  return MedusaConfig(
    **sizes,
    heads=heads,
    blocks=blocks,
    shares=_borrows(content),
    draft_vocab=drafted,
    prefix=prefix,
  )


def medusa_content(config: MedusaConfig) -> dict[str, Any]:
  """What `read_medusa` reads."""
  content = {
    "medusa_num_heads": config.heads,
    "medusa_num_layers": config.blocks,
    "hidden_size": config.d_model,
    "vocab_size": config.vocab_size,
  }
  return content | ({EMBEDDINGS: "target"} if config.shares else {})


def read_mtp(
  content: Mapping[str, Any], shapes: Shapes, target: DecoderConfig
) -> MtpConfig:
  """The config of modules of multi-token prediction.

  A folder of their own says so of itself; any other is a whole model's, which
  may carry them.

  Raises:
    ValueError: names the key.
  """
  is_within = PROPOSER not in content
  if is_within and not content.get(_DEPTHS):
    count = content.get(_DEPTHS)
    raise ValueError(
      f"config.json: {_DEPTHS} is {'missing' if count is None else count}: the "
      "model carries no modules of multi-token prediction; name a folder of "
      "such modules with --draft_model"
    )
  depths = config_keys.number(content, _DEPTHS, int)
  if is_within:
    layer = config_lib.from_hugging_face(content)
    layer = dataclasses.replace(layer, layers=1, windows=(), tied=False)
  else:
    layer = llama_layer({k: v for k, v in content.items() if k != _DEPTHS})
  return MtpConfig(
    layer=layer,
    depths=depths,
    features=(target.layers,),
    is_within=is_within,
    draft_vocab=_drafted(shapes),
  )


def mtp_content(config: MtpConfig) -> dict[str, Any]:
  """What `read_mtp` reads."""
  return llama_content(config.layer) | {_DEPTHS: config.depths}


def _drafted(shapes: Shapes) -> int | None:
  """Vd, as the tensors say it; None without a reduced vocabulary.

  Raises:
    ValueError: the list of ids is none.
  """
  if OFFSETS not in shapes:
    return None
  if len(shapes[OFFSETS]) != 1:
    raise ValueError(
      f"tensor {OFFSETS} is of the shape {tuple(shapes[OFFSETS])}; give a list "
      "of ids"
    )
  return shapes[OFFSETS][0]


def _borrows(content) -> bool:
  """Whether the folder has no table of ids of its own."""
  whose = content.get(EMBEDDINGS)
  if whose not in (None, "target"):
    raise ValueError(
      f"config.json: {EMBEDDINGS} is {whose!r}; give 'target', or leave it out"
    )
  return whose is not None


def _numbers(content, key, default) -> tuple[int, ...]:
  value = content.get(key, list(default))
  good = isinstance(value, list) and len(value) == len(default)
  if not good or not all(type(n) is int and n >= 0 for n in value):
    raise ValueError(
      f"config.json: {key} is {value!r}; give {len(default)} layers' numbers"
    )
  return tuple(value)


def target_content(
  target: DecoderConfig, tokenizer: str | None = None
) -> dict[str, Any]:
  """What a head says of the target that it was made for."""
  found = {key: getattr(target, name) for key, name in TARGET.items()}
  return found | ({} if tokenizer is None else {"tokenizer": tokenizer})


def check_target(
  content: Mapping[str, Any],
  kind: str,
  target: DecoderConfig,
  tokenizer: str | None,
) -> None:
  """Refuses another kind, and a head that was made for another target.

  Raises:
    ValueError: names the key, both values and the fix.
  """
  own = config_keys.mapping(content, PROPOSER)
  if own.get("kind", kind) != kind:
    raise ValueError(
      f"config.json: the folder holds what --proposer={own['kind']} drafts "
      f"with, not {kind}"
    )
  made_for = config_keys.mapping(own, "target")
  for key, value in target_content(target, tokenizer).items():
    if made_for.get(key, value) != value:
      raise ValueError(
        f"config.json: it was made for a target with {key} {made_for[key]!r}, "
        f"and this one's is {value!r}; take what was made for this target"
      )
