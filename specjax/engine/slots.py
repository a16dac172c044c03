"""One running request on the host: its ids, its text, its counts."""

import math
import time
from typing import Any

from specjax import logprobs
from specjax import text as text_lib
from specjax.engine.request import Chunk, Completion, Pairs, Request


class Running:
  """A request that occupies a slot, from admission to completion.

  Attributes:
    request: what runs.
    sample: which of its n samples.
    lookahead: the row's own drafts per step.
    budget: tokens it may emit.
    promising: whether the proposer may have something for the next step.
    filled: prompt tokens already prefilled (the last one never is, unless
      prompt and output are apart: the prompt is an encoder's source).
    leader: the slot that prefills the same prompt for another sample, and will
      be copied; None for a row that prefills its own.
    done: set once a completion is due.
  """

  def __init__(
    self,
    request: Request,
    *,
    sample: int,
    lookahead: int,
    budget: int,
    stop_ids: frozenset[int],
    tokenizer: Any,
    width: int,
    apart: bool = False,
  ):
    self.request = request
    self.sample = sample
    self.lookahead = lookahead
    self.promising = lookahead > 0
    self.filled = 0
    self.leader: int | None = None
    self.done = False
    self.error: str | None = None
    self.budget = budget
    # An output that begins anew is the first committed block's own.
    self._unread = len(request.prompt) - (0 if apart else 1)
    self._stop_ids = stop_ids
    self._ids: list[int] = []
    self._times: list[float] = []
    self._pieces: list[str] = []
    self._logprobs: list[float] = []
    self._top: list[Pairs] = []
    self._reason: str | None = None
    self._steps = self._drafted = self._accepted = 0
    self._drafted_at = [0] * width
    self._accepted_at = [0] * width
    self._start = time.perf_counter()
    self._detokenizer = tokenizer and text_lib.Detokenizer(tokenizer)
    self._stops = text_lib.StopStrings(request.stop) if request.stop else None

  @property
  def to_fill(self) -> int:
    """Prompt tokens still to prefill."""
    return self._unread - self.filled

  @property
  def emitted(self) -> int:
    """Tokens emitted so far."""
    return len(self._ids)

  def take(
    self,
    tokens: list[int],
    drafted: int,
    accepted: int,
    scores: logprobs.Scores | None,
  ) -> Chunk:
    """Takes what one step emitted; returns what became stable of it.

    Args:
      tokens: the ids, at least one.
      drafted, accepted: tokens proposed and kept.
      scores: of this row, NumPy, valid where `tokens` are; None where the
        request asks for no log-probabilities.
    """
    now = time.perf_counter() - self._start
    if self._stops is None:
      kept, piece = self._plain(tokens)
    else:
      kept, piece = self._until_stop(tokens)
    accepted = min(accepted, len(kept))
    self._ids += kept
    self._times += [now] * len(kept)
    if scores is not None:
      self._score(len(kept), scores)
    self._steps += 1
    self._drafted += drafted
    self._accepted += accepted
    for place in range(drafted):
      self._drafted_at[place] += 1
    for place in range(accepted):
      self._accepted_at[place] += 1
    if self._reason is None:
      if kept[-1] in self._stop_ids:
        self._reason = "stop"
      elif len(self._ids) >= self.budget:
        self._reason = "length"
    self.done = self._reason is not None
    if self.done:
      piece += self._rest()
    self._pieces.append(piece)
    return self._chunk(piece, tuple(kept))

  def fail(self, error: str) -> Chunk:
    """Ends the request with an error; what was emitted stays.

    Returns:
      The text that was held back, without an id of its own.
    """
    rest = self._rest()
    self._pieces.append(rest)
    self.error, self._reason, self.done = error, "error", True
    return self._chunk(rest, ())

  def completion(self) -> Completion:
    """The finished request, as its owner gets it."""
    wanted = self.request.logprobs
    return Completion(
      id=self.request.id,
      text="".join(self._pieces),
      token_ids=tuple(self._ids),
      finish_reason=self._reason,
      prompt_tokens=len(self.request.prompt),
      steps=self._steps,
      drafted=self._drafted,
      accepted=self._accepted,
      drafted_per_position=tuple(self._drafted_at),
      accepted_per_position=tuple(self._accepted_at),
      ttft_s=self._times[0] if self._times else 0.0,
      token_times_s=tuple(self._times),
      error=self.error,
      sample=self.sample,
      samples=self.request.n,
      logprobs=None if wanted is None else tuple(self._logprobs),
      top_logprobs=tuple(self._top) if wanted else None,
    )

  def _chunk(self, text, token_ids):
    return Chunk(
      id=self.request.id, text=text, token_ids=token_ids, sample=self.sample
    )

  def _score(self, count, scores):
    self._logprobs += scores.own[:count].tolist()
    wanted = self.request.logprobs
    if wanted:
      ids, top = (
        part[:count, :wanted].tolist() for part in (scores.top_ids, scores.top)
      )
      for place in zip(ids, top, strict=True):
        pairs = zip(*place, strict=True)
        # What cannot come has no number, and JSON none for it.
        self._top.append(tuple(p for p in pairs if p[1] > -math.inf))

  def _plain(self, tokens):
    if not self._detokenizer:
      return tokens, ""
    # The end token is an id of the output, but no text.
    visible = tokens[:-1] if tokens[-1] in self._stop_ids else tokens
    return tokens, self._detokenizer.push(visible)

  def _until_stop(self, tokens):
    """Token by token, so that ids end with the text at a stop string."""
    pieces = []
    for index, token in enumerate(tokens):
      _, piece = self._plain([token])
      safe, hit = self._stops.push(piece)
      pieces.append(safe)
      if hit:
        self._reason = "stop"
        return tokens[: index + 1], "".join(pieces)
    return tokens, "".join(pieces)

  def _rest(self) -> str:
    """Text held back until the end: half characters, half stop strings."""
    if not self._detokenizer:
      return ""
    tail = self._detokenizer.flush()
    if self._stops is None:
      return tail
    safe, hit = self._stops.push(tail)
    if hit:
      self._reason = "stop"
    return safe + ("" if hit else self._stops.flush())
