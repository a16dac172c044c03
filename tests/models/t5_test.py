"""Encoder-decoders against PyTorch's Hugging Face models, and RULES.md.

The goldens are tiny random models with the logits that transformers computed;
goldens/make_goldens.py made them. RULES are the project's list of what a
correct speculative decoder satisfies; a test that shows one names its number.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import cache as cache_lib
from tests.models.golden import WIDTH, close, lengths, with_junk_from
from tests.models.t5_golden import NAMES, load


def junk_behind(cache, start):
  """At length `start` [B], with junk behind it and behind the sources."""
  return cache_lib.SourceCache(
    own=with_junk_from(cache.own, start),
    source=with_junk_from(cache.source, np.asarray(cache.source.length)),
  )


@pytest.mark.parametrize(
  "name, scan_layers",
  [*((name, False) for name in NAMES), ("t5", True), ("byt5", True)],
)
def test_full_pass_equals_hugging_face(name, scan_layers):
  golden = load(name, scan_layers=scan_layers)
  assert golden.full.logits.dtype == jnp.float32
  close(golden.full.logits, golden.logits)
  if golden.model.config.layers > 1:  # The last one's transformers has normed.
    close(golden.full.features[:, :, 0], golden.hidden)


@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_equals_hugging_face(name):
  golden = load(name)
  module = golden.model.merge(golden.params)
  x = module.embed["weight"][...][golden.source]
  at = np.arange(golden.source.shape[1])
  text = jnp.asarray(at < golden.size[:, None], jnp.int32)
  encoded = module.encoder(x, text)
  for row, size in enumerate(golden.size):
    close(encoded[row, :size], golden.encoded[row, :size])


@pytest.mark.parametrize(
  "name, scan_layers", [*((name, False) for name in NAMES), ("t5", True)]
)
def test_rule_22_a_block_at_every_offset_equals_the_full_pass(
  name, scan_layers
):
  golden = load(name, scan_layers=scan_layers)
  rows, length = golden.tokens.shape
  for offset in range(length - WIDTH + 1):
    cache = junk_behind(golden.full.cache, [offset] * rows)
    out = golden.run(golden.tokens[:, offset : offset + WIDTH], cache)
    close(out.logits, golden.logits[:, offset : offset + WIDTH])
    np.testing.assert_array_equal(out.cache.source.k, cache.source.k)


def test_rule_22_one_wide_pass_equals_single_ones():
  golden = load("t5")
  start = (3, 30)
  cache = junk_behind(golden.full.cache, start)
  block = np.stack(
    [golden.tokens[row, at : at + WIDTH] for row, at in enumerate(start)]
  )
  wide, singles = golden.run(block, cache), []
  for step in range(WIDTH):
    out = golden.run(block[:, step : step + 1], cache)
    cache = out.cache.commit(lengths(1, 1))
    singles.append(out.logits)
  close(np.concatenate(singles, 1), wide.logits)
  np.testing.assert_array_equal(cache.length, np.add(start, WIDTH))


@pytest.mark.parametrize("scan_layers", [False, True])
def test_rule_19_rows_with_sources_of_any_length_equal_each_row_alone(
  scan_layers,
):
  golden = load("t5_v1_1", scan_layers=scan_layers)
  for row in range(2):
    size = golden.size[row : row + 1]
    # As long as its own source: nothing stands behind it.
    source = golden.source[row : row + 1, : size[0]]
    cache = golden.encode(source, size, golden.model.init_cache(1, 300))
    out = golden.run(golden.tokens[row : row + 1], cache)
    close(out.logits[0], golden.logits[row])


def test_rule_23_what_pads_a_source_changes_nothing():
  golden = load("t5_v1_1")
  padded = np.where(
    np.arange(golden.source.shape[1]) < golden.size[:, None], golden.source, 3
  )
  cache = golden.encode(padded, golden.size, golden.model.init_cache(2, 300))
  np.testing.assert_array_equal(
    golden.run(golden.tokens, cache).logits, golden.full.logits
  )


@pytest.mark.parametrize("scan_layers", [False, True])
def test_a_row_without_a_new_source_keeps_the_one_that_it_has(scan_layers):
  golden = load("mt5", scan_layers=scan_layers)
  other = (golden.source + 1) % golden.model.vocab_size
  cache = golden.encode(other, np.int32([0, 9]), golden.full.cache)
  assert cache.source.length.tolist() == [golden.size[0], 9]
  before, after = golden.full.cache.source, cache.source
  np.testing.assert_array_equal(before.k[:, 0], after.k[:, 0])
  np.testing.assert_array_equal(before.v[:, 0], after.v[:, 0])
  assert np.any(np.asarray(before.k[:, 1]) != after.k[:, 1])
  for own in ("k", "v", "length"):
    np.testing.assert_array_equal(
      getattr(cache.own, own), getattr(golden.full.cache.own, own)
    )


def test_rule_7_a_row_is_bit_equal_whatever_its_neighbours_sources_are():
  golden = load("t5_v1_1")
  short = golden.source[1:2, :7]
  beside = np.zeros((2, 300), np.int32)
  beside[0, :7] = short
  alone = golden.encode(beside, [7, 1], golden.model.init_cache(2, 300))
  beside[1] = golden.source[0]
  both = golden.encode(beside, [7, 300], golden.model.init_cache(2, 300))
  out = [golden.run(golden.tokens, cache).logits[0] for cache in (alone, both)]
  np.testing.assert_array_equal(*out)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_is_as_close_to_float32_as_pytorchs(name):
  golden = load(name, dtype=jnp.bfloat16)
  assert {p.dtype for p in golden.params} == {jnp.dtype(jnp.bfloat16)}
  error = np.abs(golden.full.logits - golden.logits)
  mean, greatest = golden.bfloat16_error
  assert error.mean() < 1.25 * mean
  assert error.max() < 2 * greatest


@pytest.mark.parametrize("scan_layers", [False, True])
def test_some_layers_alone_have_the_sources_of_theirs(scan_layers):
  golden = load("t5", scan_layers=scan_layers)
  part = golden.model.only((0, 2))
  some = dataclasses.replace(golden, model=part)
  cache = some.encode(golden.source, golden.size, part.init_cache(2, 48))
  whole = golden.begun.source
  close(cache.source.k[0], whole.k[0])
  close(cache.source.k[1], whole.k[2])


@pytest.mark.parametrize(
  "name, scan_layers", [*((name, False) for name in NAMES), ("t5", True)]
)
def test_whole_outputs_beside_what_was_read_need_no_cache(name, scan_layers):
  golden = load(name, scan_layers=scan_layers)
  at = np.arange(golden.source.shape[1])
  text = (at < golden.size[:, None]).astype(np.int32)
  asking = np.ones_like(golden.tokens)

  @jax.jit
  def run(params, source):
    read = golden.model.read(params, source, text, asking)
    return golden.model(params, golden.tokens, read, (1,))

  out = run(golden.params, jnp.asarray(golden.source))
  close(out.logits, golden.logits)
  if golden.model.config.layers > 1:  # Theirs is normed after the last one.
    close(out.features[:, :, 0], golden.hidden)
  with pytest.raises(ValueError, match="give what `read` makes of it"):
    golden.model(golden.params, golden.tokens, None)
