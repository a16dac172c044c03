"""Continuous batching: slots are filled, stepped, read and filled again."""

import functools
from collections.abc import Iterable, Iterator

import jax
import numpy as np

from specjax.engine import filling, placing, sizes
from specjax.engine import programs as programs_lib
from specjax.engine.admission import admission, refusal
from specjax.engine.request import Chunk, Completion, Request
from specjax.engine.slots import Running
from specjax.models.base import Model
from specjax.proposers.base import Proposer
from specjax.state import read
from specjax.step import StepParams
from specjax.types import Params
from specjax.verifiers.base import Verifier


class Engine:
  """Runs requests over a fixed number of slots.

  A row's output depends on its prompt, seed and settings only, not on
  neighbours, slot, order or refill. Requests are pulled as slots fall free.

  Attributes:
    slots, capacity, lookahead, top_logprobs: see the arguments.
    proposer: its guesser.
    leaving: the slot of the completion yielded last; `state` holds its row
      until the iterator goes on.
    params, programs, state: what a step is made of, for whoever measures it.
      Not to be changed by others.
  """

  def __init__(
    self,
    target: Model,
    target_params: Params,
    proposer: Proposer,
    proposer_params: Params = (),
    *,
    verifier: Verifier,
    slots: int,
    capacity: int,
    tokenizer=None,
    stop_ids: Iterable[int] = (),
    seed: int = 0,
    prefill_widths: tuple[int, ...] | None = None,
    whole_batch_prefill: bool = False,
    steps_per_sync: int = 1,
    top_logprobs: int = 0,
  ):
    """Allocates the caches; nothing is compiled before the first call.

    Args:
      target, target_params: the model whose distribution is kept.
      proposer, proposer_params: its guesser; `NoProposer` decodes plainly.
      verifier: keeps what the target would have said.
      slots: B, rows that run at once.
      capacity: most tokens of prompt and output together; of each of them where
        the target has an encoder, which reads the prompt.
      tokenizer: a `text.Tokenizer`, or None for ids only (no text, and no
        stop strings).
      stop_ids: ids that end a row.
      seed: of requests that bring none.
      prefill_widths: compiled sizes of a prompt chunk; those of
        `filling.chunks` unless given.
      whole_batch_prefill: prompt chunks of all slots in one call instead of
        one at a time: for short prompts on many slots.
      steps_per_sync: steps launched before the host reads them. Rows that end
        in between rest; the output is the same.
      top_logprobs: the largest `logprobs` that a request may ask for.

    Raises:
      ValueError: names the argument, its value and the fix.
    """
    if prefill_widths is None:
      prefill_widths = filling.chunks()
    sizes.check(
      slots=slots,
      capacity=capacity,
      steps_per_sync=steps_per_sync,
      prefill_widths=prefill_widths,
    )
    whole = isinstance(top_logprobs, int) and not isinstance(top_logprobs, bool)
    if not whole or not 0 <= top_logprobs <= target.vocab_size:
      raise ValueError(
        f"top_logprobs is {top_logprobs!r}; give a whole number from 0 to "
        f"{target.vocab_size}, the vocabulary's size"
      )
    self.slots, self.capacity = slots, capacity
    self.top_logprobs = top_logprobs
    self.proposer, self.lookahead = proposer, proposer.lookahead
    self._vocab_size = target.vocab_size
    self._tokenizer = tokenizer
    self._stop_ids = frozenset(stop_ids)
    self._seed = seed
    self._whole, self._sync = whole_batch_prefill, steps_per_sync
    self._widths = filling.widths(target, prefill_widths, capacity)
    self._target = target
    self.params = StepParams(target=target_params, proposer=proposer_params)
    make_state = functools.partial(
      programs_lib.initial_state,
      target,
      target_params,
      proposer,
      rows=slots,
      capacity=programs_lib.positions(target, capacity, proposer, self._widths),
      stop_ids=tuple(sorted(self._stop_ids)),
    )
    self._places = placing.find(target, self.params, proposer, make_state)
    self._idle_state, placed, self._groups = make_state, {}, None
    if self._places is not None:
      placed = dict(places=self._places)
      self._groups = self._places.groups
      self.params = placing.settle(self.params, self._places.params)
      self._idle_state = functools.partial(self._places.initial, make_state)
    self.state = self._idle_state()
    self._history_size = self.state.history.shape[1]
    self._start_id = filling.start_id(target)
    self.programs = programs_lib.compile_programs(
      target,
      proposer,
      verifier,
      widths=self._widths,
      whole_batch=whole_batch_prefill,
      top_logprobs=top_logprobs,
      **placed,
    )
    self._running: list[Running | None] = [None] * slots
    self._released: set[int] = set()
    self._busy, self.leaving = False, 0

  def warmup(self) -> None:
    """Compiles every program, so that no request waits for it.

    Raises:
      RuntimeError: a run of this engine is not finished.
    """
    self._refuse_if_busy()
    programs, state = self.programs, self.state
    nobody = np.zeros((self.slots,), bool)
    steps = [programs.plain]
    if self.lookahead:
      steps.insert(0, programs.speculate)
    fills = [
      (programs.prefill[width], self._fill_args({0: 0}, nobody))
      for width in reversed(self._widths)
    ]
    calls = [(step, (self.params, state)) for step in steps]
    calls += [(fill, (self.params, state, *args)) for fill, args in fills]
    calls.append((programs.admit, (state, self._told({}))))
    if self.slots > 1:
      calls.append((programs.copy, (state, np.int32(0), np.int32(0))))
    programs_lib.compile_ahead(calls)

  def run(self, requests: Iterable[Request]) -> Iterator[Chunk | Completion]:
    """Runs requests; yields pieces and completions as they happen.

    A request that cannot run (a prompt that is empty or too long, an id out of
    range, logits that are not numbers) yields a completion whose
    finish_reason is "error". Closing the iterator ends what is running.

    Raises:
      RuntimeError: another run of this engine is not finished.
    """
    self._refuse_if_busy()
    self._busy = True
    try:
      yield from self._run(_samples(requests))
    finally:
      # Whoever stopped listening leaves rows behind: empty them.
      self._released |= {
        slot for slot, row in enumerate(self._running) if row is not None
      }
      self._running = [None] * self.slots
      if any(leaf.is_deleted() for leaf in jax.tree.leaves(self.state)):
        # Interrupted inside a step: what it was given is gone, and what it
        # would have given never came.
        self.state = self._idle_state()
      self._admit({})
      self._busy = False

  def _refuse_if_busy(self) -> None:
    if self._busy:
      raise RuntimeError(
        "the engine is running already; finish or close the first run"
      )

  def _run(self, pending):
    while True:
      more = yield from self._refill(pending)
      self._prefill()
      decoding = {
        slot: row
        for slot, row in enumerate(self._running)
        if row is not None and not row.to_fill
      }
      if decoding:
        yield from self._decode(decoding)
      elif not more and not any(self._running):
        return

  def _refill(self, pending):
    """Puts requests into free slots; returns whether there may be more."""
    new: dict[int, Running] = {}
    more = True
    for slot in range(self.slots):
      while more and self._running[slot] is None:
        request, sample = next(pending, (None, 0))
        if request is None:
          more = False
          break
        error = self.refusal(request)
        if error is not None:
          yield Completion(
            id=request.id,
            finish_reason="error",
            prompt_tokens=len(request.prompt),
            error=error,
            sample=sample,
            samples=request.n,
          )
          continue
        row = self._start(request, sample)
        row.leader = self._leader(request)
        new[slot] = self._running[slot] = row
    if new or self._released:
      self._admit(new)
    return more

  def _leader(self, request: Request) -> int | None:
    """The slot that is reading the same prompt for another sample."""
    for slot, row in enumerate(self._running):
      if row is not None and row.request is request and row.leader is None:
        if row.to_fill:
          return slot
    return None

  def refusal(self, request: Request) -> str | None:
    """Why a request cannot run, or None; nothing is compiled for it."""
    return refusal(
      request,
      capacity=self.capacity,
      vocab_size=self._vocab_size,
      lookahead=self.lookahead,
      top_logprobs=self.top_logprobs,
      reads_text=self._tokenizer is not None,
      reads_source=filling.reads_source(self._target),
    )

  def _start(self, request: Request, sample: int) -> Running:
    wanted = request.lookahead
    apart = filling.reads_source(self._target)  # prompt and output
    room = self.capacity - (1 if apart else len(request.prompt))
    return Running(
      request,
      sample=sample,
      lookahead=self.lookahead if wanted is None else wanted,
      budget=min(request.max_new_tokens, room),
      stop_ids=self._stop_ids,
      tokenizer=self._tokenizer,
      width=self.lookahead,
      apart=apart,
    )

  def _admit(self, new: dict[int, Running]) -> None:
    """Tells the device which rows are emptied and which are filled."""
    self._launch(self.programs.admit, self.state, self._told(new))
    self._released = set()

  def _told(self, new: dict[int, Running]) -> programs_lib.Admission:
    return admission(
      new,
      self._released,
      rows=self.slots,
      history_size=self._history_size,
      seed=self._seed,
      start_id=self._start_id,
    )

  def _prefill(self) -> None:
    """Runs one prompt chunk of every row that still has some."""
    waiting = {
      slot: row.to_fill
      for slot, row in enumerate(self._running)
      if row is not None and row.to_fill and row.leader is None
    }
    if self._whole and waiting:
      self._chunk(waiting)
    else:
      for slots in placing.turns(waiting, self.slots // (self._groups or 1)):
        self._chunk({slot: waiting[slot] for slot in slots})
    for slot, row in enumerate(self._running):
      if row is not None and row.leader in waiting:
        self._follow(slot, row)

  def _follow(self, slot: int, row: Running) -> None:
    """Copies what the row's leader has read, once that is all."""
    leader = self._running[row.leader]
    if not leader.to_fill:
      self._copy(row.leader, slot)
      row.filled, row.leader = leader.filled, None

  def _copy(self, source: int, target: int) -> None:
    self._launch(
      self.programs.copy, self.state, np.int32(source), np.int32(target)
    )

  def _chunk(self, left: dict[int, int]) -> None:
    """The next chunk, or the whole source, of some rows."""
    width = filling.width(self._target, self._widths, max(left.values()))
    counts = {slot: min(size, width) for slot, size in left.items()}
    finish = np.zeros((self.slots,), bool)
    for slot, count in counts.items():
      row = self._running[slot]
      row.filled += count
      finish[slot] = not row.to_fill
    self._fill(width, counts, finish)

  def _fill(self, width, counts: dict[int, int], finish) -> None:
    args = self._fill_args(counts, finish)
    self._launch(self.programs.prefill[width], self.params, self.state, *args)

  def _fill_args(
    self, counts: dict[int, int], finish
  ) -> tuple[np.ndarray, ...]:
    return filling.arguments(
      counts,
      finish,
      slots=self.slots,
      whole_batch=self._whole,
      groups=self._groups,
    )

  def _step(self, speculate: bool):
    run = self.programs.speculate if speculate else self.programs.plain
    return self._launch(run, self.params, self.state)

  def _launch(self, program, *args):
    """Runs a program, which gives the next state; returns what else it gives.

    XLA's CPU backend comes to a deadlock where programs of several devices are
    launched before those before them are done: there each is waited for.
    """
    out = program(*args)
    self.state, rest = out if isinstance(out, tuple) else (out, None)
    if self._places is not None and jax.default_backend() == "cpu":
      jax.block_until_ready(self.state)
    return rest

  def _decode(self, decoding: dict[int, Running]):
    # Where no row would draft, a pass of C + 1 would only cost.
    speculate = any(row.promising for row in decoding.values())
    launched = [self._step(speculate) for _ in range(self._sync)]
    for emitted in launched:
      emitted = read(emitted)
      count = emitted.count.tolist()
      drafted, accepted = emitted.drafted.tolist(), emitted.accepted.tolist()
      for slot, row in list(decoding.items()):
        if self._sync == 1:  # It speaks of the next step only.
          row.promising = bool(emitted.promising[slot])
        if emitted.failed[slot]:
          rest = row.fail(
            "the model's logits are not finite (NaN or infinite) after "
            f"{len(row.request.prompt)} prompt tokens and "
            f"{row.emitted} of output"
          )
          if rest.text:
            yield rest
        elif count[slot]:
          tokens = emitted.tokens[slot, : count[slot]].tolist()
          scores = None
          if row.request.logprobs is not None:
            scores = emitted.scores.row(slot)
          yield row.take(tokens, drafted[slot], accepted[slot], scores)
        else:
          raise RuntimeError(
            f"slot {slot} ended on the device while {row.request.id!r} runs; "
            "this is a fault of specjax"
          )
        if row.done:
          del decoding[slot]
          self._running[slot] = None
          self._released.add(slot)
          self.leaving = slot
          yield row.completion()


def _samples(requests: Iterable[Request]) -> Iterator[tuple[Request, int]]:
  """Every row to run: request by request, its n samples in turn."""
  for request in requests:
    for sample in range(request.n):
      yield request, sample
