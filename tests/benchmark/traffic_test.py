"""Bytes of a step, against sums by hand."""

import dataclasses

import jax.numpy as jnp
import pytest

from specjax.benchmark import traffic
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.models.heads import eagle, medusa, mtp
from specjax.proposers.draft_model import DraftModel
from specjax.proposers.eagle import Eagle
from specjax.proposers.layer_skip import LayerSkip
from specjax.proposers.medusa import Medusa
from specjax.proposers.mtp import Mtp
from specjax.proposers.ngram import Ngram
from tests.benchmark.made import answer


def model(tied, dtype="float32", windows=()):
  config = dict(
    architectures=["LlamaForCausalLM"],
    vocab_size=50,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=tied,
  )
  made = dataclasses.replace(
    config_lib.from_hugging_face(config), windows=windows
  )
  return decoder.build(made, dtype=jnp.dtype(dtype))


# Query and output 16 x 16, key and value 8 x 16, three of 24 x 16, two norms.
LAYER = 2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16 + 2 * 16


@pytest.mark.parametrize("dtype, size", [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_read_once_and_an_embedding_only_as_the_head(
  tied, dtype, size
):
  # Tied or not, one table of 50 x 16 is multiplied by.
  expected = size * (3 * LAYER + 16 + 50 * 16)
  assert traffic.weight_bytes(model(tied, dtype)) == expected


@pytest.mark.parametrize("live, blocks", [(1, 1), (128, 1), (129, 2)])
def test_the_live_cache_is_read_in_whole_blocks(live, blocks):
  # Keys and values of 3 layers, 2 heads of 4, float32.
  position = 2 * 3 * 2 * 4 * 4
  assert traffic.cache_bytes(model(True), live) == 128 * blocks * position


def test_a_window_is_read_from_the_block_where_it_begins():
  # Of 1000 tokens a query sees positions 800 … 999: blocks 6 and 7. Two layers
  # see everything: 8 blocks each.
  windowed = model(True, windows=(200, 0, 0))
  layer = 2 * 2 * 4 * 4
  assert traffic.cache_bytes(windowed, 1000) == 128 * layer * (2 + 8 + 8)


def test_a_mean_step_reads_the_draft_where_it_drafts():
  target = model(True)
  answers = [answer([1, 2, 3], prompt=127)]  # 128 live, then 129.
  own = traffic.weight_bytes(target)
  cache = traffic.cache_bytes(target, 1)
  mean = own + 1.5 * cache
  assert traffic.step_bytes(target, answers) == mean
  drafting = traffic.drafting(
    DraftModel(model=target, lookahead=4, vocab_size=50), target
  )
  assert traffic.step_bytes(
    target, answers, draft=drafting, wide_share=0.5
  ) == pytest.approx(3 * mean)


def drafts(kind, **how):
  """Bytes that one step of four drafts reads, at one live token."""
  target = model(False)
  proposer = {
    "eagle": lambda head: Eagle(model=head, lookahead=4),
    "medusa": lambda head: Medusa(model=head, lookahead=4),
    "mtp": lambda head: Mtp(model=head, lookahead=4),
    "layer_skip": lambda head: LayerSkip(
      model=target, lookahead=4, vocab_size=50, **how
    ),
  }[kind]
  head = {
    "eagle": lambda: eagle.build(eagle.small(target.config, **how), target),
    "mtp": lambda: mtp.build(mtp.small(target.config, **how), target),
    "medusa": lambda: medusa.build(
      medusa.MedusaConfig(d_model=16, vocab_size=50, heads=8, **how), target
    ),
    "layer_skip": lambda: None,
  }[kind]()
  return traffic.drafting(proposer(head), target)(1)


def test_heads_read_themselves_their_cache_and_a_table_for_every_draft():
  # A layer like the target's, less a norm; the table is the target's.
  block = 128 * 2 * 2 * 4 * 4
  eagle_1 = 4 * (LAYER - 16 + 16 * 32 + 50 * 16)
  assert drafts("eagle", fuses=False) == 4 * (eagle_1 + block)
  modules = 4 * (LAYER + 16 * 32 + 3 * 16 + 50 * 16)
  assert drafts("mtp") == 4 * (modules + block)
  less = drafts("mtp") - drafts("mtp", draft_vocab=10)
  assert less == 4 * 4 * (50 - 10) * 16
  # Half of the heads, once: each a block and a table.
  assert drafts("medusa") == 4 * 4 * (16 * 16 + 16 + 50 * 16)
  shared = 4 * 4 * (16 * 16 + 16) + 4 * 50 * 16
  assert drafts("medusa", shares=True) == shared
  some = 4 * (2 * LAYER + 16 + 50 * 16) + 2 * block
  assert drafts("layer_skip", layers=(0, 2)) == 4 * some


def test_rounded_weights_are_a_byte_each_and_a_scale_a_row():
  target = model(False)
  config = eagle.small(target.config, fuses=False, draft_vocab=10)
  head = Eagle(model=eagle.build(config, target), lookahead=4)
  read = traffic.drafting(head, target, "int8")(1)
  # Query, key, value, output; gate, up, down; ten rows of the table.
  numbers = 2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16 + 10 * 16
  scales = 16 + 2 * 8 + 16 + 2 * 24 + 16 + 10
  others = 4 * (16 * 32 + 16)  # fc and a norm, float32
  block = 128 * 2 * 2 * 4 * 4
  assert read == 4 * (numbers + 4 * scales + others + block)
  draft = DraftModel(model=target, lookahead=4, vocab_size=50)
  whole, less = (traffic.drafting(draft, target, w)(1) for w in (None, "int8"))
  rows = 3 * (16 + 2 * 8 + 16 + 2 * 24 + 16) + 50
  assert whole - less == 4 * (3 * (3 * LAYER - 6 * 16 + 50 * 16) - 4 * rows)


def test_what_copies_reads_nothing_that_counts():
  assert traffic.drafting(Ngram(lookahead=4), model(True)) is None
