"""Which Hugging Face tensor is which of our parameters, as tables.

A row names a parameter path, the tensor's name, and the transform between
them; `{i}` is the layer, or whatever a name's first number counts, and `{j}`
what its second does. The letters are DESIGN.md's glossary.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

Shape = tuple[int, ...]


_LETTERS = "ij"  # of the first and second number in a name
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
PART = -1  # in `Transform.axes`: which of the parts that share the tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transform:
  """How a tensor of a file and a parameter (or several) hold the same numbers.

  Attributes:
    name: the change, from the file's axes to ours.
    axes: of each axis of the file, which of ours it is made of, outer first;
      None where they are ours.
    parts: how many parameters share the tensor.
  """

  name: str
  axes: tuple[tuple[int, ...], ...] | None = None
  parts: int = 1

  def order(self, rank: int) -> tuple[int, ...]:
    """Our axes, and PART, in the order in which the file has them."""
    if self.axes is None:
      return tuple(range(rank))
    return tuple(axis for folded in self.axes for axis in folded)

  def view(self, shape: Shape) -> Shape:
    """The file's tensor with an axis for each of `order`, for our shape."""
    order = self.order(len(shape))
    return tuple(self.parts if a == PART else shape[a] for a in order)

  def file_shape(self, shape: Shape) -> Shape:
    """The shape in the file, for our shape."""
    if self.axes is None:
      return tuple(shape)
    sizes = (*shape, self.parts)  # PART is the last
    return tuple(
      math.prod(sizes[axis] for axis in folded) for folded in self.axes
    )

  def to_file(self, values: Sequence[np.ndarray]) -> np.ndarray:
    """The file's tensor, of all parameters that share it."""
    shape = values[0].shape
    whole = np.stack(values, axis=-1) if self.parts > 1 else values[0]
    whole = whole.transpose(self.order(len(shape)))
    return whole.reshape(self.file_shape(shape))


AS_IS = Transform(name="as it is")
SPLIT_ROWS = Transform(name="(N H) D → N H D", axes=((0, 1), (2,)))
SPLIT_COLUMNS = Transform(name="D (N H) → D N H", axes=((0,), (1, 2)))
SPLIT_BIAS = Transform(name="(N H) → N H", axes=((0, 1),))
# GPT-2's products are (in, out), and query, key and value lie in one tensor.
TRANSPOSE = Transform(name="in out → out in", axes=((1,), (0,)))
TRANSPOSE_COLUMNS = Transform(name="(N H) D → D N H", axes=((1, 2), (0,)))
THIRD_OF_COLUMNS = Transform(
  name="D (3 N H) → 3 of N H D", axes=((2,), (PART, 0, 1)), parts=3
)
THIRD_OF_BIAS = Transform(
  name="(3 N H) → 3 of N H", axes=((PART, 0, 1),), parts=3
)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
  """How the files of an architecture are laid out.

  Attributes:
    table: its rows.
    ignored: names of tensors that may be there and are not read.
    aliases: other spellings of names, as patterns and what they stand for.
  """

  table: tuple[Row, ...]
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
# images are no part of a text model.
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
}


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
    paths: parameter paths; `layers.3.…` or, with scanned layers, `layers.…`.
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
    stacked = path.startswith("layers.") and not numbers
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
