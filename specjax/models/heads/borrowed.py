"""What the models of all that borrows from a target share.

Their parameters are those of `head` (what is trained, and lies in a file), in
order, and behind them, with a reduced vocabulary, `kept` int32 [Vd] (the
target's ids, ascending) and, where they have no table of ids of their own,
those rows of the target's head [Vd, D].
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from specjax.cache import KVCache
from specjax.models import decoder
from specjax.models.heads import module
from specjax.models.heads.ends import Ends, ends
from specjax.models.int8 import ROWS
from specjax.models.module import capped
from specjax.sharding import axes
from specjax.sharding.placement import LOGITS, Placement, constrain
from specjax.types import Array, Params


class Borrower:
  """The parameters of such a model; see the module's docstring.

  One has `config` with a `draft_vocab`, `dtype`, `placement` and `head` with
  `paths`, `shapes` and `shardings`; and of the target `vocab_size` and
  `d_model`.
  """

  has_table = False  # whether its own parameters have a table of ids

  @property
  def draft_vocab(self) -> int:
    """Vd, the length of its logits."""
    drafted = self.config.draft_vocab
    return self.vocab_size if drafted is None else drafted

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
    size = self.draft_vocab
    kept = jax.ShapeDtypeStruct((size,), jnp.dtype(jnp.int32))
    if self.has_table:
      return (*self.head.shapes, kept)
    rows = jax.ShapeDtypeStruct((size, self.d_model), self.dtype)
    return (*self.head.shapes, kept, rows)

  @property
  def paths(self) -> tuple[str, ...]:
    """The name of every parameter."""
    return (*self.head.paths, "kept", ROWS)[: len(self.shapes)]

  @property
  def shardings(self) -> tuple[NamedSharding, ...] | None:
    """Where every parameter lies; None with no mesh."""
    if self.placement is None:
      return None
    extras = (self.placement.whole, self._row_sharding)
    return (*self.head.shardings, *extras)[: len(self.shapes)]

  def kept(self, params: Params) -> Array | None:
    """The ids that it can draft, int32 [Vd]; None for all."""
    return params[len(self.head.paths)] if self.is_reduced else None

  def complete(
    self, head_params: Params, target_params: Params, kept: Array | None = None
  ) -> Params:
    """All parameters, from those of `head`.

    Args:
      head_params: in the order of `head.paths`.
      target_params: the target's, of whose head rows are taken.
      kept: int32 [Vd], ascending; None without a reduced vocabulary.
    """
    assert (kept is not None) == self.is_reduced
    if kept is None:
      return tuple(head_params)
    kept = jnp.asarray(kept, jnp.int32)
    if self.has_table:
      return (*head_params, kept)
    rows = self._rows(self._table(head_params, target_params), kept)
    return (*head_params, kept, rows)

  def _table(self, head_params: Params, target_params: Params) -> Array:
    """The table of ids [V, D] of which rows are taken."""
    raise NotImplementedError

  def _rows(self, table: Array, kept: Array) -> Array:
    """A table's rows of some ids, int32 [Vd]: [Vd, D]."""
    place = None if self.placement is None else self._row_sharding
    take = lambda table, kept: jnp.take(table, kept, axis=0)
    return jax.jit(take, out_shardings=place)(table, kept).astype(self.dtype)

  @property
  def _row_sharding(self) -> NamedSharding:
    return self.placement.whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadModel(Borrower):
  """A head as pure functions of its parameters and the target's.

  Attributes:
    config: kind and sizes.
    dtype: of parameters, keys and values.
    head: the module's own parameters.
    ends: of the target.
    placement: where it works, or None; see `module.beside`.
  """

  config: Any
  dtype: Any
  head: module.Head
  ends: Ends
  placement: Placement | None

  @property
  def vocab_size(self) -> int:
    """V of the target."""
    return self.ends.config.vocab_size

  @property
  def d_model(self) -> int:
    """D of the target."""
    return self.ends.config.d_model

  @property
  def features(self) -> tuple[int, ...]:
    """The target's layers whose states it reads; see `models.base.Model`."""
    return self.config.features

  @property
  def logits_placement(self) -> Placement | None:
    """Whose rules say how logits are split; see `_product`."""
    return self.placement if self.is_reduced else self.ends.placement

  @property
  def logits_sharding(self) -> NamedSharding:
    """Of logits [B, Vd], on a mesh."""
    return self.logits_placement.sharding((axes.ROWS, axes.VOCAB))

  def init_cache(self, rows: int, capacity: int) -> KVCache:
    """An empty cache of its layer (Medusa has none); see `KVCache.zeros`."""
    layer = self.config.layer
    return KVCache.zeros(
      layers=1,
      rows=rows,
      heads=layer.kv_heads,
      capacity=capacity,
      head_dim=layer.head_dim,
      dtype=self.dtype,
      platform=None if self.placement is None else self.placement.platform,
    )

  def _table(self, head_params, target_params):
    del head_params
    return target_params[self.ends.head]

  def _merge(self, params: Params) -> Any:
    """The module with its own parameters."""
    return self.head.merge(params[: len(self.head.paths)])

  def _embedded(self, target_params: Params, tokens: Array) -> Array:
    """The target's embedding of tokens [B, T], in this dtype: [B, T, D]."""
    return self.ends.embed(target_params, tokens).astype(self.dtype)

  def _product(self, x: Array, table: Array) -> Array:
    """float32 logits [B, T, Vd] of x [B, T, D] and a table of ids [Vd, D].

    Each device makes those of its part of the target's vocabulary, and all of
    a reduced one: drawing from few ids takes less than to agree on a draw.
    """
    logits = module.product(self.placement, x, table)
    if self.is_reduced:
      return logits
    return constrain(self.ends.placement, logits, LOGITS)

  def _guess(self, params: Params, target_params: Params, x: Array) -> Array:
    """What the target's head, or some rows of it, makes of x [B, T, D]."""
    if self.is_reduced:
      return capped(self.ends.config, self._product(x, params[-1]))
    return self.ends.logits(target_params, x)


def require(
  who: str,
  sizes: Any,
  draft_vocab: int | None,
  target: decoder.Model,
  names: tuple[str, ...] = ("d_model", "vocab_size"),
) -> None:
  """Refuses what was made for another target.

  Args:
    who: what errors call it.
    sizes: has the target's sizes as attributes.
    draft_vocab: Vd, or None.
    target: whom it is to draft for.
    names: of the sizes that have to be equal.

  Raises:
    ValueError: names the size, both values and the fix.
  """
  for name in names:
    ours, theirs = getattr(sizes, name), getattr(target.config, name)
    if ours != theirs:
      raise ValueError(
        f"{who} for a target with {name} {ours}, and this one's is {theirs}; "
        "take this target's own"
      )
  if draft_vocab is not None and not 1 <= draft_vocab <= target.vocab_size:
    raise ValueError(
      f"{who} that proposes {draft_vocab} ids, and the target has "
      f"{target.vocab_size}; take this target's own"
    )


def parts(
  make: Any, config: Any, target: decoder.Model, dtype: Any = None
) -> dict[str, Any]:
  """The fields of a `HeadModel`.

  Args:
    make: (config, dtype, placement) to the head's module.
    config: the head's.
    target: whose states it reads.
    dtype: the target's unless given.
  """
  dtype = jnp.dtype(target.dtype if dtype is None else dtype)
  placement = module.beside(
    target.placement,
    getattr(config, "layer", None),
    by_vocab=config.draft_vocab in (None, target.vocab_size),
  )
  return dict(
    config=config,
    dtype=dtype,
    head=module.split(make(config, dtype, placement), placement),
    ends=ends(target),
    placement=placement,
  )
