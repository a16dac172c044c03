"""Which of a target's own layers draft for it best: a search without training.

Every draft with some of the layers costs what their weights and the head's do,
and is accepted with probability 1 - TV(p, q), or at temperature 0 where both
have one arg-max. So texts that the target wrote are read once by all of its
layers and once by each candidate, at the same positions (teacher-forced). All
prefixes are tried, and then layers are removed one after another: each time
the one whose loss costs the least acceptance. (Draft & Verify, Zhang et al.
2023, search with Bayesian optimisation over measured time.)
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.models import decoder
from specjax.types import Array, Params

TRIES = 6  # removals that a round looks at, the most promising ones first


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
  """What a target wrote.

  Attributes:
    tokens: ids of prompt and answer.
    answer: index of the answer's first token, >= 1.
  """

  tokens: tuple[int, ...]
  answer: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
  """Some of the layers, and what drafting with them would bring.

  Attributes:
    layers: their numbers, ascending.
    acceptance: alpha, the mean over all answers' positions.
    cost: c, weights that one draft reads, over those of a pass of the target.
    speed_up: over plain decoding, predicted (Leviathan et al. 2023, theorem
      3.8: as if drafts were accepted independently).
  """

  layers: tuple[int, ...]
  acceptance: float
  cost: float
  speed_up: float

  @property
  def is_prefix(self) -> bool:
    """Whether they are the first ones, which share the target's cache."""
    return self.layers == tuple(range(len(self.layers)))


def predicted(acceptance: float, cost: float, lookahead: int) -> float:
  """Speed-up of drafts of this acceptance and cost: see `Candidate`."""
  tokens = sum(acceptance**n for n in range(lookahead + 1))
  return tokens / (lookahead * cost + 1)


def search(
  model: decoder.Model,
  params: Params,
  texts: Sequence[Text],
  *,
  lookahead: int,
  temperature: float = 0.0,
  budget: int = 400,
  told: Callable[[Candidate], None] = lambda one: None,
) -> list[Candidate]:
  """Looks for the layers that draft best; the same ones each time.

  Args:
    model: the target, its layers unrolled.
    params: its parameters.
    texts: what it wrote, at `temperature`. All are read at once: their scored
      positions take 12 bytes of each of the V tokens.
    lookahead: C, of the predictions.
    temperature: 0 counts equal arg-maxes.
    budget: how many candidates are looked at, at most.
    told: hears of each of them.

  Returns:
    All prefixes, and of each size from two layers on the best subset that was
    found, the most promising first; of equals the one with fewer layers.

  Raises:
    ValueError: names what is wrong and the fix.
  """
  count = model.config.layers
  if not _is_unrolled(model):
    raise ValueError(
      "the model's layers are stacked (scan_layers=True); load it without, to "
      "search among them"
    )
  if count < 2:
    raise ValueError("the model has one layer; there is nothing to leave out")
  if lookahead < 1 or budget < 1:
    raise ValueError(
      f"lookahead is {lookahead} and budget {budget}; give each at least 1"
    )
  read = _Reader(model, params, texts, temperature)
  best: dict[tuple[int, ...], Candidate] = {}
  heard = set()
  for layers, acceptance, keep in _looks(read, count, budget):
    cost = cost_of(model, layers)
    one = Candidate(
      layers=layers,
      acceptance=acceptance,
      cost=cost,
      speed_up=predicted(acceptance, cost, lookahead),
    )
    if layers not in heard:
      told(one)
    heard.add(layers)
    if keep:
      best[layers] = one
  return sorted(best.values(), key=lambda c: (-c.speed_up, len(c.layers)))


def _looks(
  read: "_Reader", count: int, budget: int
) -> Iterator[tuple[tuple[int, ...], float, bool]]:
  """(layers, acceptance, whether it is one to keep) of every candidate."""
  states = read.states(range(count))
  for size in range(1, count):
    if budget == 0:
      return
    budget -= 1
    yield tuple(range(size)), read.acceptance(states[size]), True
  layers = tuple(range(count))
  # What the loss of a layer cost when it was last looked at; unknown is none.
  known = dict.fromkeys(layers, 1.0)
  tries = count  # all, the first time
  while len(layers) > 2:  # a prefix alone may be one layer
    order = sorted(layers, key=lambda layer: (-known[layer], layer))[:tries]
    found = None
    for layer in order[:budget]:
      place = layers.index(layer)
      x = read.run(states[place], layers[place + 1 :])
      known[layer] = read.acceptance(x)
      less = layers[:place] + layers[place + 1 :]
      if found is None or known[layer] > found[1]:
        found = (less, known[layer])
      yield less, known[layer], False
    budget -= len(order[:budget])
    if found is None:
      return
    yield (*found, True)
    layers, tries = found[0], TRIES
    states = read.states(layers)


def _is_unrolled(model: decoder.Model) -> bool:
  return any(path.startswith("layers.0.") for path in model.paths)


def cost_of(model: decoder.Model, layers: Sequence[int]) -> float:
  """Weights that a pass of these layers reads, over those of all of them."""

  # Of positions, and of an embedding that is no head, a pass reads a few rows.
  looked_up = {"position"} if model.config.tied else {"position", "embed"}

  def read(numbers):
    wanted = {str(number) for number in numbers}
    total = 0
    for path, shape in zip(model.paths, model.shapes, strict=True):
      kind, *rest = path.split(".")
      if kind not in looked_up and (kind != "layers" or rest[0] in wanted):
        total += math.prod(shape.shape)
    return total

  return read(layers) / read(range(model.config.layers))


class _Reader:
  """The texts, read by any of the layers, and what the target says of them.

  Layers run one by one, each a compiled program that all of them share: a
  candidate costs no compilation, and shares its beginning with others.
  """

  def __init__(self, model, params, texts, temperature):
    positions = [
      (row, at)
      for row, text in enumerate(texts)
      for at in range(text.answer - 1, len(text.tokens) - 1)
    ]
    if not positions or any(text.answer < 1 for text in texts):
      raise ValueError(
        "there is no text with a prompt and an answer; give prompts that the "
        "target answers"
      )
    width = max(len(text.tokens) for text in texts)
    tokens = np.zeros((len(texts), width), np.int32)
    for row, text in enumerate(texts):
      tokens[row, : len(text.tokens)] = text.tokens
    self._module = model.merge(params)
    self._x, *self._where = self._module.begin(jnp.asarray(tokens), None)
    place = jnp.asarray(positions, jnp.int32)
    settings = dataclasses.replace(
      sampling.RowSettings.greedy(1),
      temperature=jnp.full((1,), temperature, jnp.float32),
    )

    def law(params: Params, x: Array) -> Array:
      """float32 [1, P, V] at the answers' positions, of x [B, T, D]."""
      x = x[place[:, 0], place[:, 1]][None]
      return sampling.probs(model.merge(params).logits(x), settings)

    @jax.jit
    def agreement(params, x, wanted):
      return jnp.mean(jnp.sum(jnp.minimum(law(params, x), wanted), axis=-1))

    last = self.states(range(model.config.layers))[-1]
    wanted = jax.jit(law)(params, last)
    self._agreement = functools.partial(agreement, params)
    self._wanted = wanted

  def run(self, x: Array, layers: Sequence[int]) -> Array:
    """What these layers make of x [B, T, D]."""
    for layer in layers:
      x, _ = self._module.layer(layer, layer, x, None, *self._where)
    return x

  def states(self, layers: Sequence[int]) -> list[Array]:
    """What each of these layers reads, and what the last one gives."""
    found = [self._x]
    for layer in layers:
      found.append(self.run(found[-1], (layer,)))
    return found

  def acceptance(self, x: Array) -> float:
    """The mean of 1 - TV(p, q) where q is read off x."""
    return float(self._agreement(x, self._wanted))
