"""The encoder of an encoder-decoder: it reads a whole source, both ways.

It runs once a request. Its layers are made of the decoder's parts.
"""

import functools

import jax
from flax import nnx
from jax import lax

from specjax.models import placed, relative
from specjax.models.attend import attend_source
from specjax.models.config import DecoderConfig
from specjax.models.layers import MLP, Attention
from specjax.models.norms import make_norm, param
from specjax.sharding import axes
from specjax.sharding.placement import Placement
from specjax.types import Array


class EncoderLayer(nnx.Module):
  """Pre-norm attention and MLP, each added to the residual stream."""

  def __init__(
    self,
    config: DecoderConfig,
    dtype,
    stack=None,
    placement: Placement | None = None,
  ):
    self.scale = config.attention_scale
    self.placement = placement
    self.attention_norm = make_norm(config, dtype, stack)
    self.attention = Attention(config, dtype, stack, placement)
    self.mlp_norm = make_norm(config, dtype, stack)
    self.mlp = MLP(config, dtype, stack, placement)

  def __call__(self, x: Array, text: Array, bias: Array) -> Array:
    """Runs it on x [B, T, D]; `text` and `bias` as `attend_source` has them."""
    parts = self.attention.parts(self.attention_norm(x))
    if self.placement is not None:
      names = (placed.QUERIES, placed.KEYS, placed.KEYS)
      both = zip(parts, names, strict=True)
      parts = [self.placement.constrain(part, name) for part, name in both]
    mixed = attend_source(*parts, text=text, bias=bias, scale=self.scale)
    if self.placement is not None:
      mixed = self.placement.constrain(mixed, placed.QUERIES)
    x = x + self.attention.o(mixed)
    return x + self.mlp(self.mlp_norm(x))


@functools.partial(jax.jit, static_argnums=0)
def _layer(graph, state, x, text, bias):
  """One layer, traced once for all; see `module._layer`."""
  return nnx.merge(graph, state)(x, text, bias)


class Encoder(nnx.Module):
  """Layers (a list, or one stacked) with biases by distance, and a norm."""

  def __init__(
    self,
    config: DecoderConfig,
    *,
    dtype,
    scan_layers: bool,
    placement: Placement | None = None,
  ):
    self.furthest = config.relative_distance
    self.relative = nnx.Dict(weight=distance_table(config, dtype))
    if scan_layers:
      self.layers = EncoderLayer(
        config, dtype, config.encoder_layers, placement
      )
    else:
      self.layers = nnx.List(
        [
          EncoderLayer(config, dtype, None, placement)
          for _ in range(config.encoder_layers)
        ]
      )
    self.norm = make_norm(config, dtype)

  def __call__(self, x: Array, text: Array) -> Array:
    """Encodes sources.

    Args:
      x: [B, T, D], their embeddings.
      text: int32 [B, T], which of its row's texts each token belongs to, and 0
        for padding: no text sees another.

    Returns:
      [B, T, D]; what stands at padding says nothing.
    """
    bias = relative.both_ways(self.relative["weight"][...], self.furthest)
    with jax.named_scope("encoder"):
      if isinstance(self.layers, EncoderLayer):
        graph, stacked = nnx.split(self.layers)

        def body(x, state):
          return _layer(graph, state, x, text, bias), None

        x, _ = lax.scan(body, x, stacked)
      else:
        for layer in self.layers:
          x = _layer(*nnx.split(layer), x, text, bias)
      return self.norm(x)


def distance_table(config: DecoderConfig, dtype) -> nnx.Param:
  """What a class of distances adds to each head's scores: [buckets, N]."""
  shape = (config.relative_buckets, config.heads)
  return param(shape, (axes.POSITION, axes.HEADS), dtype, None)
