"""What goes into the engine and what comes out."""

import dataclasses
import hashlib
import numbers
from collections.abc import Mapping
from typing import Any

# What shapes a random draw, and so does nothing at temperature 0; and the
# value at which it is off.
RANDOM = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": None, "n": 1}

# name -> least, most. Far enough for every use, near enough that float32 still
# tells logits apart.
RANGES = {
  "repetition_penalty": (0.01, 100),
  "presence_penalty": (-100, 100),
  "frequency_penalty": (-100, 100),
  "logit_bias": (-10_000, 10_000),
}
MAX_BIAS = 512  # ids; a row's room on the device
MAX_SAMPLES = 10_000  # of a prompt
MAX_LOGPROBS = 100  # of the likeliest tokens

Pairs = tuple[tuple[int, float], ...]


def idle(settings: Mapping[str, Any]) -> str | None:
  """A setting of RANDOM that is on where nothing is drawn, or None."""
  if settings.get("temperature", 0) != 0:
    return None
  for name, off in RANDOM.items():
    if name in settings and settings[name] != off:
      return name
  return None


def _check(good: bool, name: str, value, fix: str) -> None:
  if not good:
    raise ValueError(f"{name} is {value!r}; {fix}")


def _is_int(value) -> bool:
  # Python's own first: asking an abstract class is slow.
  number = isinstance(value, (int, numbers.Integral))
  return number and not isinstance(value, bool)


def _is_number(value) -> bool:
  number = isinstance(value, (int, float, numbers.Real))
  return number and not isinstance(value, bool)


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
    repetition_penalty: divides the positive logits, and multiplies the other
      ones, of ids in prompt or output; 1 is off.
    presence_penalty: taken off the logit of every id in the output; 0 is off.
    frequency_penalty: the same, times how often the id is there; 0 is off.
    logit_bias: what is added to the raw logits of some ids: a mapping, kept as
      pairs in the order of ids. See `specjax.penalties` for the order of all.

  Raises:
    ValueError: names the field, its value and the fix.
  """

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  seed: int | None = None
  repetition_penalty: float = 1.0
  presence_penalty: float = 0.0
  frequency_penalty: float = 0.0
  logit_bias: Mapping[int, float] | Pairs = ()

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
    for name, (least, most) in RANGES.items():
      if name != "logit_bias":
        value = getattr(self, name)
        good = _is_number(value) and least <= value <= most
        _check(good, name, value, f"give a number from {least} to {most}")
    object.__setattr__(self, "logit_bias", _bias_pairs(self.logit_bias))

  @property
  def penalizes(self) -> bool:
    """Whether the logits are changed before temperature and filters."""
    return bool(
      self.repetition_penalty != 1
      or self.presence_penalty
      or self.frequency_penalty
      or self.logit_bias
    )

  def seed_words(
    self, base_seed: int, request_id: str, sample: int = 0
  ) -> tuple[int, int]:
    """High and low word of the row's 64-bit seed.

    An unseeded request hashes the engine's seed with its own id, so that it
    depends on neither slot, order nor neighbours. Samples after the first hash
    their number with the seed, so that no sample of one seed is the first of
    the next.
    """
    seed = self.seed
    if seed is None:
      seed = _hash(f"{base_seed}:{request_id}")
    seed = int(seed) % 2**64
    if sample:
      seed = _hash(f"{seed}, sample {sample}")
    return seed >> 32, seed & 0xFFFFFFFF


def _hash(text: str) -> int:
  digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
  return int.from_bytes(digest, "big")


def _bias_pairs(bias) -> Pairs:
  least, most = RANGES["logit_bias"]
  try:
    # Ids as text too: JSON has no other keys.
    given = {
      int(token) if isinstance(token, str) and token.isdecimal() else token: add
      for token, add in dict(bias).items()
    }
    pairs = tuple(sorted(given.items()))
  except (TypeError, ValueError):
    _check(False, "logit_bias", bias, "give {id: bias}, numbers both")
  _check(
    len(pairs) <= MAX_BIAS,
    "logit_bias",
    f"of {len(pairs)} ids",
    f"give at most {MAX_BIAS}",
  )
  for token, value in pairs:
    _check(
      _is_int(token) and 0 <= token < 2**31,
      "logit_bias id",
      token,
      "give a token id",
    )
    _check(
      _is_number(value) and least <= value <= most,
      f"logit_bias of id {token}",
      value,
      f"give a number from {least} to {most}",
    )
  return pairs


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
    n: samples of the prompt, each a row of its own and a completion.
    logprobs: of each emitted token its log-probability under the raw target,
      before penalties, bias, temperature and filters, and of so many of the
      likeliest in its place; 0 is its own alone, None is off.

  Raises:
    ValueError: names the field, its value and the fix.
  """

  prompt: tuple[int, ...]
  id: str = "0"
  sampling: SamplingParams = SamplingParams()
  max_new_tokens: int = 128
  stop: tuple[str, ...] = ()
  lookahead: int | None = None
  n: int = 1
  logprobs: int | None = None

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
    good = _is_int(self.n) and 1 <= self.n <= MAX_SAMPLES
    _check(good, "n", self.n, f"give a whole number from 1 to {MAX_SAMPLES}")
    _check(
      self.n == 1 or self.sampling.temperature > 0,
      "n",
      self.n,
      "at temperature 0 all samples are the same: give a temperature above 0, "
      "or leave n out",
    )
    k = self.logprobs
    _check(
      k is None or (_is_int(k) and 0 <= k <= MAX_LOGPROBS),
      "logprobs",
      k,
      f"give a whole number from 0 to {MAX_LOGPROBS}, or none for no "
      "log-probabilities",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
  """A piece of a running request's output, as it becomes stable.

  Attributes:
    id: the request's.
    text, token_ids: what was added.
    sample: which of the request's n samples, from 0.
  """

  id: str
  text: str
  token_ids: tuple[int, ...]
  sample: int = 0


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
    sample: which of the request's n samples, from 0.
    samples: n.
    logprobs: of each id, its log-probability under the raw target; None where
      the request asks for none.
    top_logprobs: of each id, the (id, log-probability) of the likeliest in its
      place, best first, without those that cannot come; None where the
      request asks for none of them.
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
  sample: int = 0
  samples: int = 1
  logprobs: tuple[float, ...] | None = None
  top_logprobs: tuple[Pairs, ...] | None = None
