"""Which Hugging Face tensor is which of our parameters, as tables.

A row names a parameter path, the tensor's name, and the transform between
them; `{i}` is the layer, or whatever a name's first number counts, and `{j}`
what its second does. The letters are DESIGN.md's glossary.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from specjax.checkpoints.transforms import (
  AS_IS,
  SPLIT_BIAS,
  SPLIT_COLUMNS,
  SPLIT_ROWS,
  THIRD_OF_BIAS,
  THIRD_OF_COLUMNS,
  TRANSPOSE,
  TRANSPOSE_COLUMNS,
  Shape,
  Transform,
)
from specjax.models.config import DecoderConfig

_LETTERS = "ij"  # of the first and second number in a name
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_STACK = re.compile(r"(encoder\.)?layers\.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One row of a table; the attributes are its columns.

  Attributes:
    path: the parameter.
    name: the tensor.
    transform: how the two belong together.
    part: which of the tensor's parts the parameter is.
  """

  path: str
  name: str
  transform: Transform = AS_IS
  part: int = 0


_COLUMNS = tuple(field.name for field in dataclasses.fields(Row))


def rows(*entries: tuple) -> tuple[Row, ...]:
  """Rows of (path, tensor, and transform and part if they say so)."""
  return tuple(Row(**dict(zip(_COLUMNS, e, strict=False))) for e in entries)


def below(ours: str, theirs: str, table: Sequence[Row]) -> tuple[Row, ...]:
  """Rows with prefixes before both names."""
  return tuple(
    dataclasses.replace(row, path=ours + row.path, name=theirs + row.name)
    for row in table
  )


# Of a layer, under the names that Llama's has.
ATTENTION = rows(
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
MLP = rows(
  ("gate.weight", "gate_proj.weight"),
  ("up.weight", "up_proj.weight"),
  ("down.weight", "down_proj.weight"),
  ("gate.bias", "gate_proj.bias"),
  ("up.bias", "up_proj.bias"),
  ("down.bias", "down_proj.bias"),
)
_IN_LAYERS = (
  *below("layers.{i}.attention.", "model.layers.{i}.self_attn.", ATTENTION),
  *below("layers.{i}.mlp.", "model.layers.{i}.mlp.", MLP),
)
_ENDS = rows(
  ("embed.weight", "model.embed_tokens.weight"),
  ("norm.weight", "model.norm.weight"),
  ("head.weight", "lm_head.weight"),
)
# Llama, Mistral, Qwen 2 and 3, Chinchilla.
DECODER = (
  *_ENDS,
  *_IN_LAYERS,
  *below(
    "layers.{i}.",
    "model.layers.{i}.",
    rows(
      ("attention_norm.weight", "input_layernorm.weight"),
      ("mlp_norm.weight", "post_attention_layernorm.weight"),
    ),
  ),
)
GEMMA = (
  *_ENDS,
  *_IN_LAYERS,
  *below(
    "layers.{i}.",
    "model.layers.{i}.",
    rows(
      ("attention_norm.weight", "input_layernorm.weight"),
      ("attention_post_norm.weight", "post_attention_layernorm.weight"),
      ("mlp_norm.weight", "pre_feedforward_layernorm.weight"),
      ("mlp_post_norm.weight", "post_feedforward_layernorm.weight"),
    ),
  ),
)
# The text part of a model that also reads images.
GEMMA_TEXT = tuple(
  dataclasses.replace(row, name=f"language_model.{row.name}") for row in GEMMA
)
GPT2 = (
  *rows(
    ("embed.weight", "transformer.wte.weight"),
    ("position.weight", "transformer.wpe.weight"),
    ("norm.weight", "transformer.ln_f.weight"),
    ("norm.bias", "transformer.ln_f.bias"),
    ("head.weight", "lm_head.weight"),
  ),
  *below(
    "layers.{i}.",
    "transformer.h.{i}.",
    rows(
      ("attention_norm.weight", "ln_1.weight"),
      ("attention_norm.bias", "ln_1.bias"),
      ("attention.q.weight", "attn.c_attn.weight", THIRD_OF_COLUMNS, 0),
      ("attention.k.weight", "attn.c_attn.weight", THIRD_OF_COLUMNS, 1),
      ("attention.v.weight", "attn.c_attn.weight", THIRD_OF_COLUMNS, 2),
      ("attention.q.bias", "attn.c_attn.bias", THIRD_OF_BIAS, 0),
      ("attention.k.bias", "attn.c_attn.bias", THIRD_OF_BIAS, 1),
      ("attention.v.bias", "attn.c_attn.bias", THIRD_OF_BIAS, 2),
      ("attention.o.weight", "attn.c_proj.weight", TRANSPOSE_COLUMNS),
      ("attention.o.bias", "attn.c_proj.bias"),
      ("mlp_norm.weight", "ln_2.weight"),
      ("mlp_norm.bias", "ln_2.bias"),
      ("mlp.up.weight", "mlp.c_fc.weight", TRANSPOSE),
      ("mlp.up.bias", "mlp.c_fc.bias"),
      ("mlp.down.weight", "mlp.c_proj.weight", TRANSPOSE),
      ("mlp.down.bias", "mlp.c_proj.bias"),
    ),
  ),
)
_T5_ATTENTION = rows(
  ("q.weight", "q.weight", SPLIT_ROWS),
  ("k.weight", "k.weight", SPLIT_ROWS),
  ("v.weight", "v.weight", SPLIT_ROWS),
  ("o.weight", "o.weight", SPLIT_COLUMNS),
)
_T5_GATED = rows(
  ("gate.weight", "wi_0.weight"),
  ("up.weight", "wi_1.weight"),
  ("down.weight", "wo.weight"),
)
_T5_PLAIN = rows(("up.weight", "wi.weight"), ("down.weight", "wo.weight"))


def _t5_layers(ours: str, side: str, mlp: Sequence[Row]) -> tuple[Row, ...]:
  """Of encoder or decoder; the latter's layers attend to the source too."""
  parts = [("attention", "SelfAttention"), ("mlp", "DenseReluDense")]
  if side == "decoder":
    parts.insert(1, ("cross", "EncDecAttention"))
  found = rows(
    (f"{ours}norm.weight", f"{side}.final_layer_norm.weight"),
    (
      f"{ours}relative.weight",
      f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    ),
  )
  for place, (part, theirs) in enumerate(parts):
    at = f"{side}.block.{{i}}.layer.{place}."
    found += below(
      f"{ours}layers.{{i}}.{part}.",
      f"{at}{theirs}.",
      mlp if part == "mlp" else _T5_ATTENTION,
    )
    norm = f"{ours}layers.{{i}}.{part}_norm.weight"
    found += rows((norm, f"{at}layer_norm.weight"))
  return found


def _t5(mlp: Sequence[Row]) -> tuple[Row, ...]:
  return (
    *rows(("embed.weight", "shared.weight"), ("head.weight", "lm_head.weight")),
    *_t5_layers("", "decoder", mlp),
    *_t5_layers("encoder.", "encoder", mlp),
  )


T5, T5_PLAIN = _t5(_T5_GATED), _t5(_T5_PLAIN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
  """How the files of an architecture are laid out.

  Attributes:
    table: its rows.
    plain: the rows where the MLP is not gated, if they are others.
    ignored: names of tensors that may be there and are not read.
    aliases: other spellings of names, as patterns and what they stand for.
  """

  table: tuple[Row, ...]
  plain: tuple[Row, ...] | None = None
  ignored: str = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
  aliases: tuple[tuple[str, str], ...] = ()

  def name_of(self, path: str) -> str:
    """The tensor of a parameter outside the layers."""
    return next(row.name for row in self.table if row.path == path)

  def says_nothing(self, name: str) -> bool:
    """Whether a tensor may be there that is no parameter."""
    return re.fullmatch(self.ignored, name) is not None

  def renamed(self, names: Sequence[str]) -> dict[str, str]:
    """The names as the table spells them, each of another of the `names`.

    A name whose spelling is taken keeps its own: the file has the tensor
    twice, and one of them is unexpected.
    """
    taken, found = set(names), {}
    for name in names:
      spelled = name
      for pattern, replacement in self.aliases:
        spelled = re.sub(pattern, replacement, spelled)
      spelled = name if spelled in taken else spelled
      taken.add(spelled)
      found[spelled] = name
    return found


# Old Llama checkpoints stored the rotation's frequencies, which the config
# determines (Layout.ignored); GPT-2's the causal mask; the parts that read
# images are no part of a text model. T5's repeat the embedding for each side,
# and old ones have biases by distance for the source, which are never used.
_T5_LAYOUT = Layout(
  table=T5,
  plain=T5_PLAIN,
  ignored=r"(encoder|decoder)\.embed_tokens\.weight"
  r"|decoder\.block\.0\.layer\.1\.EncDecAttention"
  r"\.relative_attention_bias\.weight",
)
LAYOUTS: Mapping[str, Layout] = {
  "LlamaForCausalLM": Layout(table=DECODER),
  "ChinchillaForCausalLM": Layout(table=DECODER),
  "MistralForCausalLM": Layout(table=DECODER),
  "Qwen2ForCausalLM": Layout(table=DECODER),
  # What predicts further tokens is the heads' loader's.
  "MiMoForCausalLM": Layout(
    table=DECODER, ignored=r"model\.mtp_layers\.\d+\..*"
  ),
  "Qwen3ForCausalLM": Layout(table=DECODER),
  "Gemma2ForCausalLM": Layout(table=GEMMA),
  "Gemma3ForCausalLM": Layout(table=GEMMA),
  "Gemma3ForConditionalGeneration": Layout(
    table=GEMMA_TEXT,
    ignored=r"(model\.)?(vision_tower|multi_modal_projector)\..*",
    aliases=(
      (r"^model\.language_model\.", "language_model.model."),
      (r"^lm_head\.", "language_model.lm_head."),
    ),
  ),
  "GPT2LMHeadModel": Layout(
    table=GPT2,
    ignored=r"transformer\.h\.\d+\.attn\.(masked_)?bias",
    aliases=((r"^(wte|wpe|h|ln_f)\.", r"transformer.\1."),),
  ),
  "T5ForConditionalGeneration": _T5_LAYOUT,
  "MT5ForConditionalGeneration": _T5_LAYOUT,
}


def layout_of(config: DecoderConfig) -> Layout:
  """How the files of a model are laid out."""
  found = LAYOUTS[config.architecture]
  if config.gated or found.plain is None:
    return found
  return dataclasses.replace(found, table=found.plain)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """Where one parameter comes from.

  Attributes:
    path: the parameter.
    shape: its shape.
    names: the tensors it is made of: one, or with scanned layers one for
      each layer, stacked along the first axis.
    stacked: whether it is such a stack.
    file_shape: the shape of each tensor in the file.
    transform: how the two shapes belong together.
    part: which of the tensor's parts it is.
  """

  path: str
  shape: Shape
  names: tuple[str, ...]
  stacked: bool
  file_shape: Shape
  transform: Transform
  part: int = 0


def sources(
  paths: Sequence[str],
  shapes: Sequence[Shape],
  *,
  table: Sequence[Row] = DECODER,
) -> list[Source]:
  """Looks every parameter of a model or a head up in the table.

  Args:
    paths: parameter paths; `layers.3.…` or, with scanned layers, `layers.…`;
      both may stand behind `encoder.`.
    shapes: the parameters' shapes, in the same order.
    table: the rows to look in.

  Raises:
    KeyError: the table has no row for a path.
  """
  by_path = {row.path: row for row in table}
  found = []
  for path, shape in zip(paths, shapes, strict=True):
    numbers = _NUMBER.findall(path)
    template = path
    for letter in _LETTERS[: len(numbers)]:
      template = _NUMBER.sub(f"{{{letter}}}", template, count=1)
    stacked = _STACK.match(path) is not None and not numbers
    if stacked:
      template = path.replace("layers.", "layers.{i}.", 1)
    if template not in by_path:
      raise KeyError(f"no tensor is known for the parameter {path!r}")
    row = by_path[template]
    each = [[str(i)] for i in range(shape[0])] if stacked else [numbers]
    own_shape = tuple(shape[1:]) if stacked else tuple(shape)
    found.append(
      Source(
        path=path,
        shape=tuple(shape),
        names=tuple(
          row.name.format(**dict(zip(_LETTERS, numbers, strict=False)))
          for numbers in each
        ),
        stacked=stacked,
        file_shape=row.transform.file_shape(own_shape),
        transform=row.transform,
        part=row.part,
      )
    )
  return found


def pieces(found: Sequence[Source]) -> dict[str, list[tuple[int, int]]]:
  """Of each tensor, what it is made of, in the order of its parts.

  Returns:
    Tensor name -> (number of the source, index of the layer in its stack).

  Raises:
    KeyError: not all parameters that share a tensor are there.
  """
  made: dict[str, dict[int, tuple[int, int]]] = {}
  for number, source in enumerate(found):
    for layer, name in enumerate(source.names):
      made.setdefault(name, {})[source.part] = (number, layer)
  for name, parts in made.items():
    parts_wanted = found[parts[min(parts)][0]].transform.parts
    if set(parts) != set(range(parts_wanted)):
      raise KeyError(f"not all parameters of the tensor {name!r} are known")
  return {
    name: [parts[part] for part in sorted(parts)]
    for name, parts in made.items()
  }
