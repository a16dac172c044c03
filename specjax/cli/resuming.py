"""Whether and where a job goes on with what its output holds."""

import dataclasses
from collections.abc import Mapping, Sequence

from specjax.cli import settings as settings_lib
from specjax.jobs import manifest, output, prompts, resume

# Settings that shape no answer. The models count by what is in their files.
FREE = frozenset(
  {
    "model",
    "draft_model",
    "slots",
    # On another mesh rows are the same up to rounding, as with other slots.
    "mesh",
    "strategy",
    "draft_strategy",
    "cache_sharding",
    "pad_heads",
    "compilation_cache",
    "max_memory",
    "profile_dir",
    "coordinator_address",
    "num_processes",
    "process_id",
    "prompt",
    "prompts",
    "output",
    "overwrite",
    "resume",
    "stream",
  }
)


class Plan:
  """How a job starts.

  Attributes:
    done: rows that are there already.
    fresh: whether the output is begun anew.
  """

  def __init__(
    self,
    settings: settings_lib.Settings,
    rows: Sequence[prompts.Row | prompts.BadRow],
    digest: str,
    out: output.Output,
  ):
    """Looks at the output and compares its manifest with this job.

    Args:
      settings: of this job.
      rows: the prompt file, read.
      digest: of the prompt file.
      out: claimed; nothing is changed in it.

    Raises:
      ValueError: it is another job's, or holds what is no answer of this one.
    """
    shaping = dataclasses.asdict(settings) | {"seed": settings.seed or 0}
    self._job = manifest.Manifest(
      prompts=digest,
      rows=len(rows),
      settings={k: v for k, v in shaping.items() if k not in FREE},
    )
    self._out = out
    self._before: manifest.Manifest | None = None
    self.done = resume.NOTHING
    self.fresh = not (settings.resume and out.holds_something())
    if self.fresh:
      return
    self._before = self._manifest()
    self._compare(self._before)
    self.done = resume.look(out.read(), rows)

  def models(self, digests: Mapping[str, str]) -> None:
    """Compares the models, by role, as soon as they are known.

    Raises:
      ValueError: the output was begun with others.
    """
    self._job = dataclasses.replace(self._job, models=digests)
    if self._before is not None:
      self._compare(self._before)

  def start(self) -> None:
    """Begins the output or drops what is half-written in it."""
    if self.fresh:
      self._out.begin(self._job.to_bytes())
    else:
      self._out.resume()

  def _manifest(self) -> manifest.Manifest:
    data = self._out.manifest()
    name = f"{self._out.name}{output.MANIFEST}"
    anew = "--overwrite starts anew"
    if data is None:
      raise ValueError(
        f"--resume: {name} is missing, which says how {self._out.name} was"
        f" made; put it back, or {anew}"
      )
    try:
      return manifest.from_bytes(data)
    except ValueError as error:
      raise ValueError(f"--resume: {name}: {error}; {anew}") from None

  def _compare(self, before: manifest.Manifest) -> None:
    found = manifest.differences(before, self._job)
    if found:
      raise ValueError(
        f"--resume: {self._out.name} was begun with {'; '.join(found)}; give"
        " the same again, name another --output, or start anew with --overwrite"
      )
