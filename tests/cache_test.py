"""The key/value cache: writes, lengths, rows and storage (RULES 18, 21)."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from specjax import cache as cache_lib
from specjax.cache import BLOCK, KVCache
from tests import engines, sourced, table_model
from tests.engines import CAPACITY, LOOKAHEAD, VOCAB, WIDTHS

LAYERS, ROWS, HEADS, SIZE = 2, 3, 2, 4
WIDTH = LOOKAHEAD + 1


def lengths(*values):
  return jnp.asarray(values, jnp.int32)


def empty(dtype=jnp.float32, capacity=BLOCK):
  return KVCache.zeros(
    layers=LAYERS,
    rows=ROWS,
    heads=HEADS,
    capacity=capacity,
    head_dim=SIZE,
    dtype=dtype,
  )


def full(length=(0, 0, 0)):
  """A cache in which no two entries are equal."""
  shape = empty().k.shape
  count = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
  return KVCache(
    k=jnp.asarray(count), v=jnp.asarray(-count), length=lengths(*length)
  )


def block(width=WIDTH):
  """(k, v) [B, T, K, H], unlike anything in `full`."""
  shape = (ROWS, width, HEADS, SIZE)
  k = 0.5 + np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
  return jnp.asarray(k), jnp.asarray(-k)


def same(tree, other):
  jax.tree.map(np.testing.assert_array_equal, tree, other)


@pytest.mark.parametrize(
  "asked, got", ((1, BLOCK), (BLOCK, BLOCK), (BLOCK + 1, 2 * BLOCK))
)
def test_capacity_is_rounded_up_to_whole_blocks(asked, got):
  cache = empty(capacity=asked)
  assert cache.capacity == got
  assert cache.k.shape == cache.v.shape == (LAYERS, ROWS, HEADS, got, SIZE)
  assert cache.length.tolist() == [0, 0, 0]
  assert not cache.k.any() and not cache.v.any()


@pytest.mark.parametrize("traced", (False, True))
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize(
  "start", ((0, 0, 0), (3, 0, 77), (BLOCK - WIDTH, BLOCK - WIDTH - 1, 1))
)
def test_rule_21_a_write_changes_its_own_slots_only(start, layer, traced):
  """Each row at its own length, up to the last place the block fits."""
  cache = full(start)
  k, v = block()
  write = jax.jit(KVCache.write, static_argnums=() if traced else 1)
  written = write(cache, layer, k, v)
  assert written.length.tolist() == list(start)  # only commit moves it
  old, new = jax.tree.map(np.array, (cache, written))
  for row, at in enumerate(start):
    slots = slice(at, at + WIDTH)
    for stack, values in ((new.k, k), (new.v, v)):
      here = stack[layer, row, :, slots]
      np.testing.assert_array_equal(here, np.swapaxes(values[row], 0, 1))
    # Put the old entries back: nothing else may differ.
    new.k[layer, row, :, slots] = old.k[layer, row, :, slots]
    new.v[layer, row, :, slots] = old.v[layer, row, :, slots]
  same(new, old)


def test_rule_21_one_row_and_one_token_are_written_alike():
  one = cache_lib.take_row(full((5, 9, 0)), 1)
  k, v = block(width=1)
  written = one.write(1, k[1:2], v[1:2])
  np.testing.assert_array_equal(written.k[1, 0, :, 9], k[1, 0])
  np.testing.assert_array_equal(written.v[1, 0, :, 9], v[1, 0])
  changed = np.argwhere(np.asarray(written.k != one.k).any((1, 2, 4)))
  assert changed.tolist() == [[1, 9]]


def test_rule_21_a_write_past_the_end_would_clobber_earlier_slots():
  """Why the owner of a cache keeps headroom for its widest pass."""
  cache = full((BLOCK - 2, 0, 0))
  changed = np.asarray(cache.write(0, *block()).k != cache.k)
  assert np.argwhere(changed[0, 0].any((0, 2))).min() < BLOCK - 2


@pytest.mark.parametrize("kind", ("sampled", "ngram", "none"))
def test_rule_21_an_engines_caches_have_headroom_for_every_pass(kind):
  state = engines.make(kind, table_model.make_table(VOCAB, seed=0)).state
  room = CAPACITY + max(LOOKAHEAD + 1 if kind != "none" else 1, *WIDTHS)
  assert state.cache.capacity >= room
  assert state.history.shape[1] >= room
  if kind == "sampled":
    assert state.draft.cache.capacity >= room


def test_commit_moves_each_row_by_its_own_count():
  cache = full((3, 0, 10))
  moved = cache.commit(lengths(2, 0, 5))
  assert moved.length.tolist() == [5, 0, 15]
  back = moved.at(lengths(1, 1, 1))
  assert back.length.tolist() == [1, 1, 1]
  for other in (moved, back):  # rollback erases nothing
    same((other.k, other.v), (cache.k, cache.v))


def tree(length=(4, 5, 6)):
  """What a state is made of: caches within structures, rows first, None."""
  return {
    "cache": full(length),
    "draft": (full(length[::-1]), jnp.arange(12.0).reshape(3, 4)),
    "last": jnp.asarray([7, 8, 9], jnp.int32),
    "active": jnp.asarray([True, True, True]),
    "none": None,
  }


def row_of(value, row, axis):
  return np.take(np.asarray(value), [row], axis)


@pytest.mark.parametrize("row", range(ROWS))
def test_take_row_gives_one_row_of_everything(row):
  one = jax.jit(cache_lib.take_row)(tree(), row)
  whole = tree()
  for got, cache in (
    (one["cache"], whole["cache"]),
    (one["draft"][0], whole["draft"][0]),
  ):
    np.testing.assert_array_equal(got.k, row_of(cache.k, row, 1))
    np.testing.assert_array_equal(got.v, row_of(cache.v, row, 1))
    np.testing.assert_array_equal(got.length, row_of(cache.length, row, 0))
  same(one["draft"][1], row_of(whole["draft"][1], row, 0))
  same(one["last"], row_of(whole["last"], row, 0))
  assert one["active"].shape == (1,) and one["none"] is None


@pytest.mark.parametrize("row", range(ROWS))
def test_put_row_undoes_take_row_and_touches_no_other(row):
  whole = tree()
  one = cache_lib.take_row(whole, row)
  same(cache_lib.put_row(whole, row, one), whole)
  changed = jax.tree.map(
    lambda leaf: ~leaf if leaf.dtype == bool else -leaf - 1, one
  )
  put = jax.jit(cache_lib.put_row)(whole, row, changed)
  same(cache_lib.take_row(put, row), changed)
  for other in set(range(ROWS)) - {row}:
    same(cache_lib.take_row(put, other), cache_lib.take_row(whole, other))


def test_rule_18_reset_rows_empties_some_rows():
  """Old entries stay: what is beyond a length is masked."""
  whole = tree()
  rows = jnp.asarray([True, False, True])
  new = cache_lib.reset_rows(whole, rows)
  same(cache_lib.take_row(new, 1), cache_lib.take_row(whole, 1))
  for row in (0, 2):
    got, old = (cache_lib.take_row(t, row) for t in (new, whole))
    for cache, before in (
      (got["cache"], old["cache"]),
      (got["draft"][0], old["draft"][0]),
    ):
      assert cache.length.tolist() == [0]
      same((cache.k, cache.v), (before.k, before.v))
    assert not got["draft"][1].any() and not got["last"].any()
    assert not got["active"].any()
  nobody = jnp.zeros((ROWS,), bool)
  same(cache_lib.reset_rows(whole, nobody), whole)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_rule_18_a_value_that_is_not_finite_is_kept_in_its_key_alone(broken):
  """A mask hides a key of NaN, but 0 x NaN, a masked value, is NaN."""
  k = jnp.ones((ROWS, 2, HEADS, SIZE))
  v = k.at[1, 0, 0, 0].set(broken)
  cache = full((1, 2, 3)).write(0, k, v)
  assert np.isfinite(cache.v).all()
  assert np.isnan(cache.k[0, 1, 0, 2]).all() and not cache.v[0, 1, 0, 2].any()
  assert np.isnan(cache.k).sum() == SIZE


def test_bfloat16_survives_storage_bit_by_bit():
  """All 65,536 of them, infinities and NaNs included."""
  bits = np.arange(2**16, dtype=np.uint16)
  values = bits.view(ml_dtypes.bfloat16)
  storage = cache_lib.storage_dtype(jnp.bfloat16)
  stored = cache_lib.pack(jnp.asarray(values), storage)
  assert stored.dtype == storage and stored.dtype.itemsize == 2
  np.testing.assert_array_equal(np.asarray(stored).view(np.uint16), bits)
  back = np.asarray(cache_lib.unpack(stored)).astype(np.float32)
  same(back, values.astype(np.float32))


def test_float32_is_rounded_to_bfloat16_as_ever():
  values = np.random.default_rng(0).normal(0, 1e3, 5000).astype(np.float32)
  stored = cache_lib.pack(
    jnp.asarray(values), cache_lib.storage_dtype(jnp.bfloat16)
  )
  back = np.asarray(cache_lib.unpack(stored)).astype(np.float32)
  same(back, values.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_float32_is_stored_as_it_is():
  assert cache_lib.storage_dtype(jnp.float32) == jnp.float32
  values = jnp.asarray([1e-30, -3.0, 1 / 3])
  same(cache_lib.unpack(cache_lib.pack(values, jnp.float32)), values)


def test_a_bfloat16_cache_is_written_in_its_storage_dtype():
  cache = empty(jnp.bfloat16).at(lengths(0, 7, 100))
  k, v = block()
  written = cache.write(1, k.astype(jnp.bfloat16), v.astype(jnp.bfloat16))
  assert written.k.dtype == cache_lib.storage_dtype(jnp.bfloat16)
  for row, at in enumerate((0, 7, 100)):
    got = cache_lib.unpack(written.k[1, row, :, at : at + WIDTH])
    same(np.asarray(got, np.float32), np.swapaxes(k[row], 0, 1))


@pytest.mark.parametrize("width", (1, 3, 5))
def test_parts_of_the_positions_together_hold_what_a_whole_cache_does(width):
  """Also a block that is wider than a part, or in none of a part."""
  stack = np.zeros((LAYERS, ROWS, HEADS, 12, SIZE), np.float32)
  new = np.asarray(block(width)[0]).swapaxes(1, 2)
  run, whole = map(jax.jit, (cache_lib.write_part, cache_lib.write_by_row))
  for start in range(12 - width + 1):
    at = np.int32([start, (start + 5) % (12 - width + 1), 0])
    expected = whole(stack, new, at, 1)
    parts = [
      run(stack[:, :, :, first : first + 4], new, at - first, 1)
      for first in (0, 4, 8)
    ]
    same(np.concatenate(parts, axis=3), expected)


def test_what_a_tpu_holds_is_stored_as_it_is():
  """Also where it is compiled on a CPU, for a slice that is not there."""
  assert cache_lib.storage_dtype(jnp.bfloat16, "tpu") == jnp.bfloat16
  assert cache_lib.storage_dtype(jnp.bfloat16, "cpu") == jnp.uint16


def test_a_tpu_writes_what_a_cpu_writes():
  cache, (k, _) = full((1, 2, 3)), block()
  new = k.swapaxes(1, 2)
  at = lengths(0, 7, 100)
  same(
    cache_lib.write_unrolled(cache.k, new, at, jnp.int32(1)),
    cache_lib.write_by_row(cache.k, new, at, jnp.int32(1)),
  )


# Rows move 7 to 5, one place on, across the cache, and nothing at all.
SOURCES, TARGETS = (7, 4, BLOCK - 1), (5, 4, 0)


def moved_by_hand(stack, sources=SOURCES, targets=TARGETS):
  stack = np.array(stack)
  for row, (source, to) in enumerate(zip(sources, targets, strict=True)):
    stack[:, row, :, to] = stack[:, row, :, source]
  return stack


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.uint16))
def test_an_entry_of_each_row_moves_in_every_layer_and_no_other_changes(dtype):
  cache = full((3, 0, 9))
  k, v = (cache_lib.pack(x, dtype) for x in (cache.k, cache.v))
  cache = KVCache(k=k, v=v, length=cache.length)
  moved = jax.jit(KVCache.move)(cache, lengths(*SOURCES), lengths(*TARGETS))
  assert moved.k.dtype == k.dtype
  np.testing.assert_array_equal(moved.k, moved_by_hand(k))
  np.testing.assert_array_equal(moved.v, moved_by_hand(v))
  same(moved.length, cache.length)  # only commit moves it


def test_where_nothing_moves_the_cache_is_bit_equal():
  cache = full((3, 0, 9))
  here = lengths(6, 0, BLOCK - 1)
  same(jax.jit(KVCache.move)(cache, here, here), cache)


def test_one_rows_entry_moves_alike():
  one = cache_lib.take_row(full((3, 0, 9)), 1)
  moved = one.move(lengths(9), lengths(2))
  np.testing.assert_array_equal(moved.k, moved_by_hand(one.k, (9,), (2,)))
  np.testing.assert_array_equal(moved.v, moved_by_hand(one.v, (9,), (2,)))


def test_of_an_encoder_decoder_the_outputs_entries_move_and_no_source_does():
  model, _ = sourced.build()
  cache = model.init_cache(ROWS, BLOCK)
  draws = np.random.default_rng(0)
  fill = lambda x: jnp.asarray(draws.integers(0, 99, x.shape), x.dtype)
  cache = jax.tree.map(fill, cache)
  moved = model.move(cache, lengths(*SOURCES), lengths(*TARGETS))
  own = dataclasses.replace(
    cache.own, k=moved_by_hand(cache.own.k), v=moved_by_hand(cache.own.v)
  )
  same(moved, dataclasses.replace(cache, own=own))
  assert (moved.own.k != cache.own.k).any()


@pytest.mark.parametrize("dtype", (jnp.float32, jnp.bfloat16))
@pytest.mark.parametrize("width", (1, 2, 7))
def test_a_value_that_is_not_finite_is_zeros_under_a_key_of_nan(width, dtype):
  """By the CPU's own kernel as by XLA; other positions keep every bit."""
  draws = np.random.default_rng(0)
  draw = lambda: draws.normal(size=(ROWS, width, HEADS, SIZE))
  k, v = (jnp.asarray(draw(), dtype) for _ in range(2))
  bad = np.zeros((ROWS, width, HEADS), bool)
  for n, value in enumerate((np.nan, np.inf, -np.inf)):
    here = (n, n % width, n % HEADS)
    bad[here] = True
    v = v.at[(*here, n)].set(value)
  cache = KVCache.zeros(
    layers=LAYERS, rows=ROWS, heads=HEADS, capacity=BLOCK, head_dim=SIZE,
    dtype=dtype,
  ).at(lengths(3, 0, 9))  # fmt: skip
  written = jax.jit(lambda *args: cache.write(1, *args))(k, v)
  want_k = np.where(bad[..., None], np.nan, np.asarray(k, np.float32))
  want_v = np.where(bad[..., None], 0, np.asarray(v, np.float32))
  for row, at in enumerate((3, 0, 9)):
    for stack, want in ((written.k, want_k), (written.v, want_v)):
      got = cache_lib.unpack(stack)[1, row, :, at : at + width]
      np.testing.assert_array_equal(got, want[row].swapaxes(0, 1))
