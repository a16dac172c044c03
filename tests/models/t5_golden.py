"""The tiny encoder-decoders of tests/goldens, loaded."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import hf
from specjax.models import decoder
from tests.models.golden import GOLDENS

NAMES = ("t5", "t5_v1_1", "mt5", "byt5")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Golden:
  """A tiny model, loaded, with what transformers computed from it."""

  model: decoder.Model
  params: tuple
  tokens: np.ndarray
  source: np.ndarray
  size: np.ndarray
  logits: np.ndarray
  hidden: np.ndarray
  encoded: np.ndarray
  bfloat16_error: np.ndarray  # PyTorch's own: mean, greatest

  @functools.cached_property
  def run(self):
    """The jitted forward pass: (tokens, cache) -> Output."""
    apply = jax.jit(self.model, static_argnums=3)
    return lambda tokens, cache, features=(): apply(
      self.params, jnp.asarray(tokens, jnp.int32), cache, features
    )

  @functools.cached_property
  def encode(self):
    """The jitted encoder: (source, size, cache) -> cache."""
    apply = jax.jit(self.model.encode)
    return lambda source, size, cache: apply(
      self.params,
      jnp.asarray(source, jnp.int32),
      jnp.asarray(size, jnp.int32),
      cache,
    )

  @functools.cached_property
  def begun(self):
    """A cache of the golden sources, with nothing said yet."""
    cache = self.model.init_cache(2, self.source.shape[1])
    return self.encode(self.source, self.size, cache)

  @functools.cached_property
  def full(self):
    """One pass over the golden tokens, with the features of two layers."""
    last = self.model.config.layers
    return self.run(self.tokens, self.begun, (1, last))


@functools.cache
def load(name, *, scan_layers=False, dtype=jnp.float32) -> Golden:
  folder = GOLDENS / name
  config = hf.read_decoder_config(folder)
  model = decoder.build(config, dtype=dtype, scan_layers=scan_layers)
  params = hf.load_params(folder, model)
  with np.load(folder / "expected.npz") as expected:
    return Golden(model=model, params=params, **expected)
