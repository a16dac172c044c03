"""Hugging Face transformers on torch: plain, assisted and prompt lookup.

As its users would run it at its best here: inference mode, all cores, SDPA
attention, weights in the run's dtype.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specjax.benchmark import machine
from specjax.benchmark.answers import Answer
from specjax.engine.request import Request

NAME = "transformers"
# Tokens that prompt lookup copies at once: 10 is the documented choice.
LOOKUPS = (3, 5, 10)


class Arrivals:
  """A streamer: what arrives and when; the prompt comes first."""

  def __init__(self, clock: Callable[[], float]):
    """Reads times off `clock`, in seconds."""
    self._clock = clock
    self._is_prompt = True
    self.tokens: list[int] = []
    self.times: list[float] = []
    self.steps = 0

  def put(self, value: Any) -> None:
    """Takes the tokens of a step, as a tensor of any shape."""
    if self._is_prompt:
      self._is_prompt = False
      return
    now = self._clock()
    ids = value.reshape(-1).tolist()
    self.tokens += ids
    self.times += [now] * len(ids)
    self.steps += 1

  def end(self) -> None:
    """Nothing is held back."""


class Peer:
  """One way of generating; see `answers.Contestant`."""

  def __init__(
    self,
    name: str,
    generate: Callable[..., None],
    settings: Mapping[str, Any],
    *,
    startup_s: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
  ):
    """A way of generating.

    Args:
      name: unique.
      generate: called with (prompt ids, streamer=, max_new_tokens=, and the
        settings); feeds the streamer.
      settings: that make this way.
      startup_s: seconds that loading took.
      clock: seconds.
    """
    self.name = name
    self.settings = dict(settings)
    self.startup_s = startup_s
    self._generate = generate
    self._clock = clock

  def answer(self, requests: Sequence[Request]) -> list[Answer]:
    """See `answers.Contestant`."""
    return [self._one(request) for request in requests]

  def _one(self, request: Request) -> Answer:
    arrivals = Arrivals(self._clock)
    start = self._clock()
    self._generate(
      request.prompt,
      streamer=arrivals,
      max_new_tokens=request.max_new_tokens,
      **self.settings,
    )
    return Answer(
      id=request.id,
      prompt_tokens=len(request.prompt),
      token_ids=tuple(arrivals.tokens),
      times_s=tuple(at - start for at in arrivals.times),
      steps=arrivals.steps,
    )


def check() -> None:
  """Raises ImportError, saying what to install, if the peer is not there."""
  _modules()


def _modules():
  try:
    import torch
    import transformers
  except ImportError as error:
    raise ImportError(
      f"--peer={NAME}: {error.name} is not installed; pip install torch"
      " transformers, or leave the peer out"
    ) from None
  return torch, transformers


def load(
  folder: str,
  *,
  dtype: str,
  stop_ids: Sequence[int],
  draft: str | None = None,
  lookahead: Sequence[int] = (),
  clock: Callable[[], float] = time.perf_counter,
) -> list[list[Peer]]:
  """Loads the model; gives groups of ways, of which the fastest is to run.

  Args:
    folder: the model's.
    dtype: float32 or bfloat16.
    stop_ids: ids that end an answer.
    draft: folder of the assistant, or None to leave assisted generation out.
    lookahead: tokens an assistant may draft, beside its own default.
    clock: seconds.

  Raises:
    ImportError: as `check`.
  """
  torch, transformers = _modules()
  torch.set_num_threads(machine.cores())
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()

  def read(path):
    model = transformers.AutoModelForCausalLM.from_pretrained(
      path, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    return model.eval()

  start = clock()
  model = read(folder)
  assistant = None if draft is None else read(draft)
  startup_s = clock() - start

  def generate(prompt, *, streamer, max_new_tokens, **settings):
    ids = torch.tensor([prompt])
    with torch.inference_mode():
      model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=list(stop_ids) or None,
        pad_token_id=next(iter(stop_ids), 0),
        streamer=streamer,
        **settings,
      )

  def assisted(prompt, *, num_assistant_tokens=None, **settings):
    # How much to draft is read from the assistant itself.
    config = assistant.generation_config
    before = config.num_assistant_tokens
    if num_assistant_tokens is not None:
      config.num_assistant_tokens = num_assistant_tokens
    try:
      generate(prompt, assistant_model=assistant, **settings)
    finally:
      config.num_assistant_tokens = before

  def peer(way, settings, run=generate):
    return Peer(
      f"{NAME} {way}", run, settings, startup_s=startup_s, clock=clock
    )

  groups = [
    [peer("plain", {})],
    [peer("prompt lookup", {"prompt_lookup_num_tokens": n}) for n in LOOKUPS],
  ]
  if assistant is not None:
    ways: list[dict[str, Any]] = [{}]
    ways += [{"num_assistant_tokens": count} for count in lookahead]
    groups.append([peer("assisted", way, assisted) for way in ways])
  return groups
