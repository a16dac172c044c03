"""Continuous batching: slots are filled, stepped, read and filled again."""

import functools
from collections.abc import Iterable, Iterator

import jax
import numpy as np

from specjax.engine import programs as programs_lib
from specjax.engine.programs import Admission
from specjax.engine.request import Chunk, Completion, Request
from specjax.engine.slots import Running
from specjax.models.base import Model
from specjax.proposers.base import Proposer
from specjax.sampling import RowSettings
from specjax.step import StepParams
from specjax.types import Params
from specjax.verifiers.base import Verifier

# A chunk's cost per token is flat from about 32 tokens on CPU (measured on
# SmolLM2-135M float32: 4.7, 3.2 and 3.1 ms at 32, 128 and 256).
PREFILL_WIDTHS = (32, 128)


class Engine:
  """Runs requests over a fixed number of slots.

  A row's output depends on its prompt, seed and settings only, not on
  neighbours, slot, order or refill. Requests are pulled as slots fall free.
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
    prefill_widths: tuple[int, ...] = PREFILL_WIDTHS,
    whole_batch_prefill: bool = False,
    steps_per_sync: int = 1,
  ):
    """Allocates the caches; nothing is compiled before the first call.

    Args:
      target, target_params: the model whose distribution is kept.
      proposer, proposer_params: its guesser; `NoProposer` decodes plainly.
      verifier: keeps what the target would have said.
      slots: B, rows that run at once.
      capacity: most tokens of prompt and output together.
      tokenizer: a `text.Tokenizer`, or None for ids only (no text, and no
        stop strings).
      stop_ids: ids that end a row.
      seed: of requests that bring none.
      prefill_widths: compiled sizes of a prompt chunk.
      whole_batch_prefill: prompt chunks of all slots in one call instead of
        one at a time: for short prompts on many slots.
      steps_per_sync: steps launched before the host reads them. Rows that end
        in between rest; the output is the same.

    Raises:
      ValueError: names the argument, its value and the fix.
    """
    for name, value in (
      ("slots", slots),
      ("capacity", capacity),
      ("steps_per_sync", steps_per_sync),
    ):
      whole = isinstance(value, int) and not isinstance(value, bool)
      if not whole or not 1 <= value < 2**31:
        raise ValueError(f"{name} is {value!r}; give a whole number >= 1")
    if not prefill_widths or min(prefill_widths) < 1:
      raise ValueError(
        f"prefill_widths is {prefill_widths!r}; give whole numbers >= 1"
      )
    if capacity < 2:
      raise ValueError("capacity is 1; a prompt and a token need at least 2")
    self.slots, self.capacity = slots, capacity
    self.lookahead = proposer.lookahead
    self._vocab_size = target.vocab_size
    self._tokenizer = tokenizer
    self._stop_ids = frozenset(stop_ids)
    self._seed = seed
    self._whole = whole_batch_prefill
    self._sync = steps_per_sync
    self._widths = tuple(sorted(prefill_widths))
    self._params = StepParams(target=target_params, proposer=proposer_params)
    # A pass may start at any length up to the capacity: see KVCache.write.
    headroom = max(proposer.lookahead + 1, *self._widths)
    self._idle_state = functools.partial(
      programs_lib.initial_state,
      target,
      target_params,
      proposer,
      rows=slots,
      capacity=capacity + headroom,
      stop_ids=tuple(sorted(self._stop_ids)),
    )
    self._state = self._idle_state()
    self._history_size = self._state.history.shape[1]
    self._programs = programs_lib.compile_programs(
      target,
      proposer,
      verifier,
      widths=self._widths,
      whole_batch=whole_batch_prefill,
    )
    self._running: list[Running | None] = [None] * slots
    self._released: set[int] = set()
    self._busy = False

  def warmup(self) -> None:
    """Compiles every program and runs it once, on idle rows.

    Raises:
      RuntimeError: a run of this engine is not finished.
    """
    self._refuse_if_busy()
    self._admit({})
    nobody = np.zeros((self.slots,), bool)
    for width in self._widths:
      self._fill(width, {0: 0}, finish=nobody)
    for speculate in (False, True) if self.lookahead else (False,):
      self._step(speculate)
    jax.block_until_ready(self._state.active)

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
      yield from self._run(iter(requests))
    finally:
      # Whoever stopped listening leaves rows behind: empty them.
      self._released |= {
        slot for slot, row in enumerate(self._running) if row is not None
      }
      self._running = [None] * self.slots
      if any(leaf.is_deleted() for leaf in jax.tree.leaves(self._state)):
        # Interrupted inside a step: what it was given is gone, and what it
        # would have given never came.
        self._state = self._idle_state()
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
        request = next(pending, None)
        if request is None:
          more = False
          break
        error = self._refusal(request)
        if error is not None:
          yield Completion(
            id=request.id,
            finish_reason="error",
            prompt_tokens=len(request.prompt),
            error=error,
          )
          continue
        new[slot] = self._running[slot] = self._start(request)
    if new or self._released:
      self._admit(new)
    return more

  def _refusal(self, request: Request) -> str | None:
    """Why a request cannot run, or None."""
    size = len(request.prompt)
    if not size:
      return "prompt is empty; give at least one token"
    if size >= self.capacity:
      return (
        f"prompt has {size} tokens, and capacity is {self.capacity}, prompt "
        f"and output together; shorten it to {self.capacity - 1} tokens or "
        "raise capacity"
      )
    for token in request.prompt:
      if not 0 <= token < self._vocab_size:
        return (
          f"prompt has token id {token}; ids of this model lie in "
          f"[0, {self._vocab_size})"
        )
    if (request.lookahead or 0) > self.lookahead:
      return (
        f"lookahead is {request.lookahead}; this engine drafts at most "
        f"{self.lookahead}. Lower it or raise the engine's"
      )
    if request.stop and self._tokenizer is None:
      return "stop strings need a tokenizer, and this engine has none"
    return None

  def _start(self, request: Request) -> Running:
    wanted = request.lookahead
    return Running(
      request,
      lookahead=self.lookahead if wanted is None else wanted,
      budget=self._budget(request),
      stop_ids=self._stop_ids,
      tokenizer=self._tokenizer,
      width=self.lookahead,
    )

  def _budget(self, request: Request) -> int:
    room = self.capacity - len(request.prompt)
    return min(request.max_new_tokens, room)

  def _admit(self, new: dict[int, Running]) -> None:
    """Tells the device which rows are emptied and which are filled."""
    rows = self.slots
    release, admit, ready = np.zeros((3, rows), bool)
    history = np.zeros((rows, self._history_size), np.int32)
    last, top_k, lookahead, budget = np.zeros((4, rows), np.int32)
    temperature, top_p, min_p = np.zeros((3, rows), np.float32)
    seed = np.zeros((rows, 2), np.uint32)
    release[list(self._released)] = True
    self._released = set()
    for slot, row in new.items():
      request = row.request
      sampling = request.sampling
      admit[slot] = True
      ready[slot] = not row.to_fill
      history[slot, : len(request.prompt)] = request.prompt
      last[slot] = request.prompt[-1]
      temperature[slot] = sampling.temperature
      top_k[slot] = sampling.top_k
      top_p[slot] = sampling.top_p
      min_p[slot] = sampling.min_p
      seed[slot] = sampling.seed_words(self._seed, request.id)
      lookahead[slot] = row.lookahead
      budget[slot] = self._budget(request)
    self._state = self._programs.admit(
      self._state,
      Admission(
        release=release,
        admit=admit,
        history=history,
        last_token=last,
        ready=ready,
        sampling=RowSettings(
          temperature=temperature,
          top_k=top_k,
          top_p=top_p,
          min_p=min_p,
          seed=seed,
        ),
        lookahead=lookahead,
        budget=budget,
      ),
    )

  def _prefill(self) -> None:
    """Runs one prompt chunk of every row that still has some."""
    waiting = {
      slot: row.to_fill
      for slot, row in enumerate(self._running)
      if row is not None and row.to_fill
    }
    if self._whole and waiting:
      self._chunk(waiting)
      return
    for slot, left in waiting.items():
      self._chunk({slot: left})

  def _chunk(self, left: dict[int, int]) -> None:
    """The next chunk of some rows, of a width that is at least half used."""
    longest = max(left.values())
    width = self._widths[0]
    for wider in self._widths[1:]:
      if longest > wider // 2:
        width = wider
    counts = {slot: min(size, width) for slot, size in left.items()}
    finish = np.zeros((self.slots,), bool)
    for slot, count in counts.items():
      row = self._running[slot]
      row.filled += count
      finish[slot] = not row.to_fill
    self._fill(width, counts, finish)

  def _fill(self, width, counts: dict[int, int], finish) -> None:
    count = np.zeros((self.slots,), np.int32)
    for slot, size in counts.items():
      count[slot] = size
    args = (count, finish)
    if not self._whole:
      (slot,) = counts
      args = (np.int32(slot), count[slot, None], finish[slot, None])
    self._state = self._programs.prefill[width](
      self._params, self._state, *args
    )

  def _step(self, speculate: bool):
    run = self._programs.speculate if speculate else self._programs.plain
    self._state, emitted = run(self._params, self._state)
    return emitted

  def _decode(self, decoding: dict[int, Running]):
    # Where no row would draft, a pass of C + 1 would only cost.
    speculate = any(row.promising for row in decoding.values())
    launched = [self._step(speculate) for _ in range(self._sync)]
    for emitted in launched:
      emitted = jax.device_get(emitted)
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
          yield row.take(tokens, drafted[slot], accepted[slot])
        else:
          raise RuntimeError(
            f"slot {slot} ended on the device while {row.request.id!r} runs; "
            "this is a fault of specjax"
          )
        if row.done:
          del decoding[slot]
          self._running[slot] = None
          self._released.add(slot)
          yield row.completion()
