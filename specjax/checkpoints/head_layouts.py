"""Which tensor of a head's folder is which of our parameters, as tables.

The layouts are those in which heads are published; `keymaps` has the models'.
`{i}` and `{j}` are the first and second number in a name.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from specjax.checkpoints import keymaps
from specjax.checkpoints.keymaps import SPLIT_BIAS, SPLIT_COLUMNS, SPLIT_ROWS
from specjax.checkpoints.keymaps import Row as Row
from specjax.checkpoints.keymaps import Transform as Transform
from specjax.models.config import DecoderConfig

# Of a reduced vocabulary: the target's id of each id, less that id itself.
OFFSETS = "d2t"
_NUMBER = r"(?<=\.)\d+(?=\.)"


def rows(ours: str, theirs: str, *entries: tuple) -> tuple[Row, ...]:
  """Rows of (path, tensor, transform if any), below two prefixes."""
  return tuple(
    Row(path=ours + entry[0], name=theirs + entry[1], **_transform(entry))
    for entry in entries
  )


def _transform(entry) -> dict[str, Transform]:
  return {"transform": entry[2]} if len(entry) > 2 else {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadLayout:
  """How the files of a kind of head are laid out.

  Attributes:
    table: its rows.
    repeats: tensors that may be there and only repeat one of the target's,
      whose shape they must have: name to the target's parameter.
    ignored: names, as a pattern, of tensors that may be there and are not read.
  """

  table: tuple[Row, ...]
  repeats: Mapping[str, str] = dataclasses.field(default_factory=dict)
  ignored: str = r"(?!)"

  def says_nothing(self, name: str) -> bool:
    """Whether a tensor may be there that is no parameter."""
    return re.fullmatch(self.ignored, name) is not None


def sources(
  paths: Sequence[str], shapes: Sequence[keymaps.Shape], layout: HeadLayout
) -> list[keymaps.Source]:
  """Looks every parameter of a head up in a layout's table.

  Raises:
    KeyError: the table has no row for a path.
  """
  table = {row.path: row for row in layout.table}
  found = []
  for path, shape in zip(paths, shapes, strict=True):
    letters = {}

    def spelled(found, letters=letters):
      letter = "ij"[len(letters)]
      letters[letter] = found[0]
      return f"{{{letter}}}"

    template = re.sub(_NUMBER, spelled, path)
    if template not in table:
      raise KeyError(f"no tensor is known for the head's parameter {path!r}")
    row = table[template]
    found.append(
      keymaps.Source(
        path=path,
        shape=tuple(shape),
        names=(row.name.format(**letters),),
        stacked=False,
        file_shape=row.transform.file_shape(tuple(shape)),
        transform=row.transform,
        part=row.part,
      )
    )
  return found


# Of a decoder's layer, under the names that Llama's has.
ATTENTION = (
  ("q.weight", "q_proj.weight", SPLIT_ROWS),
  ("k.weight", "k_proj.weight", SPLIT_ROWS),
  ("v.weight", "v_proj.weight", SPLIT_ROWS),
  ("o.weight", "o_proj.weight", SPLIT_COLUMNS),
  ("q.bias", "q_proj.bias", SPLIT_BIAS),
  ("k.bias", "k_proj.bias", SPLIT_BIAS),
  ("v.bias", "v_proj.bias", SPLIT_BIAS),
  ("o.bias", "o_proj.bias"),
  ("q_norm.weight", "q_norm.weight"),
  ("k_norm.weight", "k_norm.weight"),
)
MLP = (
  ("gate.weight", "gate_proj.weight"),
  ("up.weight", "up_proj.weight"),
  ("down.weight", "down_proj.weight"),
  ("gate.bias", "gate_proj.bias"),
  ("up.bias", "up_proj.bias"),
  ("down.bias", "down_proj.bias"),
)
_EMBEDDING = {"embed_tokens.weight": "embed.weight"}

# Li et al. 2024: the first layer has no norm of its input.
EAGLE = HeadLayout(
  table=(
    *rows("fc.", "fc.", ("weight", "weight"), ("bias", "bias")),
    *rows("attention.", "layers.0.self_attn.", *ATTENTION),
    *rows("mlp.", "layers.0.mlp.", *MLP),
    *rows(
      *("", "layers.0."),
      ("mlp_norm.weight", "post_attention_layernorm.weight"),
    ),
  ),
  repeats=_EMBEDDING,
  ignored=r"layers\.0\.self_attn\.rotary_emb\.inv_freq",
)
# Li et al. 2025. `t2d` says of each of the target's ids whether d2t has it.
EAGLE3 = HeadLayout(
  table=(
    *rows("fc.", "fc.", ("weight", "weight"), ("bias", "bias")),
    *rows("attention.", "midlayer.self_attn.", *ATTENTION),
    *rows("mlp.", "midlayer.mlp.", *MLP),
    *rows(
      *("", "midlayer."),
      ("hidden_norm.weight", "hidden_norm.weight"),
      ("embed_norm.weight", "input_layernorm.weight"),
      ("mlp_norm.weight", "post_attention_layernorm.weight"),
    ),
    *rows(
      *("", ""),
      ("norm.weight", "norm.weight"),
      ("head.weight", "lm_head.weight"),
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
    table=(
      *rows(
        *("heads.{i}.blocks.{j}.", prefix + "{i}.{j}.linear."),
        *(("weight", "weight"), ("bias", "bias")),
      ),
      *rows(
        *("heads.{i}.", f"{prefix}{{i}}.{blocks}."),
        ("head.weight", "weight"),
      ),
    ),
  )


# MiMo-7B's modules, in its own checkpoint or in a folder of theirs.
MTP = HeadLayout(
  table=(
    *rows(
      *("depths.{i}.", "model.mtp_layers.{i}."),
      ("hidden_norm.weight", "hidden_layernorm.weight"),
      ("token_norm.weight", "token_layernorm.weight"),
      ("proj.weight", "input_proj.weight"),
      ("layer.attention_norm.weight", "input_layernorm.weight"),
      ("layer.mlp_norm.weight", "post_attention_layernorm.weight"),
      ("norm.weight", "final_layernorm.weight"),
    ),
    *rows(
      *("depths.{i}.layer.attention.", "model.mtp_layers.{i}.self_attn."),
      *ATTENTION,
    ),
    *rows("depths.{i}.layer.mlp.", "model.mtp_layers.{i}.mlp.", *MLP),
  ),
)
# Beside the target's own tensors, which are the target's loader's.
MTP_WITHIN = dataclasses.replace(MTP, ignored=r"(?!model\.mtp_layers\.).*")


def of_model(config: DecoderConfig) -> HeadLayout:
  """A whole model's, for a draft that takes its ends from the target."""
  layout = keymaps.LAYOUTS[config.architecture]
  return HeadLayout(table=layout.table, ignored=layout.ignored)
