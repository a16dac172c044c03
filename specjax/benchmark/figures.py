"""The figures of a run, each defined once, and the formulas behind them."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from specjax.benchmark import answers as answers_lib
from specjax.benchmark.answers import Sample
from specjax.benchmark.costs import Costs


def _figure(definition: str) -> Any:
  return dataclasses.field(
    default=None, metadata={"definition": " ".join(definition.split())}
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
  """One run's figures: medians over rounds, None where there are none.

  What each one is stands beside it, and so in every JSON file.
  """

  tokens_per_s: float | None = _figure(
    """Tokens a second of decoding, all prompts together: tokens after each
    answer's first step over the time from its first token to its last. With
    several slots, from the first token of any row to the last of all."""
  )
  tokens_per_s_with_prompt: float | None = _figure(
    "All tokens over the time from the request to the last token."
  )
  tokens_per_step: float | None = _figure(
    """Tokens after each answer's first step over the steps after it, to
    belong to tokens_per_s; 1 for plain decoding, at most C + 1."""
  )
  acceptance: float | None = _figure(
    """Share of drafted tokens that the target accepted, in themselves or
    through a sibling."""
  )
  acceptance_per_position: tuple[float | None, ...] | None = _figure(
    """The same by place in the proposal; a place counts as drafted also where
    an earlier one was rejected."""
  )
  alpha: float | None = _figure(
    """Leviathan et al.'s: the acceptance of a token whose predecessors in the
    proposal were accepted."""
  )
  draft_cost: float | None = _figure(
    """c: the proposer's ingest and draft alone, over C and over a plain step:
    what one drafted token costs."""
  )
  speedup: float | None = _figure(
    """tokens_per_s over that of plain decoding in the same round: total
    tokens over total time. For a peer, over our plain decoding too."""
  )
  speedup_with_prompt: float | None = _figure(
    "The same of tokens_per_s_with_prompt."
  )
  spec_bench_speedup: float | None = _figure(
    """Mean over prompts of the ratio of their own decoding tokens a second to
    those of plain decoding in the same round."""
  )
  verify_cost: float | None = _figure(
    """v: the target's forward pass alone over a step's tokens (C + 1, and M
    siblings), over a plain step. A plain step is the plain program with
    sampling and the host's reading of the result, as plain decoding runs it;
    both at the run's mean live length, taken in turns."""
  )
  wide_share: float | None = _figure(
    """w: share of steps after the first that drafted. The others ran the plain
    program, because nothing was promising."""
  )
  predicted_speedup: float | None = _figure(
    """tokens_per_step / (w (C c + v) + 1 - w), which is
    tokens_per_step / (C c + v) where every step drafts: the speed-up if a
    drafting step cost its two models' passes and nothing else."""
  )
  paper_speedup: float | None = _figure(
    """(1 - a^(C+1)) / ((1 - a)(C c + 1)) (Leviathan et al. 2023, theorem 3.8)
    with a for alpha; a pass over C + 1 tokens is taken to cost as much as one
    over a single token, and every step to draft."""
  )
  efficiency: float | None = _figure(
    """speedup over predicted_speedup. As c and v divide by the same plain
    step, it is the two models' passes over the time of the steps: what is
    missing to 1 is sampling, verification and the loop around them. For plain
    decoding, the pass over one token over the plain step."""
  )
  compiles_after_warmup: int | None = _figure(
    "Programs compiled while prompts were answered, all rounds; must be 0."
  )
  startup_s: float | None = _figure(
    """Seconds to load the weights and to compile all programs, from whatever
    the compilation cache held. For a peer, to load the model."""
  )
  bandwidth_fraction: float | None = _figure(
    """Bytes of weights and live cache that a step reads, over the step's time,
    over the machine's read bandwidth measured in the same run. Weights: all
    that a pass multiplies by, once a pass; an embedding table only where the
    head is tied to it. Cache: keys and values of live tokens in the blocks of
    attention as read. A drafting step adds its draft's C passes."""
  )
  tokens_equal: float | None = _figure(
    """Share of positions at which the answer is the plain run's, of the longer
    of both; greedy only. After a first difference by rounding the rest of an
    answer may be another."""
  )


DEFINITIONS = {
  field.name: field.metadata["definition"]
  for field in dataclasses.fields(Figures)
}


def paper_acceptance(
  drafted_at: Sequence[int], accepted_at: Sequence[int]
) -> float | None:
  """The paper's alpha: acceptance of tokens whose predecessors were accepted.

  A place was reached as often as the one before was accepted; a proposal that
  ended there was not judged, so drafted_at bounds it.
  """
  before = (drafted_at[0] if drafted_at else 0, *accepted_at)
  reached = sum(map(min, drafted_at, before))
  return sum(accepted_at) / reached if reached else None


def paper_speedup(alpha: float, lookahead: int, draft_cost: float) -> float:
  """Leviathan et al. 2023, theorem 3.8."""
  gain = lookahead + 1.0
  if alpha < 1:
    gain = (1 - alpha ** (lookahead + 1)) / (1 - alpha)
  return gain / (lookahead * draft_cost + 1)


def predicted_speedup(
  tokens_per_step: float,
  lookahead: int,
  draft_cost: float,
  verify_cost: float,
  wide_share: float = 1.0,
) -> float:
  """What speculation would gain if the models' passes were all there is."""
  wide = lookahead * draft_cost + verify_cost
  return tokens_per_step / (wide_share * wide + 1 - wide_share)


def equal_share(
  left: Sequence[answers_lib.Answer], right: Sequence[answers_lib.Answer]
) -> float | None:
  """Share of positions with the same token, of the longer of both answers."""
  same = total = 0
  for a, b in zip(left, right, strict=True):
    total += max(len(a.token_ids), len(b.token_ids))
    same += sum(x == y for x, y in zip(a.token_ids, b.token_ids, strict=False))
  return same / total if total else None


def ratios(
  above: Sequence[Sample], below: Sequence[Sample], part: str = "decode"
) -> list[float]:
  """Of each round both have, the ratio of their rates (decode or whole)."""
  found = []
  for a, b in zip(above, below, strict=False):
    up = answers_lib.rate(getattr(a, part))
    down = answers_lib.rate(getattr(b, part))
    if up and down:
      found.append(up / down)
  return found


def compute(
  samples: Sequence[Sample],
  plain: Sequence[Sample],
  *,
  lookahead: int | None,
  costs: Costs | None,
  step_bytes: float | None,
  bandwidth: float | None,
  startup_s: float,
  greedy: bool,
  is_peer: bool = False,
) -> Figures:
  """The figures of a run.

  Args:
    samples: of the run, a round each.
    plain: of plain decoding, in the same rounds.
    lookahead: C; None for plain decoding and peers.
    costs: what its parts cost alone; None where they were not measured.
    step_bytes: bytes that its mean step reads.
    bandwidth: bytes a second the machine can read.
    startup_s: seconds to load and compile.
    greedy: whether answers can be compared.
    is_peer: whether nothing is known of its inside.
  """
  if not samples:
    return Figures(startup_s=startup_s)
  apart = not samples[0].together
  every = [answer for sample in samples for answer in sample.answers]
  rates = [answers_lib.rate(sample.decode) for sample in samples]
  tokens = sum(answer.after_first for answer in every)
  steps = None
  if all(answer.steps is not None for answer in every):
    steps = sum(answer.steps - 1 for answer in every)
  per_step = tokens / steps if steps else None
  gain = _median(ratios(samples, plain))

  accepted = share = alpha = places = c = v = paper = predicted = None
  if lookahead:
    drafted_at = _total([answer.drafted_at for answer in every])
    accepted_at = _total([answer.accepted_at for answer in every])
    pairs = list(zip(accepted_at, drafted_at, strict=True))
    places = tuple(_over(a, d) for a, d in pairs)
    accepted = _over(sum(accepted_at), sum(drafted_at))
    alpha = paper_acceptance(drafted_at, accepted_at)
    if apart and steps:
      first = sum(answer.first_drafted for answer in every)
      share = (drafted_at[0] - first) / steps
    if costs is not None:
      c = costs.draft_s / lookahead / costs.plain_step_s
      v = costs.wide_pass_s / costs.plain_step_s
      if alpha is not None:
        paper = paper_speedup(alpha, lookahead, c)
      if share is not None:
        predicted = predicted_speedup(per_step, lookahead, c, v, share)
  efficiency = None
  if predicted and gain:
    efficiency = gain / predicted
  elif costs is not None and not lookahead and not is_peer:
    efficiency = costs.plain_pass_s / costs.plain_step_s

  fraction = None
  if step_bytes and bandwidth and apart and steps:
    seconds = [
      sample.decode[1] / sum(answer.steps - 1 for answer in sample.answers)
      for sample in samples
    ]
    fraction = step_bytes / statistics.median(seconds) / bandwidth
  return Figures(
    tokens_per_s=_median(rates),
    tokens_per_s_with_prompt=_median(
      [answers_lib.rate(sample.whole) for sample in samples]
    ),
    tokens_per_step=per_step,
    acceptance=accepted,
    acceptance_per_position=places,
    alpha=alpha,
    draft_cost=c,
    speedup=gain,
    speedup_with_prompt=_median(ratios(samples, plain, "whole")),
    spec_bench_speedup=_median(
      [_by_prompt(a, b) for a, b in zip(samples, plain, strict=False)]
    ),
    verify_cost=v,
    wide_share=share,
    predicted_speedup=predicted,
    paper_speedup=paper,
    efficiency=efficiency,
    compiles_after_warmup=(
      None if is_peer else sum(sample.compiles for sample in samples)
    ),
    startup_s=startup_s,
    bandwidth_fraction=fraction,
    tokens_equal=(
      equal_share(samples[-1].answers, plain[-1].answers)
      if greedy and plain
      else None
    ),
  )


def _by_prompt(run: Sample, plain: Sample) -> float | None:
  """Mean over prompts of the ratios of their own rates."""
  found = []
  for a, b in zip(run.answers, plain.answers, strict=True):
    up = answers_lib.rate((a.after_first, a.decode_s))
    down = answers_lib.rate((b.after_first, b.decode_s))
    if up and down:
      found.append(up / down)
  return statistics.fmean(found) if found else None


def _median(values: Sequence[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return statistics.median(known) if known else None


def _over(part: float, whole: float) -> float | None:
  return part / whole if whole else None


def _total(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
  return tuple(map(sum, zip(*counts, strict=True)))
