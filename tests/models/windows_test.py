"""Sliding windows over a cache that is written ahead and rolled back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import cache as cache_lib
from tests.models.golden import (
  LONG,
  WIDTH,
  blocks,
  close,
  lengths,
  load,
  with_junk_from,
)

# Where something changes in a text of LONG tokens: a window of 130 is full at
# 130 and begins in the second attention block from 258 on; the blocks' own
# edges are at 128 and 256.
EDGES = (128, 130, 256, 258)


def wrong(golden, block):
  """Other tokens than the block's, each of them."""
  return (block + 1) % golden.model.vocab_size


def rolled_back(golden, tokens, logits, cache, start, keep):
  """Writes C + 1 drafts at `start` [B], keeps `keep` [B] of each row, goes on.

  Checks that what follows is what it would be had no draft been wrong.
  """
  right, keep = blocks(tokens, start), np.asarray(keep)
  kept = np.arange(WIDTH) < keep[:, None]
  drafted = np.where(kept, right, wrong(golden, right))
  following = blocks(tokens, start + keep)
  results = []
  for block in (drafted, right):
    before = with_junk_from(cache, start)
    after = golden.run(block, before).cache.commit(lengths(*keep))
    results.append(golden.run(following, after))
  speculated, never = results
  np.testing.assert_array_equal(speculated.logits, never.logits)
  close(speculated.logits, blocks(logits, start + keep))


@pytest.mark.parametrize("name", ["mistral", "qwen2", "gemma2", "gemma3"])
def test_rule_20_a_rollback_across_a_windows_edge_is_exact(name):
  golden = load(name)
  window = max(golden.model.config.windows)
  cache = golden.full.cache
  for at in range(window - WIDTH, window + WIDTH + 1):
    for keep in range(3):
      # The second row keeps another number of its drafts, later on.
      start = np.array([max(at, 0), at + 2 * window])
      keeps = (keep, WIDTH - keep)
      rolled_back(golden, golden.tokens, golden.logits, cache, start, keeps)


@pytest.mark.parametrize("name", ["mistral_wide", "gemma3"])
def test_rule_20_a_rollback_across_an_attention_blocks_edge_is_exact(name):
  golden = load(name)
  tokens, logits, cache = golden.long
  for edge in EDGES:
    for at in range(edge - WIDTH, edge + 1):
      start = np.array([at, at + 2, at + 1])
      rolled_back(golden, tokens, logits, cache, start, (3, 0, 1))


@pytest.mark.parametrize("name", ["mistral_wide", "gemma3"])
def test_rule_22_a_block_over_a_windows_edge_equals_the_full_pass(name):
  golden = load(name)
  tokens, logits, cache = golden.long
  for at in range(110, LONG - WIDTH - 2, 3):
    start = (at, at + 1, at + 2)
    out = golden.run(blocks(tokens, start), with_junk_from(cache, start))
    close(out.logits, blocks(logits, start))


def test_rule_19_rows_of_unequal_length_equal_each_row_alone():
  golden = load("gemma3")
  tokens, logits, full = golden.long
  for start in [(0, 131, 290), (129, 0, 7), (255, 254, 1)]:
    block = blocks(tokens, start)
    cache = full.at(lengths(*start))
    out = golden.run(block, cache)
    for row, at in enumerate(start):
      alone = cache_lib.take_row(cache, row)
      alone = golden.run(block[row : row + 1], alone).logits[0]
      close(out.logits[row], alone)
      close(out.logits[row], logits[row, at : at + WIDTH])


@pytest.mark.parametrize("name", ["mistral_wide", "gemma3"])
def test_rule_7_a_row_is_bit_equal_whatever_its_neighbours_are(name):
  golden = load(name)
  tokens, _, full = golden.long
  at = 285
  block = blocks(tokens, (at, 20, 3))
  # A window that begins late: beside a short neighbour the row meets blocks
  # before it that are masked whole, beside a long one it does not.
  short = golden.run(block, full.at(lengths(at, 20, 3))).logits[0]
  long = golden.run(block[[0, 2, 1]], full.at(lengths(at, 290, 290))).logits[0]
  np.testing.assert_array_equal(short, long)


def test_what_lies_before_a_window_never_changes_a_result():
  golden = load("mistral")
  window = golden.model.config.windows[0]
  out = []
  for junk in (0.0, 1e30):
    cache, at = golden.full.cache, 30
    gone = jnp.arange(cache.capacity)[:, None] <= at - window
    cache = type(cache)(
      k=jnp.where(gone, junk, cache.k),
      v=jnp.where(gone, junk, cache.v),
      length=lengths(at, at),
    )
    out.append(golden.run(golden.tokens[:, at : at + WIDTH], cache).logits)
  np.testing.assert_array_equal(*out)
  close(out[0], golden.logits[:, at : at + WIDTH])


def test_layers_are_traced_once_for_each_kind_of_them():
  for name, layers, kinds in (("gemma3", 4, 2), ("mistral", 2, 1)):
    golden = load(name)
    tokens = jnp.zeros((1, 2), jnp.int32)
    cache = golden.model.init_cache(1, 8)
    traced = jax.make_jaxpr(golden.model)(golden.params, tokens, cache)
    calls = [
      equation.params["jaxpr"]
      for equation in traced.eqns
      if equation.params.get("name") == "_layer"
    ]
    assert len(calls) == layers
    assert len({id(call) for call in calls}) == kinds
