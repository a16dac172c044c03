"""Decoding on eight simulated devices; run by decoding_test."""

import functools
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from specjax import layout
from specjax.benchmark import compiles
from specjax.cache import put_row, take_row
from specjax.engine import memory
from specjax.models import layers as layers_lib
from specjax.sharding.placement import LOGITS
from specjax.sharding.search import largest
from tests.sharding import eight


@functools.cache
def whole():
  """The answers of an engine on one device."""
  return eight.answers(eight.engine())


@functools.cache
def split():
  """Target by heads and rows, the draft likewise: Chen et al.'s setup."""
  engine = eight.engine("data:2,model:4", "tensor")
  engine.warmup()
  return engine


def programs(engine):
  """Compiled programs, by name."""
  nobody = np.zeros((engine.slots,), bool)
  own, rows = engine.programs, engine._fill_args({0: 0}, nobody)
  calls = {
    "speculate": (own.speculate, (engine.params, engine.state)),
    "plain": (own.plain, (engine.params, engine.state)),
    "prefill": (own.prefill[8], (engine.params, engine.state, *rows)),
    "admit": (own.admit, (engine.state, engine._told({}))),
    "copy": (own.copy, (engine.state, np.int32(0), np.int32(1))),
  }
  return {
    name: run.lower(*args).compile() for name, (run, args) in calls.items()
  }


@functools.cache
def texts():
  return {name: made.as_text() for name, made in programs(split()).items()}


def check_rule_24_and_27_a_split_run_gives_the_same_tokens_compiling_nothing():
  engine = split()
  with compiles.counted() as found:
    got = eight.answers(engine)
  eight.same_tokens(got, whole())
  assert not found, found


def check_rule_24_ngram_on_four_devices_is_greedily_the_same():
  """Greedy rows have one answer, whoever drafts."""
  engine = eight.engine("data:2,model:2", "tensor2d", proposer="ngram")
  wanted = [one for one in eight.requests() if one.sampling.temperature == 0]
  got = eight.answers(engine, wanted)
  eight.same_tokens(got, {key: whole()[key] for key in got})


def check_rule_24_siblings_are_the_same_however_the_cache_is_split():
  """Kept ones move from one part of the positions to another one's."""
  expected = eight.answers(eight.engine(siblings=3))
  plainly = {
    one.id for one in eight.requests() if one.sampling.temperature == 0
  }
  for key, tokens in expected.items():
    if key[0] in plainly:
      assert tokens == whole()[key]
  for mesh in (
    ("data:2,model:4", "tensor"),
    ("data:2,model:2", "tensor2d", "sequence"),
  ):
    got = eight.answers(eight.engine(*mesh, siblings=3))
    eight.same_tokens(got, expected)


def check_entries_move_between_devices_as_on_one():
  """Of positions that are split, within a part and from each to each."""
  draws = np.random.default_rng(0)
  source = jnp.asarray([5, 200, 3, 255, 70, 128, 9, 0], jnp.int32)
  to = jnp.asarray([4, 127, 128, 0, 70, 127, 250, 64], jnp.int32)
  caches = {}

  def moved(place):
    model = eight.model("chinchilla_tiny", place, layers=1)
    if not caches:
      shape = model.init_cache(8, 256).k.shape
      shape = (*shape[:3], 256, shape[4])
      for name in "kv":
        caches[name] = draws.standard_normal(shape).astype(np.float32)

    def run(k, v):
      cache = model.init_cache(8, 256)
      pad = [(0, 0)] * 3 + [(0, cache.capacity - 256), (0, 0)]
      k, v = jnp.pad(k, pad), jnp.pad(v, pad)
      cache = type(cache)(k=k, v=v, length=cache.length)
      cache = model.move(cache, source, to)
      return jnp.stack([cache.k, cache.v])[:, :, :, :, :256]

    return np.asarray(jax.jit(run)(**caches))

  eight.check_alike(moved, atol=0)


def check_every_leaf_of_the_state_is_donated():
  """What comes out is written over what went in: every cache, and the rest.

  Plain decoding does not read what the last step committed.
  """
  state = jax.tree.leaves(split().state)
  caches = {n for n, leaf in enumerate(state) if leaf.ndim == 5}
  assert len(caches) == 4
  for name, text in texts().items():
    (aliases,) = re.findall(r"input_output_alias={(.*?) }, entry", text)
    found = set(map(int, re.findall(r"{(\d+)}: \(", aliases)))
    assert found >= caches, (name, found)
    assert len(found) >= len(state) - 2 * (name == "plain"), (name, found)


def check_at_most_two_all_reduces_a_layer_and_forward_under_tensor():
  """Beside them one of what the layers read: the embedding's rows."""
  target, draft = 2 * 2 + 1, 2 * 1 + 1
  wanted = {
    # The draft's forwards: of the block that is new, and in the loop.
    "speculate": target + 2 * draft,
    "plain": target,
    # Logits are not needed, nor what the last layer makes beside its keys.
    "prefill": target - 2 + draft,
    "admit": 0,
    "copy": 0,
  }
  for name, text in texts().items():
    found = eight.of_layers(eight.collectives(text))
    assert all(one.kind == "all-reduce" for one in found), (name, found)
    assert len(found) <= wanted[name], (name, len(found), found)


def check_no_vocabulary_row_is_gathered_and_no_cache():
  """Sampling's own: numbers of each position, never its 264 logits."""
  vocab = split().state.penalties.bias.shape[1]
  stack = split().state.cache.k
  part = stack.addressable_shards[0].data.size
  for name in ("speculate", "plain", "prefill", "admit"):
    for one in eight.collectives(texts()[name]):
      assert not {vocab, vocab // 4} & set(one.shape), (name, one)
      assert np.prod(one.shape) < part // 8, (name, one)


def check_every_strategy_and_cache_gives_the_same_logits():
  draws = np.random.default_rng(0)
  tokens = draws.integers(0, 264, (8, 5)).astype(np.int32)
  lengths = jnp.asarray([3, 0, 7, 1, 120, 126, 127, 60], jnp.int32)
  caches = {}

  def logits(place):
    model = eight.model("chinchilla_tiny", place, layers=1)
    if not caches:  # junk beyond each length is masked
      cache = model.init_cache(8, 256)
      shape = (*cache.k.shape[:3], 256, cache.k.shape[-1])
      for name in "kv":
        caches[name] = draws.standard_normal(shape).astype(np.float32)

    def run(params, k, v):
      cache = model.init_cache(8, 256).at(lengths)
      pad = [(0, 0)] * 3 + [(0, cache.capacity - 256), (0, 0)]
      k, v = jnp.pad(k, pad), jnp.pad(v, pad)
      cache = type(cache)(k=k, v=v, length=cache.length)
      return model(params, tokens, cache).logits

    return np.asarray(jax.jit(run)(model.init(0), **caches))

  eight.check_alike(logits, atol=2e-5)


def check_the_memory_estimate_counts_what_one_device_holds():
  engine = split()
  first = jax.devices()[0]

  def held(tree):
    return sum(
      shard.data.nbytes
      for leaf in jax.tree.leaves(tree)
      for shard in leaf.addressable_shards
      if shard.device == first
    )

  place = eight.placement("data:2,model:4")
  found = memory.estimate(
    eight.model("chinchilla_tiny", place, layers=2),
    engine.proposer,
    engine.proposer.model.shapes,
    slots=4,
    capacity=eight.CAPACITY,
    prefill_widths=eight.WIDTHS,
    on_host=False,
  )
  assert found.held == held((engine.params, engine.state))
  cache = engine.state.cache
  assert found.target_cache == held(cache) < cache.k.nbytes // 3


def check_rows_are_taken_put_and_copied_where_they_lie():
  """As `take_row` and `put_row` do on one device, two groups at once."""
  engine = split()
  rows = {"cache": engine.state.cache, "draft": engine.state.draft}
  places = {
    "cache": engine._places.state.cache,
    "draft": engine._places.state.draft,
  }
  draws = np.random.default_rng(0)
  fill = lambda leaf: draws.integers(0, 99, leaf.shape).astype(leaf.dtype)
  here = jax.tree.map(fill, rows)
  there = jax.device_put(here, places)
  assert layout.row_ways(here, places) == 2
  at = jnp.asarray([1, 0], jnp.int32)  # rows 1 and 2

  def equal(got, expected):
    jax.tree.map(np.testing.assert_array_equal, got, expected)

  taken = jax.jit(lambda t: layout.take_rows(t, at, places))(there)
  for number, row in enumerate((1, 2)):
    one, other = take_row(here, row), take_row(jax.device_get(taken), number)
    equal(other, one)
  doubled = jax.tree.map(lambda leaf: 2 * leaf, taken)
  put = jax.jit(lambda t, s: layout.put_rows(t, at, s, places))(there, doubled)
  expected = here
  for row in (1, 2):
    double = jax.tree.map(lambda leaf: 2 * leaf, take_row(here, row))
    expected = put_row(expected, row, double)
  equal(put, expected)
  for source, target in ((0, 3), (3, 2)):
    copied = jax.jit(lambda t, s, d: layout.copy_row(t, s, d, places))(
      there, source, target
    )
    equal(copied, put_row(here, target, take_row(here, source)))


def check_the_likeliest_are_found_without_gathering():
  """Ties too: the lowest id comes first, as in one go."""
  place = eight.placement("data:2,model:4")
  draws = np.random.default_rng(0)
  logits = draws.integers(0, 9, (2, 3, 264)).astype(np.float32)
  there = jax.device_put(logits, place.sharding(LOGITS))
  run = jax.jit(functools.partial(largest, place, count=70))
  for got, expected in zip(run(there), jax.lax.top_k(logits, 70), strict=True):
    np.testing.assert_array_equal(got, expected)
  found = eight.collectives(run.lower(there).compile().as_text())
  assert found and all(one.shape[-1] == 4 * 66 for one in found)


def forward(place):
  """The compiled text of one forward pass of a layer."""
  model = eight.model("chinchilla_tiny", place, layers=1)
  tokens = jax.ShapeDtypeStruct((4, 5), jnp.int32)
  cache = jax.eval_shape(lambda: model.init_cache(4, 128))
  params = tuple(
    jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
    for shape, sharding in zip(model.shapes, model.shardings, strict=True)
  )
  return jax.jit(model).lower(params, tokens, cache).compile().as_text()


def check_a_third_all_reduce_in_a_layer_would_be_found():
  place = eight.placement("data:2,model:4")

  def count():
    jax.clear_caches()  # a layer is traced once for all
    return len(eight.of_layers(eight.collectives(forward(place))))

  assert count() == 3
  run = layers_lib.MLP.__call__

  def more(self, x):
    """With a sum over F, which is split."""
    inner = jnp.sum(self.up(x), axis=-1, keepdims=True)
    return run(self, x) + inner

  with mock.patch.object(layers_lib.MLP, "__call__", more):
    assert count() == 4


CHECKS = tuple(
  found for name, found in globals().items() if name.startswith("check_")
)

if __name__ == "__main__":
  eight.main(CHECKS)
