"""A target's ends, which its heads share: embedding, final norm and logits."""

import dataclasses

from flax import nnx

from specjax.models import decoder
from specjax.models.config import DecoderConfig
from specjax.models.heads import module
from specjax.models.module import embedded, logits_of
from specjax.models.norms import make_norm
from specjax.sharding.placement import Placement
from specjax.types import Array, Params


class _Norm(nnx.Module):
  def __init__(self, config: DecoderConfig, dtype):
    self.norm = make_norm(config, dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ends:
  """Reads a target's embedding, norm and head from its own parameters.

  Attributes:
    config: the target's.
    placement: how it is split over a mesh, or None.
    embedding, head: the places of both tables in the target's parameters; one
      and the same where they are tied.
  """

  config: DecoderConfig
  placement: Placement | None
  embedding: int
  head: int
  _norm: module.Head = dataclasses.field(repr=False)
  _norms: tuple[int, ...] = dataclasses.field(repr=False)

  def embed(self, target_params: Params, tokens: Array) -> Array:
    """What the target's first layer would read, [B, T, D] of [B, T]."""
    table = target_params[self.embedding]
    return embedded(self.config, self.placement, table, tokens)

  def norm(self, target_params: Params, x: Array) -> Array:
    """The target's final norm of x [..., D]."""
    own = tuple(target_params[index] for index in self._norms)
    return self._norm.merge(own).norm(x)

  def logits(self, target_params: Params, x: Array) -> Array:
    """What the target's head makes of a normed x [B, T, D]: [B, T, V]."""
    table = target_params[self.head]
    return logits_of(self.config, self.placement, x, table)


def ends(target: decoder.Model) -> Ends:
  """Finds the ends of a target.

  Raises:
    ValueError: the target adds learned positions to its embedding, so that a
      token's embedding says more than the token.
  """
  config = target.config
  if config.has_position_table:
    raise ValueError(
      f"{config.architecture} adds learned positions to its embedding; heads "
      "that read the embedding need a target with rotary positions"
    )
  place = {path: index for index, path in enumerate(target.paths)}
  norm = module.split(_Norm(config, target.dtype))
  return Ends(
    config=config,
    placement=target.placement,
    embedding=place["embed.weight"],
    head=place["embed.weight" if config.tied else "head.weight"],
    _norm=norm,
    _norms=tuple(place[path] for path in norm.paths),
  )
