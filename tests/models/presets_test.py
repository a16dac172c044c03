"""Presets are the published models; Chinchilla, which is not, adds up."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import decoder, presets
from tests.models import published_test

# Preset -> the published config.json that it stands for.
PUBLISHED = {
  "llama2_70b": "Llama-2-70b-hf",
  "llama2_7b": "Llama-2-7b-hf",
  "llama3_70b": "Llama-3.1-70B-Instruct",
  "llama3_8b": "Llama-3.1-8B-Instruct",
  "llama3_1b": "Llama-3.2-1B-Instruct",
  "qwen3_32b": "Qwen3-32B",
  "qwen3_0_6b": "Qwen3-0.6B",
  "gemma3_27b": "gemma-3-27b-it",
  "gemma3_1b": "gemma-3-1b-it",
}
CHINCHILLAS = {
  "chinchilla_70b": (64_687_972_352, 70.06e9),
  "chinchilla_4b": (3_820_591_104, 4.12e9),
}
T5S = {
  "t5_xxl": 11_135_332_352,
  "t5_large": 783_150_080,
  "t5_base": 247_577_856,
  "t5_small": 76_961_152,
}
TINY = (
  *("chinchilla_tiny", "chinchilla_tiny_draft"),
  *("t5_tiny", "t5_tiny_draft"),
)


@pytest.mark.parametrize("name, published", PUBLISHED.items())
def test_a_preset_is_the_published_model(name, published):
  config = presets.get(name)
  theirs = published_test.published(published)
  # Theirs reads images too and names its tensors for that.
  assert config == dataclasses.replace(theirs, architecture=config.architecture)
  model = decoder.build(config, scan_layers=True)
  assert model.parameter_count == published_test.COUNTS[published]


@pytest.mark.parametrize("name, counts", CHINCHILLAS.items())
def test_chinchilla_has_its_size_but_for_the_position_projection(name, counts):
  config = presets.get(name)
  ours, with_projection = counts
  count = decoder.build(config, scan_layers=True).parameter_count
  assert count == ours
  projection = config.layers * config.d_model * config.heads * config.head_dim
  assert round((count + projection) / 1e9, 2) == with_projection / 1e9


@pytest.mark.parametrize("name, count", T5S.items())
def test_t5_has_the_published_count_of_v1_1(name, count):
  assert decoder.build(presets.get(name)).parameter_count == count


def test_every_preset_is_tried_here():
  assert set(presets.PRESETS) == {*PUBLISHED, *CHINCHILLAS, *T5S, *TINY}


def test_the_tiny_ones_divide_over_eight_devices():
  for name in TINY:
    config = presets.get(name)
    for size in (
      config.vocab_size,
      config.d_model,
      config.heads,
      config.kv_heads,
      config.d_ff,
    ):
      assert size % 8 == 0


def test_no_caller_can_change_a_preset():
  presets.config_json("llama3_8b")["rope_scaling"]["factor"] = 1.0
  assert presets.get("llama3_8b").rope_scaling.factor == 8.0


def test_an_unknown_preset_is_refused_by_name():
  with pytest.raises(ValueError, match="no preset 'llama9'; .* chinchilla_70b"):
    presets.get("llama9")


def reference(config, params, tokens):
  """Chinchilla's logits of one row in NumPy, float64: [T, V]."""

  def norm(x, weight):
    return (
      x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * weight
    )

  def rotate(x):  # T N H
    half = config.head_dim // 2
    turn = config.rope_theta ** -(np.arange(half) / half)
    angle = (np.arange(len(x))[:, None] * turn)[:, None]
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate(
      [first * cos - second * sin, second * cos + first * sin], -1
    )

  def gelu(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x * (1 + np.tanh(inner)) / 2

  embed = params["embed.weight"]
  x = embed[tokens]
  hidden = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
  for i in range(config.layers):
    p = {
      path.removeprefix(f"layers.{i}."): value
      for path, value in params.items()
      if path.startswith(f"layers.{i}.")
    }
    y = norm(x, p["attention_norm.weight"])
    q, k, v = (
      np.einsum("td,nhd->tnh", y, p[f"attention.{name}.weight"])
      for name in "qkv"
    )
    scores = np.einsum("inh,jnh->nij", rotate(q), rotate(k))
    scores = scores / math.sqrt(config.head_dim) + hidden
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("nij,jnh->inh", weights, v)
    x = x + np.einsum("inh,dnh->id", mixed, p["attention.o.weight"])
    y = norm(x, p["mlp_norm.weight"])
    x = x + gelu(y @ p["mlp.up.weight"].T) @ p["mlp.down.weight"].T
  return norm(x, params["norm.weight"]) @ embed.T


def test_chinchilla_computes_what_its_formulas_say():
  config = presets.get("chinchilla_tiny_draft")
  model = decoder.build(config)
  params = model.init(3)
  tokens = np.random.default_rng(0).integers(0, config.vocab_size, 9)
  named = {
    path: np.asarray(value, np.float64)
    for path, value in zip(model.paths, params, strict=True)
  }
  out = jax.jit(model)(
    params, jnp.asarray(tokens[None], jnp.int32), model.init_cache(1, 16)
  )
  np.testing.assert_allclose(
    out.logits[0], reference(config, named, tokens), rtol=0, atol=1e-4
  )
