"""Checkpoints of a run by Orbax: parameters, optimizer's state and step.

The order of the data is a function of the seed and the step, so the step is all
that has to be kept of it: a run that goes on does what it would have done.
"""

import os
import pathlib
from typing import Any

import jax


class Checkpoints:
  """The checkpoints of a run's folder, the newest ones kept.

  A save that is killed leaves a folder that no run takes for a checkpoint.
  """

  def __init__(self, folder: os.PathLike | str, *, keep: int = 2):
    """Opens the folder, which is made if it is not there."""
    import orbax.checkpoint as ocp

    self._ocp = ocp
    self.folder = pathlib.Path(folder).absolute()
    self._manager = ocp.CheckpointManager(
      self.folder,
      options=ocp.CheckpointManagerOptions(
        max_to_keep=keep, cleanup_tmp_directories=True
      ),
    )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._manager.close()

  @property
  def latest(self) -> int | None:
    """The newest step that is kept whole; None where there is none."""
    return self._manager.latest_step()

  def save(self, step: int, state: Any) -> None:
    """Writes a state; in the background, where devices have own memory."""
    if step == self.latest:
      return
    self._manager.save(step, args=self._ocp.args.StandardSave(state))
    if jax.default_backend() == "cpu":
      # What is written is the arrays' own memory, which the next step reuses.
      self.wait()

  def restore(self, like: Any) -> Any:
    """The newest state.

    Args:
      like: a state of the same shapes, as arrays: says where each lies.

    Raises:
      ValueError: there is none, or it is of other shapes.
    """
    step = self.latest
    if step is None:
      raise ValueError(f"{self.folder}: no checkpoint in it")
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
      like,
    )
    try:
      return self._manager.restore(
        step, args=self._ocp.args.StandardRestore(shapes)
      )
    except Exception as error:  # Orbax raises many kinds
      line = next(iter(str(error).splitlines()), type(error).__name__)
      raise ValueError(
        f"{self.folder / str(step)}: damaged, or of another run ({line});"
        " remove it to go on from the one before"
      ) from None

  def wait(self) -> None:
    """Returns when everything is written."""
    self._manager.wait_until_finished()
