"""What goes into the engine and what comes out."""

import dataclasses
import hashlib
import numbers


def _check(good: bool, name: str, value, fix: str) -> None:
  if not good:
    raise ValueError(f"{name} is {value!r}; {fix}")


def _is_int(value) -> bool:
  return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
  """How a request is sampled.

  Attributes:
    temperature: 0 is greedy.
    top_k: keep the k most likely tokens; 0 is off.
    top_p: keep the most likely tokens that together reach this mass; 1 is off.
    min_p: keep tokens at least this fraction of the likeliest's; 0 is off.
    seed: any 64-bit integer; None derives one from the engine's seed and the
      request's id.

  Raises:
    ValueError: names the field, its value and the fix.
  """

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  seed: int | None = None

  def __post_init__(self):
    t = self.temperature
    # Beyond, a float32 temperature would be infinite.
    good = _is_number(t) and 0 <= t <= 1e30
    _check(good, "temperature", t, "give a number >= 0 (and <= 1e30)")
    k = self.top_k
    _check(
      _is_int(k) and 0 <= k < 2**31,
      "top_k",
      k,
      "give a whole number from 0 to 2**31 - 1",
    )
    p = self.top_p
    _check(_is_number(p) and 0 < p <= 1, "top_p", p, "give 0 < top_p <= 1")
    m = self.min_p
    _check(_is_number(m) and 0 <= m <= 1, "min_p", m, "give 0 <= min_p <= 1")
    s = self.seed
    good = s is None or (_is_int(s) and -(2**63) <= s < 2**64)
    _check(good, "seed", s, "give a 64-bit whole number")

  def seed_words(self, base_seed: int, request_id: str) -> tuple[int, int]:
    """High and low word of the row's 64-bit seed.

    An unseeded request hashes the engine's seed with its own id, so that it
    depends on neither slot, order nor neighbours.
    """
    seed = self.seed
    if seed is None:
      text = f"{base_seed}:{request_id}".encode()
      digest = hashlib.blake2b(text, digest_size=8).digest()
      seed = int.from_bytes(digest, "big")
    seed = int(seed) % 2**64
    return seed >> 32, seed & 0xFFFFFFFF


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """One prompt to complete.

  Attributes:
    prompt: token ids, at least one.
    id: names the request in everything that comes back.
    sampling: how tokens are drawn.
    max_new_tokens: at most so many tokens are emitted.
    stop: strings that end the output; they are not part of the text.
    lookahead: drafts per step for this row; None is the engine's.

  Raises:
    ValueError: names the field, its value and the fix.
  """

  prompt: tuple[int, ...]
  id: str = "0"
  sampling: SamplingParams = SamplingParams()
  max_new_tokens: int = 128
  stop: tuple[str, ...] = ()
  lookahead: int | None = None

  def __post_init__(self):
    for token in self.prompt:
      # numpy's integers are fine; a float would be cut silently.
      _check(_is_int(token), "prompt token", token, "give whole numbers")
    n = self.max_new_tokens
    _check(
      _is_int(n) and n >= 1, "max_new_tokens", n, "give a whole number >= 1"
    )
    c = self.lookahead
    _check(
      c is None or (_is_int(c) and c >= 0),
      "lookahead",
      c,
      "give a whole number >= 0, or none for the engine's",
    )
    good = isinstance(self.stop, tuple) and all(
      isinstance(text, str) and text for text in self.stop
    )
    _check(good, "stop", self.stop, "give strings that are not empty")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
  """A piece of a running request's output, as it becomes stable."""

  id: str
  text: str
  token_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
  """A finished request. Text, ids and counts are trimmed together.

  Attributes:
    id: the request's.
    text: the output without its stop string or end token; empty where the
      engine has no tokenizer.
    token_ids: the output, with the end token where one was emitted. After a
      stop string: the ids up to and with the one that completed it.
    finish_reason: "stop" (end token or stop string), "length" (budget or
      context) or "error".
    prompt_tokens: prompt length.
    steps: decoding steps of this row.
    drafted, accepted: tokens proposed and kept.
    drafted_per_position, accepted_per_position: the same for each of the C
      places in a proposal.
    ttft_s: seconds from the request's start to its first token.
    token_times_s: arrival of each token, in seconds from the start.
    error: what went wrong, or None.
  """

  id: str
  text: str = ""
  token_ids: tuple[int, ...] = ()
  finish_reason: str
  prompt_tokens: int = 0
  steps: int = 0
  drafted: int = 0
  accepted: int = 0
  drafted_per_position: tuple[int, ...] = ()
  accepted_per_position: tuple[int, ...] = ()
  ttft_s: float = 0.0
  token_times_s: tuple[float, ...] = ()
  error: str | None = None
