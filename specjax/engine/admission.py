"""What a request must be to get a slot, and what the device is told of it."""

from collections.abc import Iterable, Mapping

import numpy as np

from specjax.engine import filling
from specjax.engine.programs import Admission
from specjax.engine.request import MAX_BIAS, Request
from specjax.engine.slots import Running
from specjax.penalties import PenaltyRequest
from specjax.sampling import RowSettings


def refusal(
  request: Request,
  *,
  capacity: int,
  vocab_size: int,
  lookahead: int,
  top_logprobs: int,
  reads_text: bool,
  reads_source: bool = False,
) -> str | None:
  """Why an engine cannot run a request, or None.

  Args:
    request: the request.
    capacity, lookahead, top_logprobs: the engine's; see `loop.Engine`.
    vocab_size: V of the target.
    reads_text: whether the engine has a tokenizer.
    reads_source: whether the target's encoder reads the prompt.
  """
  size = len(request.prompt)
  if not size:
    return "prompt is empty; give at least one token"
  if reads_source and size > capacity:
    return (
      f"prompt has {size} tokens, and capacity is {capacity}, of the prompt "
      f"and of the output each; shorten it to {capacity} tokens or raise "
      "capacity"
    )
  if not reads_source and size >= capacity:
    return (
      f"prompt has {size} tokens, and capacity is {capacity}, prompt "
      f"and output together; shorten it to {capacity - 1} tokens or "
      "raise capacity"
    )
  for token in request.prompt:
    if not 0 <= token < vocab_size:
      return (
        f"prompt has token id {token}; ids of this model lie in "
        f"[0, {vocab_size})"
      )
  for token, _ in request.sampling.logit_bias:
    if token >= vocab_size:
      return (
        f"logit_bias has token id {token}; ids of this model lie in "
        f"[0, {vocab_size})"
      )
  if (request.lookahead or 0) > lookahead:
    return (
      f"lookahead is {request.lookahead}; this engine drafts at most "
      f"{lookahead}. Lower it or raise the engine's"
    )
  if (request.logprobs or 0) > top_logprobs:
    return (
      f"logprobs is {request.logprobs}; this engine tells at most "
      f"{top_logprobs} of the likeliest tokens. Lower it or raise the "
      "engine's top_logprobs"
    )
  if request.stop and not reads_text:
    return "stop strings need a tokenizer, and this engine has none"
  return None


def admission(
  new: Mapping[int, Running],
  released: Iterable[int],
  *,
  rows: int,
  history_size: int,
  seed: int,
  start_id: int | None = None,
) -> Admission:
  """What the device is told: which rows are emptied and which are filled.

  Args:
    new: what goes into which slot.
    released: slots to empty.
    rows: B.
    history_size: S of the history.
    seed: the engine's.
    start_id: the token that outputs begin with, where the prompt is an
      encoder's source; see `state.State` for where it stands then.
  """
  release, admit, ready, scored, asked = np.zeros((5, rows), bool)
  history = np.zeros((rows, history_size), np.int32)
  size, last, top_k, lookahead, budget, bias_count = np.zeros(
    (6, rows), np.int32
  )
  temperature, top_p, min_p = np.zeros((3, rows), np.float32)
  repetition, presence, frequency = np.zeros((3, rows), np.float32)
  bias_ids = np.zeros((rows, MAX_BIAS), np.int32)
  bias_values = np.zeros((rows, MAX_BIAS), np.float32)
  seeds = np.zeros((rows, 2), np.uint32)
  release[list(released)] = True
  for slot, row in new.items():
    request = row.request
    sampling = request.sampling
    admit[slot] = True
    ready[slot] = not row.to_fill
    size[slot] = filling.lay_out(history[slot], request.prompt, start_id)
    last[slot] = history[slot, size[slot] - 1]
    temperature[slot] = sampling.temperature
    top_k[slot] = sampling.top_k
    top_p[slot] = sampling.top_p
    min_p[slot] = sampling.min_p
    seeds[slot] = sampling.seed_words(seed, request.id, row.sample)
    asked[slot] = sampling.penalizes
    repetition[slot] = sampling.repetition_penalty
    presence[slot] = sampling.presence_penalty
    frequency[slot] = sampling.frequency_penalty
    pairs = sampling.logit_bias
    if pairs:
      bias_count[slot] = len(pairs)
      bias_ids[slot, : len(pairs)], bias_values[slot, : len(pairs)] = zip(
        *pairs, strict=True
      )
    scored[slot] = request.logprobs is not None
    lookahead[slot] = row.lookahead
    budget[slot] = row.budget
  return Admission(
    release=release,
    admit=admit,
    history=history,
    size=size,
    last_token=last,
    ready=ready,
    sampling=RowSettings(
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
      min_p=min_p,
      seed=seeds,
    ),
    penalties=PenaltyRequest(
      asked=asked,
      repetition=repetition,
      presence=presence,
      frequency=frequency,
      bias_ids=bias_ids,
      bias_values=bias_values,
      bias_count=bias_count,
    ),
    scored=scored,
    lookahead=lookahead,
    budget=budget,
  )
