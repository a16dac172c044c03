"""What the lab says of the product's own step, for a small pair."""

import dataclasses
import functools
import importlib.util
import pathlib

import pytest

from specjax.cli import lab_settings
from specjax.lab import (
  drafting,
  lower,
  program,
  rows,
  strategy,
  table,
  topology,
)
from specjax.models import presets

_PATH = pathlib.Path(__file__).parent / "pairs.py"
_SPEC = importlib.util.spec_from_file_location("lab_pairs", _PATH)
pairs = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(pairs)
needs_compiler = pairs.needs_compiler


@functools.cache
def of(where, how="tensor", **others):
  pair = others.pop("pair", pairs.PAIR)
  return rows.row(pair, pairs.case(where, how, **others), "small")


@needs_compiler
@pytest.mark.parametrize("where, batch", [("v4:2x2x1", 1), ("v5e:2x2", 2)])
def test_the_step_is_in_place_and_moves_little_more_than_it_must(where, batch):
  row = of(where, batch=batch)
  assert row.fits and row.cache_leaves == row.cache_leaves_aliased == 4
  assert row.donated_bytes == row.state_bytes > row.cache_bytes
  assert row.temp_bytes < 0.2 * row.argument_bytes  # of so small a pair
  assert row.traffic["target_weights"] == pytest.approx(
    row.ideal["target_weights"], rel=0.03
  )
  # Two a layer and pass, and a few of embeddings and logits.
  forwards = 6 + 4 * 2
  count, size = row.collectives["all-reduce"]
  assert 2 * forwards <= count <= 2 * forwards + 10
  # Of them and of embeddings, each chip says two bytes a number.
  numbers = 5 * 2048 * (2 * 6 + 1) + (5 + 3) * 1024 * (2 * 2 + 1)
  assert size == pytest.approx(2 * batch * numbers, rel=0.01)
  assert row.traffic_ms > row.flops_ms > 0


@needs_compiler
def test_keys_that_fill_no_lanes_stay_where_they_lie():
  """XLA would lay them out for the loop over layers and back, every step."""
  narrow = dataclasses.replace(
    pairs.PAIR.target, heads=32, kv_heads=32, head_dim=64
  )
  row = of(
    "v5e:2x2",
    pair=lower.Pair(target=narrow),
    proposer="none",
    lookahead=0,
    batch=4,
    context=2048,
    live=2048,
  )
  assert row.cache_leaves == row.cache_leaves_aliased == 2
  assert row.traffic["target_cache"] == pytest.approx(
    row.ideal["target_cache"], rel=0.05
  )
  assert row.temp_bytes < 0.1 * row.cache_bytes


T5 = lower.Pair(
  target=presets.get("t5_tiny"), draft=presets.get("t5_tiny_draft")
)


@needs_compiler
def test_an_encoders_weights_rest_beside_what_a_step_takes():
  step = lower.step(T5, pairs.case("v5e:2x2"))
  d, classes = 64, 32 * 8  # of 8 heads of 8

  def numbers(layers, wide):
    split = layers * (4 * d * d + 3 * d * wide) + classes
    split += layers * 2 * d * d  # of the decoder: keys and values of a source
    return split / 4 + (2 * layers + 1) * d

  assert step.resting == 2 * (numbers(2, 128) + numbers(1, 64))
  held = step.held["target_weights"] + step.held["draft_weights"]
  assert 0 < step.resting < held
  # Neither a decoder's nor of what drafts with the target's own.
  assert not lower.step(pairs.PAIR, pairs.case()).resting
  alone = lower.step(T5, pairs.case("v5e:2x2", proposer="ngram"))
  assert alone.resting == 2 * numbers(2, 128)


@pytest.mark.long
@needs_compiler
def test_what_leaves_no_room_for_an_encoder_does_not_fit():
  case = pairs.case("v5e:2x2", proposer="none", lookahead=0)
  row = rows.row(T5, case)
  assert row.fits and row.resident_bytes > row.argument_bytes
  tight = dataclasses.replace(
    case.topology.chip, usable_bytes=row.argument_bytes + row.temp_bytes
  )
  slice_ = dataclasses.replace(case.topology, chip=tight)
  row = rows.row(T5, dataclasses.replace(case, topology=slice_))
  assert not row.fits
  assert row.short_bytes == lower.step(T5, case).resting


@needs_compiler
def test_what_does_not_fit_says_by_how_much():
  row = of("v5e:2x2", context=2**20, live=2**20)
  assert not row.fits and row.refused is None
  assert row.short_bytes == pytest.approx(
    row.needed_bytes - row.usable_bytes, abs=2e7
  )
  assert "GB short" in table.table([row])


def test_the_command_line_knows_the_proposers_that_the_lab_can_build():
  assert lab_settings.PROPOSERS == tuple(drafting.PROPOSERS)


@needs_compiler
def test_what_cannot_be_split_so_says_why():
  row = of("v5e:2x4", "tensor@8x1")
  assert not row.fits and "2 slots do not divide" in row.refused
  assert row.refused in table.table([row])


@pytest.mark.long
@needs_compiler
def test_unrolled_and_scanned_layers_move_the_same():
  unrolled = dataclasses.replace(pairs.PAIR, scan_layers=False)
  one, other = of("v5e:2x2"), of("v5e:2x2", pair=unrolled)
  # Not the draft's, 22 MB a chip with its cache: unrolled, they are read once
  # and then stay in the chip's fast memory.
  for part in ("target_weights", "target_cache"):
    assert one.traffic[part] == pytest.approx(other.traffic[part], rel=0.05)
  assert one.flops == pytest.approx(other.flops, rel=0.05)


@pytest.mark.long
@needs_compiler
def test_what_a_v5p_cannot_keep_on_the_chip_goes_through_memory_once():
  """Products' results and chips' sums lie in HBM there, 65 MB of a step.

  Scores that are read twice and sums in float32 made it 76.
  """
  row = of("v5p:2x2x1", batch=8)
  assert row.traffic["other"] < 70e6


@pytest.mark.long
@needs_compiler
def test_a_replicated_draft_is_read_whole_on_every_chip():
  """Sharding a draft pays: each chip would read all of it, C times."""
  split, whole = of("v5e:2x2"), of("v5e:2x2", "tensor/replicated")
  extra = whole.ideal["draft_weights"] - split.ideal["draft_weights"]
  assert extra == pytest.approx(3 * split.ideal["draft_weights"], rel=0.02)
  assert whole.hbm_traffic_bytes > split.hbm_traffic_bytes


@pytest.mark.long
@needs_compiler
def test_caches_that_are_split_by_positions_stay_where_they_lie():
  """XLA would bring all of them into another layout and back, every step."""
  row = of("v5e:2x2", "tensor+sequence", batch=8)
  assert row.cache_leaves == row.cache_leaves_aliased == 4
  for part in ("target_cache", "draft_cache"):
    assert row.traffic[part] == pytest.approx(row.ideal[part], rel=0.1)
  assert row.temp_bytes < 0.5 * row.cache_bytes


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("how", ["tensor", "tensor+sequence"])
def test_siblings_that_are_kept_move_within_caches_that_stay(how):
  row = of("v5e:2x2", how, batch=8, siblings=4)
  assert row.cache_leaves == row.cache_leaves_aliased == 4
  for part in ("target_cache", "draft_cache"):
    assert row.traffic[part] == pytest.approx(row.ideal[part], rel=0.1)
  assert row.temp_bytes < 0.5 * row.cache_bytes


@pytest.mark.long
@needs_compiler
def test_siblings_move_within_caches_whose_keys_fill_no_lanes():
  narrow = dataclasses.replace(
    pairs.PAIR.target, heads=32, kv_heads=32, head_dim=64
  )
  row = of(
    "v5e:2x2",
    pair=lower.Pair(target=narrow, draft_layers=2),
    proposer="layer_skip",
    siblings=4,
    batch=4,
    context=2048,
    live=2048,
  )
  assert row.cache_leaves == row.cache_leaves_aliased == 2
  assert row.traffic["target_cache"] == pytest.approx(
    row.ideal["target_cache"], rel=0.1
  )
  assert row.temp_bytes < 0.2 * row.cache_bytes


@pytest.mark.long
@needs_compiler
def test_what_drafts_without_a_model_reads_the_target_alone():
  row = of("v5e:2x2", proposer="ngram")
  assert row.fits and row.cache_leaves == row.cache_leaves_aliased == 2
  assert row.held["draft_weights"] == row.traffic["draft_weights"] == 0
  assert row.traffic["target_weights"] == pytest.approx(
    row.ideal["target_weights"], rel=0.03
  )
  plain = of("v5e:2x2", proposer="none", lookahead=0)
  assert plain.fits and plain.held == {**row.held, "other": plain.held["other"]}
  # A pass of C + 1 makes more of what it reads, and reads no more.
  assert row.flops > 3 * plain.flops
  assert row.hbm_traffic_bytes < 1.1 * plain.hbm_traffic_bytes


@pytest.mark.long
@needs_compiler
def test_products_of_float32_are_of_highest_precision():
  """A TPU multiplies float32 in bfloat16 unless it is asked not to."""
  precise = dataclasses.replace(pairs.PAIR, dtype="float32")
  step = lower.step(precise, pairs.case())
  text = step.lowered.compile().as_text()
  # On TPU every product is a convolution.
  products = [line for line in text.splitlines() if " convolution(" in line]
  assert products
  for line in products:
    assert "operand_precision={highest,highest}" in line, line


@pytest.mark.parametrize(
  "message, needed, available",
  [
    (
      "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required"
      " for HLO temporaries (26.98G) exceeds available HBM (15.75G).",
      26.98,
      15.75,
    ),
    ("Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G.", 20.5, 15.75),
  ],
)
def test_the_compilers_complaints_are_read(message, needed, available):
  assert rows.lacks(message) == (int(needed * 2**30), int(available * 2**30))


def test_a_complaint_of_another_kind_is_passed_on():
  with pytest.raises(RuntimeError, match="the moon"):
    rows.lacks("RESOURCE_EXHAUSTED: the moon")


def fake(lookahead, bound):
  return rows.Row(
    config="c", topology="v4:2x2x4", chips=16, strategy="tensor",
    proposer="draft_model", batch=1, lookahead=lookahead, context=2048,
    live=2048, fits=True, usable_bytes=1, traffic_ms=bound, flops_ms=bound / 10,
  )  # fmt: skip


def test_the_speed_up_is_leviathans():
  plain, row = fake(0, 8.0), fake(4, 10.0)
  assert rows.speed_up(plain, row, 0.0) == pytest.approx(0.8)
  assert rows.speed_up(plain, row, 1.0) == pytest.approx(5 * 0.8)
  tokens = 1 + 0.5 + 0.25 + 0.125 + 0.0625
  assert rows.speed_up(plain, row, 0.5) == pytest.approx(tokens * 0.8)


def test_what_a_draft_costs_is_of_a_plain_step():
  assert rows.draft_cost(fake(0, 8.0), fake(4, 10.0)) == pytest.approx(1 / 16)
  assert rows.draft_cost(fake(0, 8.0), fake(4, 8.0)) == 0


def test_arrays_take_the_bytes_of_their_tiles():
  text = "bf16[80,4,128,8192]{3,2,1,0:T(8,128)(2,1)}"
  assert program._array(text).bytes == 80 * 4 * 128 * 8192 * 2
  narrow = program._array("bf16[2,8,512,64]{3,2,1,0:T(8,128)(2,1)S(3)}")
  assert narrow.bytes == 2 * narrow.logical_bytes  # 64 of 128 lanes
  assert not narrow.in_hbm
  assert program._array("s32[1]{0:T(128)}").bytes == 512


@pytest.mark.parametrize(
  "text, sides, data, model",
  [
    ("tensor", (2, 2, 4), 1, 16),
    ("tensor/replicated", (2, 2, 4), 1, 16),
    ("tensor2d", (2, 2, 4), 4, 4),
    ("tensor2d", (2, 4, 4), 4, 8),
    # Not 8 x 8: an axis of a mesh is some whole sides of the slice.
    ("tensor2d", (4, 4, 4), 4, 16),
    ("fsdp", (2, 4), 2, 4),
    ("replicated", (2, 4), 8, 1),
    ("tensor+rows@2x8", (4, 4), 2, 8),
  ],
)
def test_a_strategy_in_a_word(text, sides, data, model):
  made = strategy.parse(text)
  assert str(made) == text
  assert made.shape(sides) == {"data": data, "model": model}


@pytest.mark.parametrize(
  "text, says",
  [
    ("tensors", "no strategy 'tensors'"),
    ("tensor/none", "no strategy 'none'"),
    ("tensor+columns", "not split by 'columns'"),
    ("tensor@4", "give TARGET"),
  ],
)
def test_a_wrong_strategy_is_named(text, says):
  with pytest.raises(ValueError, match=says):
    strategy.parse(text)


def test_a_mesh_of_another_size_is_refused():
  with pytest.raises(ValueError, match="16 chips, and the slice has 8"):
    strategy.parse("tensor@4x4").shape((2, 4))


@needs_compiler
def test_a_mesh_that_lies_across_the_sides_is_a_row_too():
  row = of("v4:4x4x4", "tensor@8x8", batch=8)
  assert "8 x 8 has axes that are no whole sides of v4:4x4x4" in row.refused


@pytest.mark.parametrize(
  "text, says",
  [
    ("v4", "give KIND:SIDES"),
    ("v9:2x2", "no kind 'v9'"),
    ("v4:2x2", "3 sides"),
    ("v5e:2x2x2", "2 sides"),
  ],
)
def test_a_wrong_slice_is_named(text, says):
  with pytest.raises(ValueError, match=says):
    topology.parse(text)


@needs_compiler
@pytest.mark.parametrize(
  "text", ["v4:2x2x4", "v5e:1x1", "v5e:4x4", "v5p:2x2x4", "v6e:1x1"]
)
def test_a_slice_has_a_device_a_chip(text):
  made = topology.parse(text)
  assert len(topology.devices(made)) == made.chips


@needs_compiler
def test_a_slice_that_no_one_builds_is_refused():
  with pytest.raises(ValueError, match="--topology=v5e:3x5"):
    topology.devices(topology.parse("v5e:3x5"))
