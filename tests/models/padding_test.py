"""Heads added so that they divide over chips leave every output as it was."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import decoder, padding
from specjax.sharding import axes
from tests.models import golden


@functools.cache
def config_of(heads, kv_heads):
  config = golden.load("llama_untied").model.config
  return dataclasses.replace(config, heads=heads, kv_heads=kv_heads)


def pad_all(model, params, config):
  """(the padded model, its parameters)."""
  new = decoder.build(config, dtype=model.dtype)
  assert new.paths == model.paths
  values = [
    jnp.asarray(padding.pad(config, names, np.asarray(value)))
    for names, value in zip(new.axes, params, strict=True)
  ]
  assert [v.shape for v in values] == [s.shape for s in new.shapes]
  return new, tuple(values)


# Heads, key/value heads and ways; what they become.
@pytest.mark.parametrize(
  "heads, kv_heads, ways, expected",
  [
    (8, 4, 1, (8, 4)),
    (8, 4, 4, (8, 4)),
    (8, 4, 8, (8, 8)),  # repeated: no query head is added
    (64, 8, 16, (64, 16)),  # Llama 2 70B
    (28, 4, 8, (32, 8)),  # Qwen 2.5 7B: groups of 7 become 4 and 3
    (8, 1, 4, (8, 4)),
    (6, 2, 4, (8, 4)),
    (9, 3, 2, (12, 4)),  # SmolLM2: zeros
    (9, 3, 4, (12, 4)),
    (9, 3, 8, (24, 8)),
    (12, 12, 8, (16, 16)),
    (4, 4, 8, (8, 8)),
  ],
)
def test_heads_become_a_multiple_of_the_ways(heads, kv_heads, ways, expected):
  config = config_of(heads, kv_heads)
  found = padding.padded(config, ways)
  assert (found.heads, found.kv_heads) == expected
  same = expected == (heads, kv_heads)
  assert found.heads_in_file == (None if same else (heads, kv_heads))
  assert padding.unpadded(found) == config
  assert padding.padded(found, ways) == found
  assert padding.padded(padding.padded(config, 3), ways) == found


@pytest.mark.parametrize(
  "heads, kv_heads, ways", [(8, 4, 8), (28, 4, 8), (9, 3, 8), (12, 12, 8)]
)
def test_every_query_head_keeps_its_key_head(heads, kv_heads, ways):
  config = padding.padded(config_of(heads, kv_heads), ways)
  queries = padding.heads_of(config, axes.HEADS)
  keys = padding.heads_of(config, axes.KV_HEADS)
  assert len(queries) == config.heads and len(keys) == config.kv_heads
  real = [head for head in queries if head != padding.ZERO]
  assert sorted(real) == list(range(heads))
  assert set(keys) - {padding.ZERO} == set(range(kv_heads))
  group = config.heads // config.kv_heads
  for new, head in enumerate(queries):
    if head != padding.ZERO:
      assert keys[new // group] == head // (heads // kv_heads)
  assert padding.heads_of(config, axes.EMBED) is None


# GPT-2: biases of q, k, v and o; llama_bias: likewise, grouped; Qwen 3: norms
# of queries and keys; Gemma 3: windows and norms.
@pytest.mark.parametrize(
  "name, ways",
  [
    ("llama_untied", 4),
    ("llama_untied", 3),
    ("llama_head_dim", 4),
    ("gpt2", 2),
    ("llama_bias", 4),
    ("llama_bias", 3),
    ("qwen3", 4),
    ("qwen3", 3),
    ("gemma3", 4),
  ],
)
def test_logits_of_a_padded_model_are_the_models_own(name, ways):
  own = golden.load(name)
  config = padding.padded(own.model.config, ways)
  assert config.heads_in_file is not None
  assert not config.kv_heads % ways and not config.heads % ways
  model, params = pad_all(own.model, own.params, config)
  rows, width = own.tokens.shape
  cache = model.init_cache(rows, width)
  logits = model(params, jnp.asarray(own.tokens, jnp.int32), cache).logits
  np.testing.assert_allclose(logits, own.full.logits, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name, ways", [("gpt2", 2), ("qwen3", 4)])
def test_padding_is_cut_off_again(name, ways):
  own = golden.load(name)
  config = padding.padded(own.model.config, ways)
  model, params = pad_all(own.model, own.params, config)
  for names, old, spec, new in zip(
    model.axes, own.params, model.shapes, params, strict=True
  ):
    assert padding.shape_in_file(config, names, spec.shape) == old.shape
    cut = padding.cut(config, names, np.asarray(new))
    np.testing.assert_array_equal(cut, old)
    assert padding.cut(own.model.config, names, cut) is cut


def test_no_ways_are_refused():
  with pytest.raises(ValueError, match="multiple of 0; give at least 1"):
    padding.padded(config_of(8, 4), 0)
