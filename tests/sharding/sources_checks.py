"""Encoder-decoders on eight simulated devices; run by sources_test."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.benchmark import compiles
from specjax.engine import memory
from tests.sharding import eight


def build(*split, **options):
  """An engine of an encoder-decoder; the rest as `eight.engine`."""
  return eight.engine(*split, family="t5", **options)


@functools.cache
def whole():
  """The answers of an engine on one device."""
  return eight.answers(build())


@functools.cache
def split():
  """Target by heads and rows, the draft likewise."""
  engine = build("data:2,model:4", "tensor")
  engine.warmup()
  return engine


def check_rule_24_and_27_a_split_run_gives_the_same_tokens_compiling_nothing():
  engine = split()
  with compiles.counted() as found:
    got = eight.answers(engine)
  eight.same_tokens(got, whole())
  assert not found, found


def check_rule_24_ngram_on_four_devices_is_greedily_the_same():
  engine = build("data:2,model:2", "tensor2d", proposer="ngram")
  wanted = [one for one in eight.requests() if one.sampling.temperature == 0]
  got = eight.answers(engine, wanted)
  eight.same_tokens(got, {key: whole()[key] for key in got})


def check_a_source_is_split_as_the_cache_is_and_is_donated_with_it():
  engine = split()
  own, source = engine.state.cache.own.k, engine.state.cache.source.k
  assert source.sharding == own.sharding
  part = source.addressable_shards[0].data
  layers, rows, heads, capacity, size = source.shape
  assert part.shape == (layers, rows // 2, heads // 4, capacity, size)
  for program in (engine.programs.speculate, engine.programs.plain):
    made = program.lower(engine.params, engine.state).compile()
    stacks = [leaf for leaf in jax.tree.leaves(engine.state) if leaf.ndim == 5]
    assert len(stacks) == 8
    held = sum(x.addressable_shards[0].data.nbytes for x in stacks)
    assert made.memory_analysis().alias_size_in_bytes >= held


def check_every_strategy_and_cache_gives_the_same_logits():
  draws = np.random.default_rng(0)
  tokens = draws.integers(0, 264, (8, 5)).astype(np.int32)
  source = draws.integers(0, 264, (8, 150)).astype(np.int32)
  sizes = jnp.asarray([3, 150, 7, 1, 120, 129, 127, 60], jnp.int32)

  def logits(place):
    model = eight.model("t5_tiny", place, layers=1)

    def run(params):
      cache = model.init_cache(8, 256)
      cache = model.encode(params, source, sizes, cache)
      return model(params, tokens, cache).logits

    return np.asarray(jax.jit(run)(model.init(0)))

  eight.check_alike(logits, atol=5e-5)


def check_the_memory_estimate_counts_what_one_device_holds():
  engine = split()
  first = jax.devices()[0]
  held = sum(
    shard.data.nbytes
    for leaf in jax.tree.leaves((engine.params, engine.state))
    for shard in leaf.addressable_shards
    if shard.device == first
  )
  found = memory.estimate(
    eight.model("t5_tiny", eight.placement("data:2,model:4"), layers=2),
    engine.proposer,
    engine.proposer.model.shapes,
    slots=4,
    capacity=eight.CAPACITY,
    prefill_widths=eight.WIDTHS,
    on_host=False,
  )
  assert found.held == held


CHECKS = tuple(
  found for name, found in globals().items() if name.startswith("check_")
)

if __name__ == "__main__":
  eight.main(CHECKS)
