"""The mesh: all devices of all processes, laid out along named axes."""

import math
from collections.abc import Mapping, Sequence

import jax

from specjax.sharding.axes import DATA, MODEL
from specjax.sharding.shape import parse, spell


def make(
  shape: str | Mapping[str, int],
  devices: Sequence[jax.Device] | None = None,
) -> jax.sharding.Mesh:
  """A mesh over devices; `data` and `model` are there, if only of size 1.

  Args:
    shape: axis to size, the slowest first, or a text for `parse`.
    devices: all of all processes unless given.

  Raises:
    ValueError: the sizes' product is not the number of devices.
  """
  shape = parse(shape) if isinstance(shape, str) else dict(shape)
  for name, size in shape.items():
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
      raise ValueError(
        f"--mesh: axis {name!r} is {size!r}; give a whole number >= 1"
      )
  spelled = spell(shape)
  count = jax.device_count() if devices is None else len(devices)
  if math.prod(shape.values()) != count:
    kind = jax.devices()[0].platform if devices is None else "given"
    raise ValueError(
      f"--mesh={spelled} is {math.prod(shape.values())} devices, but there are "
      f"{count} ({kind}, in {jax.process_count()} processes); give sizes whose "
      f"product is {count}, as in model:{count}"
    )
  for name in (MODEL, DATA):
    shape.setdefault(name, 1)
  return jax.make_mesh(
    tuple(shape.values()),
    tuple(shape),
    axis_types=(jax.sharding.AxisType.Auto,) * len(shape),
    devices=devices,
  )
