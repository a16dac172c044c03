"""Which Hugging Face tensor is which of our parameters, as one table.

A row names a parameter path, the tensor's name, and the transform between
their shapes; `{i}` is the layer. The letters are DESIGN.md's glossary.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transform:
  """A change of shape that keeps the order of the elements.

  Attributes:
    name: the change, from the file's axes to ours.
    file_shape: the shape in the file, for our shape.
  """

  name: str
  file_shape: Callable[[Shape], Shape]


AS_IS = Transform(name="as it is", file_shape=lambda shape: shape)
SPLIT_ROWS = Transform(
  name="(N H) D → N H D",
  file_shape=lambda shape: (math.prod(shape[:2]), shape[2]),
)
SPLIT_COLUMNS = Transform(
  name="D (N H) → D N H",
  file_shape=lambda shape: (shape[0], math.prod(shape[1:])),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One row of the table; the attributes are its columns."""

  path: str
  name: str
  transform: Transform = AS_IS


_LAYER = "model.layers.{i}"
DECODER = (
  Row(path="embed.weight", name="model.embed_tokens.weight"),
  Row(
    path="layers.{i}.attention_norm.weight",
    name=f"{_LAYER}.input_layernorm.weight",
  ),
  Row(
    path="layers.{i}.attention.q.weight",
    name=f"{_LAYER}.self_attn.q_proj.weight",
    transform=SPLIT_ROWS,
  ),
  Row(
    path="layers.{i}.attention.k.weight",
    name=f"{_LAYER}.self_attn.k_proj.weight",
    transform=SPLIT_ROWS,
  ),
  Row(
    path="layers.{i}.attention.v.weight",
    name=f"{_LAYER}.self_attn.v_proj.weight",
    transform=SPLIT_ROWS,
  ),
  Row(
    path="layers.{i}.attention.o.weight",
    name=f"{_LAYER}.self_attn.o_proj.weight",
    transform=SPLIT_COLUMNS,
  ),
  Row(
    path="layers.{i}.mlp_norm.weight",
    name=f"{_LAYER}.post_attention_layernorm.weight",
  ),
  Row(path="layers.{i}.mlp.gate.weight", name=f"{_LAYER}.mlp.gate_proj.weight"),
  Row(path="layers.{i}.mlp.up.weight", name=f"{_LAYER}.mlp.up_proj.weight"),
  Row(path="layers.{i}.mlp.down.weight", name=f"{_LAYER}.mlp.down_proj.weight"),
  Row(path="norm.weight", name="model.norm.weight"),
  Row(path="head.weight", name="lm_head.weight"),
)

# Tensors that some files carry beside the weights: old Llama checkpoints
# stored the rotation's frequencies, which the config determines.
IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


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
  """

  path: str
  shape: Shape
  names: tuple[str, ...]
  stacked: bool
  file_shape: Shape
  transform: Transform


def sources(
  paths: Sequence[str],
  shapes: Sequence[Shape],
  *,
  table: Sequence[Row] = DECODER,
) -> list[Source]:
  """Looks every parameter of a model up in the table.

  Args:
    paths: parameter paths; `layers.3.…` or, with scanned layers, `layers.…`.
    shapes: the parameters' shapes, in the same order.
    table: the rows to look in.

  Raises:
    KeyError: the table has no row for a path.
  """
  rows = {row.path: row for row in table}
  found = []
  for path, shape in zip(paths, shapes, strict=True):
    layer = re.match(r"layers\.(\d+)\.", path)
    stacked = path.startswith("layers.") and layer is None
    template = re.sub(r"^layers\.(\d+\.)?", "layers.{i}.", path)
    if template not in rows:
      raise KeyError(f"no Hugging Face tensor is known for parameter {path!r}")
    row = rows[template]
    layers = range(shape[0]) if stacked else [layer.group(1) if layer else ""]
    own_shape = tuple(shape[1:]) if stacked else tuple(shape)
    found.append(
      Source(
        path=path,
        shape=tuple(shape),
        names=tuple(row.name.replace("{i}", str(i)) for i in layers),
        stacked=stacked,
        file_shape=row.transform.file_shape(own_shape),
        transform=row.transform,
      )
    )
  return found
