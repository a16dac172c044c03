"""What a benchmark is asked for, and the requests that follow from it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from specjax import api
from specjax.benchmark import asked, machine
from specjax.engine.request import Request
from specjax.jobs import prompts, requests


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """A benchmark's settings, by the names of specjax-benchmark's flags.

  Attributes:
    model: as `api.load` takes it.
    draft_model: the folder of the runs that draft with one and name none of
      their own, or None.
    draft_layers: the same for layer_skip; see `proposers.kinds.layers`.
    prompts: the prompt file's name, to be reported.
    chat: whether prompts are put through the chat template.
    runs: as `asked.parse` takes them.
    lookahead: C of each speculating run that names none, one run for each.
    draft_weights: of all runs that read a draft; see `api.Engine`.
    ngram_min, ngram_max, verifier, seed: of our engines; None is their own.
    dtype: float32 or bfloat16.
    temperature: 0 is greedy.
    max_new_tokens: the longest answer.
    slots: rows side by side.
    capacity: tokens of a slot; None is the engine's choice.
    rounds: how often everything is measured.
    peer: names of peers.
    gguf: the file for llama_cpp; None writes one.
  """

  model: str
  draft_model: str | None = None
  draft_layers: str | None = None
  prompts: str | None = None
  chat: bool = False
  runs: tuple[str, ...] = ("plain",)
  lookahead: tuple[int, ...] = (4,)
  draft_weights: str | None = None
  ngram_min: int | None = None
  ngram_max: int | None = None
  verifier: str | None = None
  seed: int | None = None
  dtype: str = "float32"
  temperature: float = 0.0
  max_new_tokens: int = 64
  slots: int = 1
  capacity: int | None = None
  rounds: int = 5
  peer: tuple[str, ...] = ()
  gguf: str | None = None

  def every_run(self) -> list[asked.Asked]:
    """The runs, plain decoding first."""
    return asked.every(self.runs, self.lookahead)

  @property
  def widest(self) -> int:
    """Positions of a row that the widest of the runs' passes reads."""
    return max(
      1 + (one.lookahead or 0) + one.siblings for one in self.every_run()
    )

  def drafts_with(self, one: asked.Asked) -> str | None:
    """The folder, or the layers, that a run drafts with; None for neither."""
    if one.what is not None:
      return one.what
    if one.kind == "layer_skip":
      return self.draft_layers
    needing = asked.folderless(self.every_run())
    return self.draft_model if one.kind in needing else None

  def engine_options(self) -> dict[str, Any]:
    """Options that all of our engines share."""
    options = {"slots": self.slots, "seed": self.seed or 0}
    if self.capacity is not None:
      options["capacity"] = self.capacity
    return options

  def about(self) -> dict[str, Any]:
    """The settings and the machine, for a record."""
    return {
      "model": self.model,
      "dtype": self.dtype,
      "rounds": self.rounds,
      "settings": dataclasses.asdict(self),
      "machine": machine.about(),
    }


def build(
  plan: Plan, rows: Sequence[prompts.Row | prompts.BadRow], encoder: Any
) -> list[Request]:
  """The requests of a prompt file.

  Raises:
    ValueError: names the line of a row that cannot be measured, and why.
  """
  runs = plan.every_run()
  defaults = requests.Defaults(
    chat=plan.chat,
    settings={
      "temperature": plan.temperature,
      "max_new_tokens": plan.max_new_tokens,
    },
    lookahead=max(*(one.lookahead or 0 for one in runs), *plan.lookahead),
  )
  built = []
  for row in rows:
    where = f"--prompts={plan.prompts}: line {row.line}"
    if isinstance(row, prompts.BadRow):
      raise ValueError(f"{where}: {row.error}")
    if "lookahead" in row.settings:
      raise ValueError(
        f"{where}: lookahead is what is compared here; leave it out of the row"
      )
    try:
      request = requests.build(row, defaults, encoder)
    except ValueError as error:
      raise ValueError(f"{where}: {error}") from None
    if plan.peer and (request.sampling.temperature or request.stop):
      what = "stop" if request.stop else "temperature"
      raise ValueError(
        f"{where}: {what} is not compared with a peer; leave it or --peer out"
      )
    built.append(request)
  return built


def check_room(built: Sequence[Request], engine: api.Engine) -> None:
  """Refuses requests that an engine would cut or refuse.

  Where the target reads a source, prompt and output each have the capacity.

  Raises:
    ValueError: names the prompt, its size and the fix.
  """
  model, capacity = engine.target.model, engine.capacity
  for request in built:
    size = len(request.prompt)
    together = size + request.max_new_tokens
    if model.reads_source:
      together = max(size, 1 + request.max_new_tokens)
    if together > capacity:
      raise ValueError(
        f"prompt {request.id!r} has {size} tokens, and with"
        f" {request.max_new_tokens} new ones does not fit --capacity={capacity}"
        "; raise it or lower --max_new_tokens"
      )
    if not size or max(request.prompt) >= model.vocab_size:
      raise ValueError(f"prompt {request.id!r} is empty or not of this model")
