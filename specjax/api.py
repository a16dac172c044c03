"""The ten-line path: load a model, make an engine, generate or stream."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from specjax import making
from specjax.engine import filling, loop, memory, placing
from specjax.engine import sizes as engine_sizes
from specjax.engine.request import (
  Chunk,
  Completion,
  Request,
  SamplingParams,
  idle,
)
from specjax.heads import Head as Head
from specjax.heads import load_draft as load_draft
from specjax.heads import load_head as load_head
from specjax.making import PROPOSERS as PROPOSERS
from specjax.pretrained import Pretrained as Pretrained
from specjax.pretrained import load as load
from specjax.proposers.base import Proposer
from specjax.verifiers.block import Block
from specjax.verifiers.rejection import Rejection

VERIFIERS = {"token": Rejection(), "block": Block()}
DEFAULT_CAPACITY = 2048


def _as_list(prompt) -> list:
  """A list of whatever a prompt is made of; arrays become Python's numbers.

  Raises:
    ValueError: bytes or a mapping, whose items would pass for ids or prompts.
  """
  if isinstance(prompt, (bytes, bytearray, Mapping)):
    raise ValueError(
      f"prompt is {prompt!r}; give a text, a list of messages or a list of ids"
    )
  if hasattr(prompt, "tolist"):  # NumPy's and JAX's
    return prompt.tolist()
  try:
    return [
      item.item() if getattr(item, "ndim", None) == 0 else item
      for item in prompt
    ]
  except TypeError:
    raise ValueError(
      f"prompt is {prompt!r}; give a text, a list of messages or a list of ids"
    ) from None


class Engine:
  """A target with a proposer, ready to generate.

  Example:
    target = specjax.load("path/to/model", dtype="bfloat16")
    engine = specjax.Engine(target, proposer="ngram", lookahead=8)
    print(engine.generate("Once upon a time", max_new_tokens=64).text)
    for piece in engine.stream("Once upon a time"):
      print(piece, end="")

  Attributes:
    target: the model whose distribution is kept.
    memory: what all of it takes, as it was counted before it was loaded.
    memory_limit: what there was for it then.
    loop: what runs the requests; see `engine.loop.Engine`.
  """

  def __init__(
    self,
    target: Pretrained,
    *,
    proposer: str | Proposer = "none",
    draft: Pretrained | Head | None = None,
    draft_layers: int | Sequence[int] | None = None,
    draft_weights: str | None = None,
    lookahead: int | None = None,
    siblings: int = 0,
    verifier: str = "token",
    slots: int = 1,
    capacity: int | None = None,
    seed: int = 0,
    ngram_min: int | None = None,
    ngram_max: int | None = None,
    max_memory: str | int | None = None,
    **options,
  ):
    """Checks the pair and what memory it needs, then loads and allocates.

    Args:
      target: the model whose distribution is kept.
      proposer: who drafts, one of `PROPOSERS` (see `proposers.kinds`), or a
        `Proposer` that needs no parameters.
      draft: what it drafts with: a model from `load` for "draft_model", and
        what `load_head` gives for what borrows from the target. "mtp" takes
        the target's own modules unless given.
      draft_layers: the target's layers that "layer_skip" drafts with: how many
        of the first, or which.
      draft_weights: "int8": what the draft multiplies with is rounded to whole
        numbers of eight bits, one scale a row. It guesses about as well, from
        half the bytes of bfloat16. As they are unless given.
      lookahead: C, drafts per step; 4 unless given.
      siblings: M, second guesses: likely tokens beside the drafts that the
        target reads in the same pass, so that a step gives two tokens where one
        of them takes a rejected draft's place; more of them in rows that draft
        fewer than C. The output is the same.
      verifier: "token" (accept token by token) or "block" (keeps at least as
        many when sampling); both are exact.
      slots: B, requests that run at once.
      capacity: most tokens of prompt and output; by default the model's
        context, at most 2048.
      seed: of requests that bring none.
      ngram_min, ngram_max: least and most tokens that "ngram" matches.
      max_memory: the most that all of it may take, "8GB" or bytes; by default
        what is free on the device, or in this host (or container). Of a mesh:
        on each device.
      **options: see `engine.loop.Engine`.

    Raises:
      ValueError: names the argument, its value and the fix; or it does not
        fit, with the size of every part and what would fit. No weights have
        been read then.
    """
    for role, given, takes in (
      ("target", target, Pretrained),
      ("draft", draft, Pretrained | Head),
    ):
      if given is not None and not isinstance(given, takes):
        raise ValueError(
          f"{role} is {given!r}; give what specjax.load(...) returns"
          + (", or specjax.load_head(...)" if role == "draft" else "")
        )
    if verifier not in VERIFIERS:
      raise ValueError(
        f"verifier is {verifier!r}; give one of {', '.join(VERIFIERS)}"
      )
    draft = making.draft_of(proposer, target, draft)
    making.check_weights(proposer, target, draft_weights)
    limit = target.model.config.max_position
    # A head's own says how far it was trained: beyond, it only guesses worse.
    if proposer == "draft_model":
      limit = min(limit, draft.model.config.max_position)
    if capacity is None:
      capacity = min(limit, DEFAULT_CAPACITY)
    widths = options.get("prefill_widths")
    widths = filling.chunks() if widths is None else tuple(widths)
    engine_sizes.check(slots=slots, capacity=capacity, prefill_widths=widths)
    if capacity > limit:
      raise ValueError(
        f"capacity is {capacity}, but the context ends at {limit} tokens"
      )
    sizes = {"shortest": ngram_min, "longest": ngram_max}
    sizes = {key: size for key, size in sizes.items() if size is not None}
    how = dict(ngram=sizes, layers=draft_layers)
    made = making.make(
      proposer, target, draft, lookahead=lookahead, siblings=siblings, **how
    )
    placing.check(target.model, made, slots)

    def need(*, slots, capacity, dtype, lookahead) -> memory.Estimate:
      one, other = target.retyped(dtype), draft
      if other is not None:
        is_head = isinstance(draft, Head)
        other = draft.of(one) if is_head else draft.retyped(dtype)
      # A target that drafts for itself has its weights once.
      shapes = other.model.shapes if other and draft is not target else ()
      if draft_weights is not None:  # Beside those as they are, which stay.
        shapes += making.shapes_of(other.model, draft_weights)
      return memory.estimate(
        one.model,
        making.make(
          *(proposer, one, other),
          lookahead=lookahead,
          siblings=siblings,
          **how,
        ),
        shapes,
        slots=slots,
        capacity=capacity,
        prefill_widths=widths,
        whole_batch_prefill=options.get("whole_batch_prefill", False),
        on_host=memory.on_host(),
      )

    models = {id(model): model for model in (target, draft) if model}
    held = sum(model.loaded_bytes for model in models.values())
    self.memory_limit = memory.limit_of(max_memory, held)
    self.memory = memory.require(
      need,
      self.memory_limit,
      slots=slots,
      capacity=capacity,
      dtype=target.model.dtype.name,
      lookahead=(made.lookahead or None) if isinstance(proposer, str) else None,
    )
    self.target = target
    self.loop = loop.Engine(
      target.model,
      target.params,
      made,
      making.params_of(draft, draft_weights) if draft is not None else (),
      verifier=VERIFIERS[verifier],
      slots=slots,
      capacity=capacity,
      tokenizer=target.tokenizer,
      stop_ids=target.tokenizer.eos_ids,
      seed=seed,
      **options,
    )

  def __repr__(self):
    return (
      f"Engine({self.target!r}, lookahead={self.lookahead}, "
      f"slots={self.loop.slots}, capacity={self.capacity})"
    )

  @property
  def capacity(self) -> int:
    """Most tokens of prompt and output together."""
    return self.loop.capacity

  @property
  def lookahead(self) -> int:
    """C, drafts per step at most."""
    return self.loop.lookahead

  def warmup(self) -> None:
    """Compiles everything now, so that the first request is fast."""
    self.loop.warmup()

  def refusal(self, request: Request) -> str | None:
    """Why a request cannot run, or None; told before anything compiles."""
    return self.loop.refusal(request)

  def run(self, requests: Iterable[Request]) -> Iterator[Chunk | Completion]:
    """Runs requests; yields pieces and completions as they happen."""
    return self.loop.run(requests)

  def encode(self, prompt) -> tuple[int, ...]:
    """Token ids of a text, of chat messages, or of ids as they are."""
    if isinstance(prompt, str):
      return tuple(self.target.tokenizer.encode(prompt))
    prompt = _as_list(prompt)
    if prompt and isinstance(prompt[0], Mapping):
      return tuple(self.target.tokenizer.encode_chat(prompt))
    return tuple(prompt)

  def generate(
    self, prompts, **settings
  ) -> Completion | list[Completion] | list[list[Completion]]:
    """Completes one prompt, or a list of them in its order.

    Args:
      prompts: a prompt or a list of them, each a text, a list of chat
        messages ({"role": ..., "content": ...}) or a list of ids.
      **settings: fields of `SamplingParams` and `Request` for all prompts:
        temperature, top_k, top_p, min_p, seed, repetition_penalty,
        presence_penalty, frequency_penalty, logit_bias ({id: bias}),
        max_new_tokens, stop, lookahead, n, logprobs (at most the engine's
        top_logprobs).

    Returns:
      A completion for a prompt, a list of them for a list; with n > 1 a list
      of n in each one's place. A prompt that cannot run (empty, too long) has
      an empty text and says why in `error`.

    Raises:
      ValueError: names the setting, its value and the fix.
    """
    single = isinstance(prompts, str)
    batch: Sequence = [prompts] if single else _as_list(prompts)
    if batch and isinstance(batch[0], (Mapping, int)):
      # A list of messages or of ids is itself one prompt.
      single, batch = True, [batch]
    requests = [
      self._request(prompt, str(index), settings)
      for index, prompt in enumerate(batch)
    ]
    done = {
      (event.id, event.sample): event
      for event in self.run(requests)
      if isinstance(event, Completion)
    }
    completions = []
    for request in requests:
      each = [done[request.id, sample] for sample in range(request.n)]
      completions.append(each if request.n > 1 else each[0])
    return completions[0] if single else completions

  def stream(self, prompt, **settings) -> Iterator[str]:
    """Completes one prompt; yields its text as it becomes stable.

    Raises:
      ValueError: names the setting, or says why the prompt cannot run.
    """
    request = self._request(prompt, "0", settings)
    if request.n > 1:
      raise ValueError(
        f"n is {request.n}; a stream is of one sample: leave n out, or call "
        "generate"
      )
    for event in self.run([request]):
      if isinstance(event, Chunk):
        if event.text:
          yield event.text
      elif event.error is not None:
        raise ValueError(event.error)

  def _request(self, prompt, name: str, settings) -> Request:
    settings = dict(settings)
    fields = [field.name for field in dataclasses.fields(SamplingParams)]
    sampling = {key: settings.pop(key) for key in fields if key in settings}
    others = {field.name for field in dataclasses.fields(Request)}
    unknown = set(settings) - (others - {"prompt", "id", "sampling"})
    if unknown:
      raise ValueError(
        f"unknown settings {', '.join(sorted(unknown))}; known: "
        + ", ".join(sorted({*fields, *others} - {"prompt", "id", "sampling"}))
      )
    if isinstance(settings.get("stop"), str):
      settings["stop"] = (settings["stop"],)
    if isinstance(settings.get("stop"), list):
      settings["stop"] = tuple(settings["stop"])
    request = Request(
      prompt=self.encode(prompt),
      id=name,
      sampling=SamplingParams(**sampling),
      **settings,
    )
    useless = idle(sampling)
    if useless is not None:
      raise ValueError(
        f"{useless} does nothing at temperature 0; give a temperature above "
        "0, or leave it out"
      )
    return request
