"""Draft models that borrow: ends of the target's, or some of the ids alone.

A small model is mostly embedding and head. A thin one has neither and reads the
target's; with a reduced vocabulary its head is a few thousand rows.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from specjax.models import decoder
from specjax.models.base import Output
from specjax.models.config import DecoderConfig
from specjax.models.heads import borrowed
from specjax.models.heads.borrowed import Borrower
from specjax.sharding import axes
from specjax.sharding.placement import Placement
from specjax.types import Array, Params

_EMBED, _HEAD = "embed.weight", "head.weight"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThinConfig:
  """What a draft model borrows.

  Attributes:
    decoder: its sizes and settings.
    is_thin: whether its embedding is the target's, and so its head.
    draft_vocab: Vd, how many ids it can draft; None for all.
    own_head: whether a thin one's head is its own nevertheless: Vd rows.
  """

  decoder: DecoderConfig
  is_thin: bool
  draft_vocab: int | None = None
  own_head: bool = False

  @property
  def max_position(self) -> int:
    """The longest context, in tokens."""
    return self.decoder.max_position


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own:
  """The parameters that a draft has itself, as its folder holds them.

  Attributes:
    paths, shapes, shardings: as those of `decoder.Model`.
  """

  paths: tuple[str, ...]
  shapes: tuple[jax.ShapeDtypeStruct, ...]
  shardings: tuple[NamedSharding, ...] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThinModel(Borrower):
  """A draft model as a pure function of its parameters and the target's.

  See `heads.borrowed` for its parameters; with a reduced vocabulary those rows
  are of whichever head it is.

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
  def has_table(self) -> bool:
    """Whether its own parameters have a table of the ids that it drafts."""
    return self.config.own_head

  @property
  def head(self) -> Own:
    """What it has itself."""
    lacks = set()
    if self.config.is_thin:
      lacks = {_EMBED} if self.config.own_head else {_EMBED, _HEAD}
    elif self.config.decoder.tied:
      lacks = {_HEAD}
    has = [n for n, path in enumerate(self.model.paths) if path not in lacks]
    pick = lambda each: tuple(each[n] for n in has)
    places, shapes = self.model.shardings, list(self.model.shapes)
    if self.config.own_head:
      at = self.model.paths.index(_HEAD)
      size = (self.draft_vocab, self.model.config.d_model)
      shapes[at] = jax.ShapeDtypeStruct(size, shapes[at].dtype)
    return Own(
      paths=pick(self.model.paths),
      shapes=pick(shapes),
      shardings=None if places is None else pick(places),
    )

  @property
  def d_model(self) -> int:
    """Its own D, which is the target's where the head is."""
    return self.model.config.d_model

  @property
  def draft_vocab(self) -> int:
    """Vd, the length of its logits."""
    if self.config.is_thin or self.config.draft_vocab is not None:
      return super().draft_vocab
    return self.model.vocab_size

  @property
  def _row_sharding(self) -> NamedSharding:
    names = (axes.VOCAB, axes.EMBED)
    return self.placement.sharding(names, parameter=True)

  def _table(self, head_params, target_params):
    return self._ends(head_params, target_params)[1]

  def init_cache(self, rows: int, capacity: int) -> Any:
    """An empty cache."""
    return self.model.init_cache(rows, capacity)

  def __call__(
    self,
    params: Params,
    target_params: Params,
    tokens: Array,
    cache: Any,
    last: Array | None = None,
  ) -> Output:
    """Runs it; see `models.base.Model`. Its logits are [B, T, Vd]."""
    embed, head = self.ends(params, target_params)
    given = dict(zip(self.head.paths, params, strict=False))
    given |= {_EMBED: embed, _HEAD: head}
    whole = tuple(given[path] for path in self.model.paths)
    return self.model(whole, tokens, cache, last=last)

  def ends(self, params: Params, target_params: Params) -> tuple[Array, Array]:
    """The embedding [V, D] and the rows of ids that it drafts, [Vd, D]."""
    embed, head = self._ends(params, target_params)
    if self.is_reduced and not self.config.own_head:
      head = params[-1]
    return embed, head

  def _ends(self, params: Params, target_params: Params):
    """Embedding and head, wherever they come from."""
    if self.config.is_thin:
      ends = (target_params[self.embedding], target_params[self.table])
      if self.config.own_head:
        ends = (ends[0], params[self.head.paths.index(_HEAD)])
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
  own, drafted = config.decoder, config.draft_vocab
  assert config.is_thin or not config.own_head
  names = ("d_model", "vocab_size") if config.is_thin else ()
  borrowed.require("a draft", own, drafted, target, names)
  if drafted is not None and drafted > own.vocab_size:
    raise ValueError(
      f"a draft that proposes {drafted} ids, and its own vocabulary has "
      f"{own.vocab_size}; take this target's own"
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
    table=place[_EMBED if target.config.tied else _HEAD],
  )
