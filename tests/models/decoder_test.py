"""The decoder against PyTorch's Hugging Face models, and against RULES.md.

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
from tests.models.golden import (
  CACHED,
  LONG,
  NAMES,
  SCANNED,
  WIDTH,
  blocks,
  close,
  lengths,
  load,
  replaced_from,
  with_junk_from,
)


@pytest.mark.parametrize(
  "name, scan_layers",
  [*((name, False) for name in NAMES), *((name, True) for name in SCANNED)],
)
def test_full_pass_equals_hugging_face(name, scan_layers):
  golden = load(name, scan_layers=scan_layers)
  assert golden.full.logits.dtype == jnp.float32
  close(golden.full.logits, golden.logits)
  close(golden.full.features[:, :, 0], golden.hidden)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_features_come_in_the_order_asked_for(scan_layers):
  golden = load("llama_untied", scan_layers=scan_layers)
  params = dict(zip(golden.model.paths, golden.params, strict=True))
  _, last, first = np.moveaxis(np.asarray(golden.full.features), 2, 0)
  embedding = np.asarray(params["embed.weight"])[golden.tokens]
  np.testing.assert_array_equal(first, embedding)
  # The last layer's output is what the norm and the head make logits of.
  scale = 1 / np.sqrt(np.mean(last**2, -1, keepdims=True) + 1e-5)
  normed = last * scale * np.asarray(params["norm.weight"])
  close(normed @ np.asarray(params["head.weight"]).T, golden.logits)
  cache = golden.model.init_cache(2, 8)
  assert golden.run(golden.tokens[:, :WIDTH], cache).features is None


@pytest.mark.parametrize("scan_layers", [False, True])
def test_logits_of_one_position_a_row_are_those_of_the_whole_block(scan_layers):
  golden = load("llama_untied", scan_layers=scan_layers)
  cache = golden.model.init_cache(2, 8)
  block, last = golden.tokens[:, :WIDTH], jnp.asarray([0, WIDTH - 1])
  run = lambda **how: golden.model(golden.params, block, cache, **how)
  whole, one = run(), run(last=last)
  assert one.logits.shape[1] == 1
  close(one.logits[:, 0], whole.logits[jnp.arange(2), last])
  np.testing.assert_array_equal(one.cache.k, whole.cache.k)


@pytest.mark.parametrize("name", SCANNED)
def test_scanned_layers_equal_unrolled_ones(name):
  golden, scanned = load(name), load(name, scan_layers=True)
  assert scanned.model.parameter_count == golden.model.parameter_count
  close(scanned.full.logits, golden.full.logits)
  close(scanned.full.features, golden.full.features)
  close(scanned.full.cache.k, golden.full.cache.k)
  close(scanned.full.cache.v, golden.full.cache.v)


@pytest.mark.parametrize(
  "name, scan_layers",
  [
    *((name, False) for name in CACHED),
    ("llama_untied", True),
    ("gemma3", True),
  ],
)
def test_rule_22_a_block_at_every_offset_equals_the_full_pass(
  name, scan_layers
):
  golden = load(name, scan_layers=scan_layers)
  rows, length = golden.tokens.shape
  for offset in range(length - WIDTH + 1):
    # The committed prefix alone: everything from the offset on is junk.
    cache = with_junk_from(golden.full.cache, [offset] * rows)
    out = golden.run(golden.tokens[:, offset : offset + WIDTH], cache)
    close(out.logits, golden.logits[:, offset : offset + WIDTH])


@pytest.mark.parametrize(
  "name, scan_layers",
  [("llama_tied", False), ("gemma3", True), ("gpt2", False)],
)
def test_a_pass_without_a_cache_is_the_full_pass_and_has_a_gradient(
  name, scan_layers
):
  golden = load(name, scan_layers=scan_layers)
  model = golden.model

  def total(params):
    out = model(params, golden.tokens, None, (0, model.config.layers))
    assert out.cache is None
    return jnp.sum(jnp.square(out.logits)), out

  slopes, out = jax.grad(total, has_aux=True)(golden.params)
  close(out.logits, golden.full.logits)
  for slope in slopes:
    assert jnp.all(jnp.isfinite(slope)) and jnp.any(slope != 0)


def test_rule_22_one_wide_pass_equals_single_ones():
  golden = load("llama_rope3")
  tokens, _, full = golden.long
  # The middle row's block crosses from one attention block to the next.
  start = (3, cache_lib.BLOCK - 2, LONG - WIDTH)
  block = blocks(tokens, start)
  wide = golden.run(block, with_junk_from(full, start))
  cache, singles = with_junk_from(full, start), []
  for step in range(WIDTH):
    out = golden.run(block[:, step : step + 1], cache)
    cache = out.cache.commit(lengths(1, 1, 1))
    singles.append(out.logits)
  close(np.concatenate(singles, 1), wide.logits)
  np.testing.assert_array_equal(cache.length, np.add(start, WIDTH))


def test_rule_22_chunks_of_any_width_equal_the_full_pass():
  golden = load("llama_untied")
  tokens, logits, _ = golden.long
  cache, parts = golden.model.init_cache(3, LONG), []
  for chunk in np.split(tokens, [64, 128, 192, 256], axis=1):
    out = golden.run(chunk, cache)
    cache = out.cache.commit(lengths(*[chunk.shape[1]] * 3))
    parts.append(out.logits)
  close(np.concatenate(parts, 1), logits)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_rule_19_rows_of_unequal_length_equal_each_row_alone(scan_layers):
  golden = load("llama_untied", scan_layers=scan_layers)
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


def test_rule_7_a_row_is_bit_equal_whatever_its_neighbours_are():
  golden = load("llama_untied")
  tokens, _, full = golden.long
  block = tokens[:, 40 : 40 + WIDTH]
  # A neighbour near the end makes the attention walk blocks that are masked
  # whole for the first row.
  near = golden.run(block, full.at(lengths(40, 0, 3))).logits[0]
  far = golden.run(block[[0, 2, 1]], full.at(lengths(40, 290, 200))).logits[0]
  np.testing.assert_array_equal(near, far)


@pytest.mark.parametrize(
  "scan_layers, dtype",
  [(False, jnp.float32), (True, jnp.float32), (False, jnp.bfloat16)],
)
def test_rule_18_what_lies_beyond_the_length_never_changes_a_result(
  scan_layers, dtype
):
  golden = load("llama_untied", scan_layers=scan_layers, dtype=dtype)
  tokens, _, full = golden.long
  start = (0, 120, 250)
  block = tokens[:, :WIDTH]
  clean = golden.run(block, replaced_from(full, start, 0, 0)).logits
  for dirty in (full.at(lengths(*start)), with_junk_from(full, start)):
    np.testing.assert_array_equal(golden.run(block, dirty).logits, clean)


def test_rule_18_unwritten_slots_weigh_nothing():
  golden = load("llama_untied")
  block = golden.tokens[:, :WIDTH]
  small = golden.run(block, golden.model.init_cache(2, WIDTH))
  large = golden.run(block, golden.model.init_cache(2, 1024))
  np.testing.assert_allclose(small.logits, large.logits, rtol=0, atol=1e-5)


def test_rule_16_drafts_beyond_the_last_learned_position_change_nothing():
  golden = load("gpt2")
  limit = golden.model.config.max_position
  rng = np.random.default_rng(2)
  tokens = rng.integers(0, golden.model.vocab_size, (2, limit + WIDTH))
  cache = golden.model.init_cache(2, limit + WIDTH)
  for at in range(0, limit - WIDTH + 1, WIDTH):
    cache = golden.run(tokens[:, at : at + WIDTH], cache.at(lengths(at, at)))
    cache = cache.cache
  inside, beyond = limit - WIDTH, limit - 2
  full = golden.run(tokens[:, inside:limit], cache.at(lengths(inside, inside)))
  out = golden.run(
    tokens[:, beyond : beyond + WIDTH], full.cache.at(lengths(beyond, beyond))
  )
  close(out.logits[:, :2], full.logits[:, -2:])


@pytest.mark.parametrize("scan_layers", [False, True])
def test_rule_21_writing_near_capacity_changes_no_earlier_slot(scan_layers):
  golden = load("llama_untied", scan_layers=scan_layers)
  tokens, _, full = golden.long
  # The last place the block fits, the one before it, and somewhere inside.
  end = full.capacity - WIDTH
  start = (end, end - 1, 17)
  cache = with_junk_from(full, (LONG, LONG, LONG)).at(lengths(*start))
  # Other tokens than those the slots were written from.
  block = (blocks(tokens, (0, 1, 17)) + 1) % golden.model.vocab_size
  out = golden.run(block, cache).cache
  np.testing.assert_array_equal(out.length, start)
  for before, after in ((cache.k, out.k), (cache.v, out.v)):
    changed = np.asarray(before != after).any((0, 2, 4))  # B S
    for row, at in enumerate(start):
      expected = np.arange(at, at + WIDTH)
      np.testing.assert_array_equal(np.flatnonzero(changed[row]), expected)


@pytest.mark.parametrize(
  "name",
  ["llama_untied", "llama_rope3", "qwen3", "gemma2", "gpt2"],
)
def test_bfloat16_is_as_close_to_float32_as_pytorchs(name):
  golden = load(name, dtype=jnp.bfloat16)
  assert {p.dtype for p in golden.params} == {jnp.dtype(jnp.bfloat16)}
  error = np.abs(golden.full.logits - golden.logits)
  mean, greatest = golden.bfloat16_error
  assert error.mean() < 1.25 * mean
  assert error.max() < 2 * greatest


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("width", range(1, 10))
def test_bfloat16_runs_at_every_width_and_number_of_rows(width, rows):
  name = "llama_untied_draft"
  golden = load(name, dtype=jnp.bfloat16)
  tokens, logits, _ = load(name).long
  full = golden.long[2]
  start = (11, cache_lib.BLOCK - 1, 260)[:rows]
  cache = dataclasses.replace(
    full, k=full.k[:, :rows], v=full.v[:, :rows], length=lengths(*start)
  )
  out = golden.run(blocks(tokens, start, width), cache)
  assert out.logits.dtype == jnp.float32
  expected = blocks(logits, start, width)
  error = np.abs(out.logits - expected)
  mean, greatest = golden.bfloat16_error
  # Few positions, so a wider margin around PyTorch's mean over many.
  assert error.mean() < 2 * mean
  assert error.max() < 2 * greatest
