"""llama.cpp through llama-cpp-python: plain, and with its prompt lookup.

As its users would run it at its best here: all cores for prompt and decoding,
only the logits that are needed, a context no longer than asked for.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from specjax.benchmark import machine
from specjax.benchmark.answers import Answer
from specjax.engine.request import Request

NAME = "llama_cpp"
# Tokens that prompt lookup copies at once: its manual says 2 without a GPU, 10
# with one.
LOOKUPS = (2, 5, 10)
_BLOCK = 256  # llama.cpp rounds a context up to it


class Peer:
  """One way of generating; see `answers.Contestant`."""

  def __init__(
    self,
    name: str,
    generate: Callable[[Sequence[int]], Iterator[int]],
    *,
    stop_ids: Sequence[int],
    settings: dict[str, Any],
    startup_s: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
  ):
    """A way of generating.

    Args:
      name: unique.
      generate: from prompt ids to an iterator of ids that goes on for ever.
      stop_ids: ids that end an answer.
      settings: what makes this way, to be reported.
      startup_s: seconds that loading took.
      clock: seconds.
    """
    self.name = name
    self.settings = settings
    self.startup_s = startup_s
    self._generate = generate
    self._stop_ids = frozenset(stop_ids)
    self._clock = clock

  def answer(self, requests: Sequence[Request]) -> list[Answer]:
    """See `answers.Contestant`."""
    return [self._one(request) for request in requests]

  def _one(self, request: Request) -> Answer:
    tokens, times = [], []
    start = self._clock()
    for token in self._generate(request.prompt):
      times.append(self._clock() - start)
      tokens.append(int(token))
      if token in self._stop_ids or len(tokens) == request.max_new_tokens:
        break
    return Answer(
      id=request.id,
      prompt_tokens=len(request.prompt),
      token_ids=tuple(tokens),
      times_s=tuple(times),
    )


def check() -> None:
  """Raises ImportError, saying what to install, if the peer is not there."""
  _modules()


def _modules():
  try:
    import llama_cpp
    from llama_cpp import llama_speculative
  except ImportError as error:
    raise ImportError(
      f"--peer={NAME}: {error.name} is not installed; pip install"
      " llama-cpp-python (it compiles llama.cpp), or leave the peer out"
    ) from None
  return llama_cpp, llama_speculative


def load(
  gguf: str,
  *,
  dtype: str,
  stop_ids: Sequence[int],
  context: int,
  clock: Callable[[], float] = time.perf_counter,
) -> list[list[Peer]]:
  """Loads the model; gives groups of ways, of which the fastest is to run.

  Args:
    gguf: the model's GGUF file.
    dtype: float32 or bfloat16. Keys and values are kept in float32 for
      float32 and in float16, llama.cpp's own choice, for bfloat16.
    stop_ids: ids that end an answer.
    context: tokens it must hold, prompt and answer together.
    clock: seconds.

  Raises:
    ImportError: as `check`.
    RuntimeError: llama.cpp cannot load the file.
  """
  llama_cpp, speculative = _modules()
  cores = machine.cores()
  kept = llama_cpp.GGML_TYPE_F32 if dtype == "float32" else None
  # A draft runs past the answer's end; without room it would be cut.
  context = -(-(context + max(LOOKUPS)) // _BLOCK) * _BLOCK

  def make(draft=None):
    try:
      return llama_cpp.Llama(
        gguf,
        n_ctx=context,
        # Its prompt lookup keeps the logits of all tokens in so many rows.
        n_batch=context,
        n_threads=cores,
        n_threads_batch=cores,
        logits_all=False,
        draft_model=draft,
        type_k=kept,
        type_v=kept,
        verbose=False,
      )
    except ValueError as error:
      raise RuntimeError(f"--peer={NAME}: {gguf}: {error}") from None

  def generator(model):
    def generate(prompt):
      model.reset()  # Or it would reuse what it knows of the prompt.
      return model.generate(list(prompt), temp=0.0)

    return generate

  start = clock()
  plain = make()
  startup_s = clock() - start
  lookup = make(speculative.LlamaPromptLookupDecoding())

  def looking(count):
    generate = generator(lookup)

    def run(prompt):
      lookup.draft_model.num_pred_tokens = count
      return generate(prompt)

    return run

  def peer(way, run, settings):
    return Peer(
      f"{NAME} {way}",
      run,
      stop_ids=stop_ids,
      settings=settings,
      startup_s=startup_s,
      clock=clock,
    )

  return [
    [peer("plain", generator(plain), {})],
    [
      peer("prompt lookup", looking(count), {"num_pred_tokens": count})
      for count in LOOKUPS
    ],
  ]
