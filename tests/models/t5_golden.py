"""The tiny encoder-decoders of tests/goldens, loaded."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import hf
from specjax.models import decoder
from tests.models import golden

NAMES = ("t5", "t5_v1_1", "mt5", "byt5")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Golden(golden.Golden):
  """A tiny model with an encoder, loaded, with what transformers computed."""

  source: np.ndarray
  size: np.ndarray
  encoded: np.ndarray

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
  folder = golden.GOLDENS / name
  config = hf.read_decoder_config(folder)
  model = decoder.build(config, dtype=dtype, scan_layers=scan_layers)
  params = hf.load_params(folder, model)
  with np.load(folder / "expected.npz") as expected:
    return Golden(model=model, params=params, **expected)
