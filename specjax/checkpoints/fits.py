"""Whether a checkpoint's tensors are exactly a model's."""

from collections.abc import Collection, Mapping, Sequence

from specjax.checkpoints.tensor_files import CheckpointError

_LISTED = 6  # offenders of one kind that an error shows


def require(
  where: object,
  wanted: Mapping[str, Sequence[int]],
  shapes: Mapping[str, Sequence[int]],
  types: Mapping[str, str],
  readable: Collection[str],
) -> None:
  """Checks tensors before any of them is read.

  Args:
    where: what the error calls the checkpoint.
    wanted: name to shape of every tensor that the model needs.
    shapes: name to shape of every tensor that is there.
    types: name to type of those.
    readable: the types that can be read.

  Raises:
    CheckpointError: tensors are missing, unexpected, or of another shape or
      type, all of them listed in one message.
  """
  there = [name for name in wanted if name in shapes]
  kinds = {
    "missing": [name for name in wanted if name not in shapes],
    "unexpected": [name for name in shapes if name not in wanted],
    "of another shape": [
      f"{name} {tuple(shapes[name])}, the config says {tuple(wanted[name])}"
      for name in there
      if tuple(shapes[name]) != tuple(wanted[name])
    ],
    f"of a type other than {', '.join(readable)}": [
      f"{name} {types[name]}" for name in there if types[name] not in readable
    ],
  }
  problems = [
    f"{len(names)} {kind}: {', '.join(sorted(names)[:_LISTED])}"
    + (", …" if len(names) > _LISTED else "")
    for kind, names in kinds.items()
    if names
  ]
  if problems:
    raise CheckpointError(
      f"{where} does not fit the model: {'; '.join(problems)}"
    )
