"""Which tensor of a head's folder is which of our parameters, as tables.

The layouts are those in which heads are published; `keymaps` has the models',
and says how to read a table.
"""

import dataclasses
from collections.abc import Mapping

from specjax.checkpoints import keymaps
from specjax.checkpoints.keymaps import ATTENTION, MLP, Row, below, rows
from specjax.models.config import DecoderConfig

# Of a reduced vocabulary: the target's id of each id, less that id itself.
OFFSETS = "d2t"
# A model's table of ids, where it is not its embedding.
HEAD = "lm_head.weight"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadLayout(keymaps.Layout):
  """How the files of a kind of head are laid out.

  Attributes:
    repeats: tensors that may be there and only repeat one of the target's,
      whose shape they must have: name to the target's parameter.
  """

  ignored: str = r"(?!)"
  repeats: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _layer(ours: str, theirs: str) -> tuple[Row, ...]:
  """The products of a layer."""
  return (
    *below(f"{ours}attention.", f"{theirs}self_attn.", ATTENTION),
    *below(f"{ours}mlp.", f"{theirs}mlp.", MLP),
  )


_FC = rows(("fc.weight", "fc.weight"), ("fc.bias", "fc.bias"))
_EMBEDDING = {"embed_tokens.weight": "embed.weight"}

# Li et al. 2024: the first layer has no norm of its input.
EAGLE = HeadLayout(
  table=(
    *_FC,
    *_layer("", "layers.0."),
    *rows(("mlp_norm.weight", "layers.0.post_attention_layernorm.weight")),
  ),
  repeats=_EMBEDDING,
  ignored=r"layers\.0\.self_attn\.rotary_emb\.inv_freq",
)
# Li et al. 2025. `t2d` says of each of the target's ids whether d2t has it.
EAGLE3 = HeadLayout(
  table=(
    *_FC,
    *_layer("", "midlayer."),
    *rows(
      ("hidden_norm.weight", "midlayer.hidden_norm.weight"),
      ("embed_norm.weight", "midlayer.input_layernorm.weight"),
      ("mlp_norm.weight", "midlayer.post_attention_layernorm.weight"),
      ("norm.weight", "norm.weight"),
      ("head.weight", HEAD),
    ),
  ),
  repeats=_EMBEDDING,
  ignored=r"t2d|midlayer\.self_attn\.rotary_emb\.inv_freq",
)


def medusa(blocks: int, prefix: str) -> HeadLayout:
  """Medusa's heads, of so many blocks each (Cai et al. 2024).

  Behind its blocks a head has its table. Files of heads alone have bare
  numbers; within a whole model's, the prefix stands before them.
  """
  return HeadLayout(
    table=below(
      *("heads.{i}.", prefix + "{i}."),
      rows(
        ("blocks.{j}.weight", "{j}.linear.weight"),
        ("blocks.{j}.bias", "{j}.linear.bias"),
        ("head.weight", f"{blocks}.weight"),
      ),
    ),
  )


# MiMo-7B's modules, in its own checkpoint or in a folder of theirs.
MTP = HeadLayout(
  table=below(
    *("depths.{i}.", "model.mtp_layers.{i}."),
    (
      *rows(
        ("hidden_norm.weight", "hidden_layernorm.weight"),
        ("token_norm.weight", "token_layernorm.weight"),
        ("proj.weight", "input_proj.weight"),
        ("layer.attention_norm.weight", "input_layernorm.weight"),
        ("layer.mlp_norm.weight", "post_attention_layernorm.weight"),
        ("norm.weight", "final_layernorm.weight"),
      ),
      *_layer("layer.", ""),
    ),
  ),
)
# Beside the target's own tensors, which are the target's loader's.
MTP_WITHIN = dataclasses.replace(MTP, ignored=r"(?!model\.mtp_layers\.).*")


def of_model(config: DecoderConfig) -> HeadLayout:
  """A whole model's, for a draft that takes its ends from the target."""
  layout = keymaps.layout_of(config)
  return HeadLayout(table=layout.table, ignored=layout.ignored)
