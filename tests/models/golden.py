"""The tiny random models of tests/goldens, loaded, and what is done to them."""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from specjax import cache as cache_lib
from specjax.checkpoints import hf
from specjax.models import config as config_lib
from specjax.models import decoder

GOLDENS = pathlib.Path(__file__).parents[1] / "goldens"
LLAMAS = (
  "llama_untied",
  "llama_untied_draft",
  "llama_tied",
  "llama_rope3",
  "llama_head_dim",
)
WINDOWED = ("mistral", "mistral_wide", "qwen2", "gemma2", "gemma3")
NAMES = (*LLAMAS, *WINDOWED, "llama_bias", "qwen3", "gemma3_vision", "gpt2")
# As one loop: a model of each kind of layer.
SCANNED = ("llama_untied", "llama_rope3", "qwen2", "gemma3", "gpt2")
# Each of a family or a kind of cached layer of its own, and short.
CACHED = (*LLAMAS, "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2")
# Long enough for three attention blocks.
LONG = 300
WIDTH = 5  # C + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Golden:
  """A tiny model, loaded, with what transformers computed from it."""

  model: decoder.Model
  params: tuple
  tokens: np.ndarray
  logits: np.ndarray
  hidden: np.ndarray
  bfloat16_error: np.ndarray  # PyTorch's own: mean, greatest

  @functools.cached_property
  def run(self):
    """The jitted forward pass: (tokens, cache) -> Output."""
    apply = jax.jit(self.model, static_argnums=3)
    return lambda tokens, cache, features=(): apply(
      self.params, jnp.asarray(tokens, jnp.int32), cache, features
    )

  @functools.cached_property
  def full(self):
    """One pass over the golden tokens, with the features of three layers."""
    rows, width = self.tokens.shape
    last = self.model.config.layers
    cache = self.model.init_cache(rows, width)
    return self.run(self.tokens, cache, (1, last, 0))

  @functools.cached_property
  def long(self):
    """(tokens [3, LONG], logits, the cache with them written, length 0)."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, self.model.vocab_size, (3, LONG))
    out = self.run(tokens, self.model.init_cache(3, LONG))
    return tokens, np.asarray(out.logits), out.cache


@functools.cache
def load(name, *, scan_layers=False, dtype=jnp.float32) -> Golden:
  folder = GOLDENS / name
  config = config_lib.from_hugging_face(hf.read_config(folder))
  model = decoder.build(config, dtype=dtype, scan_layers=scan_layers)
  params = hf.load_params(folder, model)
  with np.load(folder / "expected.npz") as expected:
    return Golden(model=model, params=params, **expected)


def lengths(*values):
  return jnp.asarray(values, jnp.int32)


def close(actual, expected):
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


@functools.cache
def junk(shape, dtype):
  """What a cache may hold at worst: large, of both signs, and not NaN."""
  rng = np.random.default_rng(9)
  values = np.float32(1e30) * rng.choice([-1, 1], shape).astype(np.float32)
  return np.asarray(cache_lib.pack(jnp.asarray(values), dtype))


def replaced_from(cache, start, k, v):
  """The cache with k and v instead of its own at and after `start` [B]."""
  slots = np.arange(cache.capacity)[:, None]
  kept = slots < np.asarray(start)[:, None, None, None]  # B 1 S 1
  return dataclasses.replace(
    cache,
    k=jnp.asarray(np.where(kept, cache.k, k)),
    v=jnp.asarray(np.where(kept, cache.v, v)),
    length=lengths(*start),
  )


def with_junk_from(cache, start):
  """The cache at length `start` [B], with junk in every slot beyond it."""
  worst = junk(cache.k.shape, cache.k.dtype)
  return replaced_from(cache, start, worst, worst)


def blocks(tokens, start, width=WIDTH):
  """Of each row the `width` tokens from its own start on: [B, width]."""
  return np.stack(
    [row[at : at + width] for row, at in zip(tokens, start, strict=False)]
  )
