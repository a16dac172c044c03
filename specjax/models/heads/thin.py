"""Draft models that borrow: ends of the target's, or some of the ids alone.

A small model is mostly embedding and head. A thin one has neither and reads the
target's; with a reduced vocabulary its head is a few thousand rows.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from specjax.models import decoder
from specjax.models.base import Output
from specjax.models.config import DecoderConfig
from specjax.sharding import axes
from specjax.sharding.placement import Placement
from specjax.types import Array, Params

_EMBED, _HEAD = "embed.weight", "head.weight"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThinConfig:
  """What a draft model borrows.

  Attributes:
    decoder: its sizes and settings.
    is_thin: whether embedding and head are the target's.
    draft_vocab: Vd, how many ids it can draft; None for all.
  """

  decoder: DecoderConfig
  is_thin: bool
  draft_vocab: int | None = None

  @property
  def max_position(self) -> int:
    """The longest context, in tokens."""
    return self.decoder.max_position


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own:
  """The parameters that a draft has itself, as its folder holds them.

  Attributes:
    paths, shapes, axes, shardings: as those of `decoder.Model`.
  """

  paths: tuple[str, ...]
  shapes: tuple[jax.ShapeDtypeStruct, ...]
  axes: tuple[tuple[str, ...], ...]
  shardings: tuple[NamedSharding, ...] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThinModel:
  """A draft model as a pure function of its parameters and the target's.

  Its parameters are those of `head`, in order, and behind them, with a reduced
  vocabulary, `kept` int32 [Vd] (the target's ids, ascending) and those rows of
  whichever head it is [Vd, D].

  Attributes:
    config: what it borrows.
    model: the decoder, whose head is a parameter of its own: what takes its
      place is given to it in every call.
    vocab_size: V of the target.
    embedding, table: the places of the target's embedding and head in its
      parameters.
  """

  config: ThinConfig
  model: decoder.Model
  vocab_size: int
  embedding: int
  table: int

  @property
  def dtype(self) -> Any:
    """Of parameters, keys and values."""
    return self.model.dtype

  @property
  def placement(self) -> Placement | None:
    """How it is split over a mesh."""
    return self.model.placement

  @property
  def head(self) -> Own:
    """What it has itself."""
    lacks = set()
    if self.config.is_thin:
      lacks = {_EMBED, _HEAD}
    elif self.config.decoder.tied:
      lacks = {_HEAD}
    has = [n for n, path in enumerate(self.model.paths) if path not in lacks]
    pick = lambda each: tuple(each[n] for n in has)
    places = self.model.shardings
    return Own(
      paths=pick(self.model.paths),
      shapes=pick(self.model.shapes),
      axes=pick(self.model.axes),
      shardings=None if places is None else pick(places),
    )

  @property
  def draft_vocab(self) -> int:
    """Vd, the length of its logits."""
    if self.config.draft_vocab is not None:
      return self.config.draft_vocab
    if self.config.is_thin:
      return self.vocab_size
    return self.model.vocab_size

  @property
  def is_reduced(self) -> bool:
    """Whether there are ids that it cannot draft, and a list of the others."""
    drafted = self.config.draft_vocab
    return drafted is not None and drafted < self.vocab_size

  @property
  def shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
    """`jax.ShapeDtypeStruct` of every parameter."""
    if not self.is_reduced:
      return self.head.shapes
    rows = (self.draft_vocab, self.model.config.d_model)
    return (
      *self.head.shapes,
      jax.ShapeDtypeStruct((self.draft_vocab,), jnp.dtype(jnp.int32)),
      jax.ShapeDtypeStruct(rows, self.dtype),
    )

  @property
  def shardings(self) -> tuple[NamedSharding, ...] | None:
    """Where every parameter lies; None with no mesh."""
    if self.placement is None:
      return None
    own = self.head.shardings
    return (*own, self.placement.whole, self._rows) if self.is_reduced else own

  @property
  def _rows(self) -> NamedSharding:
    names = (axes.VOCAB, axes.EMBED)
    return self.placement.sharding(names, parameter=True)

  def kept(self, params: Params) -> Array | None:
    """The ids that it can draft, int32 [Vd]; None for all."""
    return params[-2] if self.is_reduced else None

  def complete(
    self, own: Params, target_params: Params, kept: Array | None = None
  ) -> Params:
    """All parameters, from those of `head`; see `EagleModel.complete`."""
    assert (kept is not None) == self.is_reduced
    if kept is None:
      return tuple(own)
    kept = jnp.asarray(kept, jnp.int32)
    take = lambda table, kept: jnp.take(table, kept, axis=0)
    table = self._ends(own, target_params)[1].astype(self.dtype)
    place = None if self.placement is None else self._rows
    return *own, kept, jax.jit(take, out_shardings=place)(table, kept)

  def init_cache(self, rows: int, capacity: int) -> Any:
    """An empty cache."""
    return self.model.init_cache(rows, capacity)

  def __call__(
    self,
    params: Params,
    target_params: Params,
    tokens: Array,
    cache: Any,
  ) -> Output:
    """Runs it; see `models.base.Model`. Its logits are [B, T, Vd]."""
    embed, head = self._ends(params, target_params)
    if self.is_reduced:
      head = params[-1]
    given = dict(zip(self.head.paths, params, strict=False))
    given |= {_EMBED: embed, _HEAD: head}
    whole = tuple(given[path] for path in self.model.paths)
    return self.model(whole, tokens, cache)

  def _ends(self, params: Params, target_params: Params):
    """Embedding and head [V, D], wherever they come from."""
    if self.config.is_thin:
      ends = (target_params[self.embedding], target_params[self.table])
      return tuple(one.astype(self.dtype) for one in ends)
    given = dict(zip(self.head.paths, params, strict=False))
    return given[_EMBED], given.get(_HEAD, given[_EMBED])


def build(
  config: ThinConfig, target: decoder.Model, *, dtype: Any = None
) -> ThinModel:
  """A draft model of shapes only, for a target.

  Args:
    config: its sizes, and what it borrows.
    target: whom it drafts for.
    dtype: the target's unless given.

  Raises:
    ValueError: names the size of draft and target that do not fit.
  """
  own, theirs = config.decoder, target.config
  if config.is_thin:
    _require(own, theirs, ("d_model", "vocab_size"))
  drafted = config.draft_vocab
  if drafted is not None and drafted > min(own.vocab_size, theirs.vocab_size):
    raise ValueError(
      f"the draft proposes {drafted} ids, and draft and target have "
      f"{own.vocab_size} and {theirs.vocab_size}; take this target's draft"
    )
  if target.placement is not None and drafted is not None:
    target.placement.check({axes.VOCAB: drafted}, "the draft")
  place = {path: index for index, path in enumerate(target.paths)}
  return ThinModel(
    config=config,
    model=decoder.build(
      dataclasses.replace(own, tied=False),
      dtype=jnp.dtype(target.dtype if dtype is None else dtype),
      placement=target.placement,
      name="the draft",
    ),
    vocab_size=target.vocab_size,
    embedding=place[_EMBED],
    table=place[_EMBED if theirs.tied else _HEAD],
  )


def _require(
  own: DecoderConfig, theirs: DecoderConfig, names: Sequence[str]
) -> None:
  for name in names:
    ours, target = getattr(own, name), getattr(theirs, name)
    if ours != target:
      raise ValueError(
        f"the draft takes embedding and head of a target with {name} {ours}, "
        f"and this one's is {target}; take this target's draft"
      )
