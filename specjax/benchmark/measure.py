"""The benchmark itself: load, warm up, go round, write down."""

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from specjax import api, heads
from specjax.benchmark import (
  answers,
  bandwidth,
  costs,
  differences,
  gguf_writer,
  peers_llama_cpp,
  peers_transformers,
  probe,
  record,
  rounds,
  runs,
  whole_draft,
)
from specjax.benchmark import plan as plan_lib
from specjax.benchmark.answers import Sample
from specjax.engine.request import Request
from specjax.proposers.base import siblings_of

_PEERS = {
  module.NAME: module for module in (peers_transformers, peers_llama_cpp)
}
# Of every part of a step, and of every way to read memory, after each round.
_REPEATS = 8
# How much of every answer decides between the ways of a peer.
_TRIAL_TOKENS = 32


def measure(
  plan: plan_lib.Plan,
  rows: Sequence[Any],
  *,
  cache: pathlib.Path,
  write: Callable[[dict[str, Any]], None],
  say: Callable[[str], None],
  bandwidth_bytes: int | None = None,
) -> dict[str, Any]:
  """Runs the benchmark.

  Args:
    plan: what is asked for.
    rows: the prompt file's.
    cache: where GGUF files are kept that had to be written.
    write: is given the record after each contestant's round, not complete.
    say: is given a line on what is going on.
    bandwidth_bytes: of the array that is read to measure the machine;
      `bandwidth.BYTES` unless given.

  Returns:
    The complete record.

  Raises:
    ValueError, FileNotFoundError, ImportError, RuntimeError: one line that
      names what is wrong and the fix.
  """
  for name in plan.peer:
    _PEERS[name].check()
  say(f"loading {plan.model} …")
  target, target_s = runs.load(plan.model, dtype=plan.dtype)
  if plan.peer and target.model.reads_source:
    raise ValueError(
      f"--peer={','.join(plan.peer)}: peers are run with decoders alone, and"
      f" {plan.model} has an encoder; leave the peer out"
    )
  built = plan_lib.build(plan, rows, target.tokenizer)
  ours, drafts = _runs(plan, target, target_s, built, say)
  groups = _peers(plan, target, drafts, built, cache, say)

  say("warming up …")
  rounds.warm_up([*ours, *(way for group in groups for way in group)], built)
  peers = [_fastest(group, built, say) for group in groups]
  entries = [
    *(_entry(run, drafts.get(run.name), plan.draft_weights) for run in ours),
    *(_peer_entry(peer) for peer in peers),
  ]
  reader = bandwidth.Meter(target.model.dtype, size=bandwidth_bytes)
  meters: list[tuple[int, costs.Meter]] = []
  taken: dict[str, list[Sample]] = {}

  def between():
    if not meters:
      room = min(run.engine.capacity for run in ours) - plan.widest
      live = min(live_tokens(taken[runs.PLAIN][0]), room)
      meters.append((live, _meter(ours, built, live)))
    meters[0][1].measure(_REPEATS)
    reader.measure(_REPEATS)

  greedy = all(not request.sampling.temperature for request in built)

  def now(complete: bool, parted=None) -> dict[str, Any]:
    return record.build(
      entries,
      taken,
      complete=complete,
      about={
        **plan.about(),
        "prompts": [
          {"id": r.id, "prompt_tokens": len(r.prompt)} for r in built
        ],
      },
      target=target.model,
      costs=_costs(ours, meters),
      bandwidth=reader.rates(),
      live_tokens=meters[0][0] if meters else None,
      greedy=greedy,
      differences=parted or {},
    )

  def after(samples):
    taken.update(samples)
    write(now(complete=False))

  rounds.run(
    [*ours, *peers],
    built,
    plan.rounds,
    together=plan.slots > 1,
    after=after,
    between=between,
  )
  parted = {}
  if greedy:
    judge = differences.Judge(target, built)
    plain = taken[runs.PLAIN][-1].answers
    parted = {
      name: judge.margins(plain, samples[-1].answers)
      for name, samples in taken.items()
    }
  return now(complete=True, parted=parted)


def live_tokens(sample: Sample) -> int:
  """Tokens in the cache at the middle of the mean answer."""
  return round(statistics.fmean(a.live_tokens for a in sample.answers))


def _runs(plan, target, target_s, built, say):
  """Our runs, compiled, plain decoding first; and what some draft with."""
  made, drafts = [], {}
  loaded: dict[tuple[str, str | None], tuple[Any, float]] = {}
  for one in plan.every_run():
    what, options = plan.drafts_with(one), plan.engine_options()
    draft, draft_s = None, 0.0
    if one.reads:
      key = (one.kind, what)
      if key not in loaded:
        say(f"loading {what or plan.model} …")
        loaded[key] = runs.load_draft(*key, target)
      draft, draft_s = loaded[key]
      drafts[one.name] = draft
      options["draft_weights"] = plan.draft_weights
    say(f"compiling {one.name} …")
    if one.kind == "ngram":
      options |= {"ngram_min": plan.ngram_min, "ngram_max": plan.ngram_max}
    if one.kind == "layer_skip":
      options |= {"layers": what}
    if one.kind != runs.PLAIN and plan.verifier is not None:
      options["verifier"] = plan.verifier
    made.append(
      runs.make(
        target,
        one.kind,
        one.lookahead,
        one.siblings,
        name=one.name,
        draft=draft,
        load_s=target_s + draft_s,
        check=functools.partial(plan_lib.check_room, built),
        **options,
      )
    )
  return made, drafts


def _peers(
  plan, target: api.Pretrained, drafts, built, cache, say
) -> list[list[Any]]:
  """Groups of ways to generate; of each the fastest is to run."""
  groups: list[list[Any]] = []
  stop_ids = tuple(target.tokenizer.eos_ids)
  if peers_transformers.NAME in plan.peer:
    say("loading transformers …")
    assistant = _assistant(plan, target, drafts, cache)
    if assistant is None:
      say("without a draft model, assisted generation is left out")
    groups += peers_transformers.load(
      target.folder,
      dtype=plan.dtype,
      stop_ids=stop_ids,
      draft=assistant,
      lookahead=plan.lookahead,
    )
  if peers_llama_cpp.NAME in plan.peer:
    say("loading llama.cpp …")
    gguf = plan.gguf or gguf_writer.cached(
      target.folder, dtype=plan.dtype, cache=cache
    )
    context = max(len(r.prompt) + r.max_new_tokens for r in built)
    groups += peers_llama_cpp.load(
      str(gguf), dtype=plan.dtype, stop_ids=stop_ids, context=context
    )
  return groups


def _assistant(plan, target: api.Pretrained, drafts, cache) -> str | None:
  """The folder of a draft model as a whole one; None where none is asked for.

  That is --draft_model, or the first that one of --runs drafts with.
  """
  loaded = [d for d in drafts.values() if plan.draft_model in (None, d.name)]
  if plan.draft_model is not None and not loaded:
    # None of our runs drafts with it.
    loaded = [heads.load_draft("draft_model", plan.draft_model, target)]
  for draft in loaded:
    if not isinstance(draft, heads.Head):
      return draft.folder
    if draft.kind == "draft_model":
      return str(whole_draft.cached(draft, dtype=plan.dtype, cache=cache))
  return None


def _fastest(
  group: Sequence[Any],
  built: Sequence[Request],
  say: Callable[[str], None] = lambda text: None,
):
  """The fastest way of a group on the beginnings of all answers."""
  if len(group) == 1:
    return group[0]
  short = [
    dataclasses.replace(r, max_new_tokens=min(r.max_new_tokens, _TRIAL_TOKENS))
    for r in built
  ]
  taken: list[list[answers.Answer]] = [[] for _ in group]
  for request in short:
    for way, own in zip(group, taken, strict=True):
      own += way.answer([request])
  speeds = [answers.rate(Sample(answers=tuple(own)).decode) for own in taken]
  speeds = [speed or 0.0 for speed in speeds]
  best = max(range(len(group)), key=speeds.__getitem__)
  tried = ", ".join(
    f"{way.settings or 'its own settings'}: {speed:.1f}"
    for way, speed in zip(group, speeds, strict=True)
  )
  say(f"{group[best].name}, tokens/s: {tried}")
  return group[best]


def _entry(run: runs.Run, draft, weights: str | None) -> record.Entry:
  settings: dict[str, Any] = {}
  proposer = run.engine.loop.proposer
  if run.kind == "ngram":
    settings = {"ngram_min": proposer.shortest, "ngram_max": proposer.longest}
  if run.kind == "layer_skip":
    settings = {"draft_layers": list(proposer.layers)}
  if draft is not None:
    settings = {"draft_model": draft.name}
    if weights is not None:
      settings["draft_weights"] = weights
  if siblings_of(proposer):
    settings["siblings"] = siblings_of(proposer)
  return record.Entry(
    name=run.name,
    peer=None,
    kind=run.kind,
    lookahead=run.lookahead,
    settings=settings,
    startup_s=run.startup_s,
    draft=None if run.kind == runs.PLAIN else proposer,
  )


def _peer_entry(peer) -> record.Entry:
  family, _, way = peer.name.partition(" ")
  return record.Entry(
    name=peer.name,
    peer=family,
    kind=way,
    lookahead=None,
    settings=peer.settings,
    startup_s=peer.startup_s,
  )


def _meter(ours: Sequence[runs.Run], built, live: int) -> costs.Meter:
  request = probe.typical(built, live)
  made = {run.name: probe.Probe(run.engine, request, live=live) for run in ours}
  return costs.Meter(made.pop(runs.PLAIN), made)


def _costs(ours, meters) -> dict[str, costs.Costs]:
  if not meters:
    return {}
  found = {
    run.name: meters[0][1].costs(None if run.lookahead is None else run.name)
    for run in ours
  }
  return {name: cost for name, cost in found.items() if cost is not None}
