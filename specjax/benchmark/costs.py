"""What the parts of a step cost, measured apart from it and in turns."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping

from specjax.benchmark.probe import Probe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
  """Medians of seconds, all at one live length.

  Attributes:
    plain_step_s: a step of plain decoding, sampling and host's reading
      included.
    plain_pass_s: the target's pass over one token.
    wide_pass_s: its pass over 1 + C + M tokens; the plain pass where C is 0.
    draft_s: the proposer's ingest and draft; 0 where there is none.
    wide_step_s: a step of the speculating program; the plain step where C
      is 0.
  """

  plain_step_s: float
  plain_pass_s: float
  wide_pass_s: float
  draft_s: float
  wide_step_s: float


class Meter:
  """Times the parts of several runs in turns, so that drift hits them alike."""

  def __init__(
    self,
    plain: Probe,
    probes: Mapping[str, Probe],
    *,
    clock: Callable[[], float] = time.perf_counter,
  ):
    """Runs every part once, which compiles it.

    Args:
      plain: of the engine that decodes plainly.
      probes: name of each speculating run to the probe of its engine.
      clock: seconds.
    """
    self._clock = clock
    self._names = tuple(probes)
    self._widths = {name: p.width for name, p in probes.items()}
    # All passes on one state: what differs is their width alone.
    self._parts: dict[object, tuple[Probe, Callable[[], None]]] = {
      "step": (plain, plain.plain_step)
    }
    for width in sorted({1, *self._widths.values()}):
      self._parts[width] = (plain, lambda width=width: plain.forward(width))
    for name, probe in probes.items():
      self._parts[name, "draft"] = (probe, probe.draft)
      self._parts[name, "step"] = (probe, probe.wide_step)
    self._seconds: dict[object, list[float]] = {key: [] for key in self._parts}
    for probe, part in self._parts.values():
      probe.prime()
      part()

  def measure(self, repeats: int) -> None:
    """Times every part `repeats` times."""
    for _ in range(repeats):
      for key, (probe, part) in self._parts.items():
        probe.prime()
        start = self._clock()
        part()
        self._seconds[key].append(self._clock() - start)

  def costs(self, name: str | None = None) -> Costs | None:
    """What has been measured so far for a run; of plain decoding if None."""
    if not self._seconds["step"]:
      return None
    median = {k: statistics.median(v) for k, v in self._seconds.items()}
    wide = name is not None
    return Costs(
      plain_step_s=median["step"],
      plain_pass_s=median[1],
      wide_pass_s=median[self._widths[name]] if wide else median[1],
      draft_s=median[name, "draft"] if wide else 0.0,
      wide_step_s=median[name, "step"] if wide else median["step"],
    )
