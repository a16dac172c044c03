"""Floating-point operations of products; of nothing else."""

import math
import re

from specjax.lab.program import Computation, Instruction


def flops(computation: Computation, instruction: Instruction) -> float:
  """2 x multiplications of a dot or convolution; 0 of others.

  On TPU every product is a convolution. Batched ones get a spatial dimension
  that is dilated so that each output meets one input: what it multiplies with
  zeros is not counted. One with a single row is no convolution but a sum of
  products.
  """
  if instruction.opcode == "reduce":
    made = computation.operand(instruction, 0)
    while made.opcode in ("convert", "bitcast", "copy"):
      made = computation.operand(made, 0)
    if made.opcode != "multiply":
      return 0.0
    return 2.0 * math.prod(made.shape.dims)
  if instruction.opcode == "dot":
    left = computation.operand(instruction, 0).shape
    dims = re.search(r"lhs_contracting_dims=\{([0-9,]*)\}", instruction.text)
    over = [int(dim) for dim in dims.group(1).split(",") if dim] if dims else []
    inside = math.prod(left.dims[dim] for dim in over)
    return 2.0 * math.prod(instruction.shape.dims) * inside
  if instruction.opcode != "convolution":
    return 0.0
  left, right, out = re.search(
    r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.text
  ).groups()
  shapes = [computation.operand(instruction, index).shape for index in (0, 1)]
  sizes = [
    dict(zip(labels, shape.dims, strict=True))
    for labels, shape in zip(
      (left, right, out), (*shapes, instruction.shape), strict=True
    )
  ]
  one, kernel, made = sizes
  total = 2.0 * made["b"] * made["f"] * kernel["i"]
  window = _window(instruction.text)
  for axis, label in enumerate(sorted(set(left) - {"b", "f"})):
    at = lambda key, default, axis=axis: (
      window[key][axis] if key in window else default
    )
    total *= _meetings(
      one[label],
      kernel[label],
      made[label],
      stride=at("stride", 1),
      low=at("pad", 0),
      spread=at("lhs_dilate", 1),
      apart=at("rhs_dilate", 1),
    )
  return total


def _window(text: str) -> dict[str, list[int]]:
  found = re.search(r"window=\{([^}]*)\}", text)
  made = {}
  for part in (found.group(1) if found else "").split():
    key, _, values = part.partition("=")
    # Of a pad the low end, before the underscore.
    made[key] = [int(value.split("_")[0]) for value in values.split("x")]
  return made


def _meetings(size, kernel, out, *, stride, low, spread, apart) -> int:
  """(output, kernel) positions of a dimension that meet an input."""
  end = (size - 1) * spread
  count = 0
  for place in range(out):
    for tap in range(kernel):
      at = place * stride - low + tap * apart
      count += 0 <= at <= end and at % spread == 0
  return count
