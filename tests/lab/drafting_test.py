"""What drafts pass over, against counts by hand; and that of compiled steps."""

import dataclasses
import functools
import importlib.util
import math
import pathlib
import re

import pytest

from specjax.lab import drafting, lower, rows, strategy, topology
from specjax.models import decoder

_PATH = pathlib.Path(__file__).parent / "pairs.py"
_SPEC = importlib.util.spec_from_file_location("lab_pairs", _PATH)
pairs = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(pairs)
needs_compiler = pairs.needs_compiler

PAIR = pairs.PAIR
D, V, LAYERS = 2048, 4096, 6
# What trainers make for this target: a Llama's layer, and two states for one.
ATTENTION, MLP, NORM = 4 * D * D, 3 * D * 4 * D, D
LAYER = ATTENTION + MLP + NORM


def made(kind, lookahead=4, scan_layers=True, siblings=0, **chosen):
  """A kind's `Drafting`, and the target; on no mesh."""
  pair = dataclasses.replace(PAIR, **chosen)
  case = lower.Case(
    topology=topology.parse("v5e:2x2"),
    strategy=strategy.parse("tensor"),
    proposer=kind,
    batch=1,
    lookahead=lookahead,
    siblings=siblings,
    context=512,
    live=512,
  )
  target = decoder.build(pair.target, scan_layers=scan_layers)
  return drafting.PROPOSERS[kind](pair, case, target, decoder.build), target


def read(one):
  """Numbers of the proposer's own parameters that drafts of a step read."""
  sizes = [math.prod(shape.shape) for shape in one.shapes]
  return sum(size * often for size, often in zip(sizes, one.reads, strict=True))


def borrowed(one, target):
  """The same of the target's, by name; what is not read is left out."""
  return {
    target.paths[place]: often for place, often in one.borrows.items() if often
  }


def test_eagle_1_reads_its_layer_and_the_targets_head_once_a_draft():
  one, target = made("eagle")
  assert read(one) == 4 * (2 * D * D + LAYER)
  assert borrowed(one, target) == {"embed.weight": 4}  # the tied head
  assert one.walks == (drafting.Walk(windows=(0,), passes=4),)
  assert one.trips == 3 and one.shared is None and one.variant == "1"


def test_eagle_3_fuses_once_a_step_and_has_a_head_of_its_own():
  one, target = made("eagle", eagle=3)
  # Queries, keys and values read pairs; three norms more.
  layer = LAYER + 3 * D * D + 3 * NORM
  assert read(one) == 3 * D * D + 4 * (layer + V * D)
  assert not borrowed(one, target) and one.variant == "3"


def test_a_reduced_vocabulary_is_read_in_place_of_the_targets_head():
  one, target = made("eagle", vocabulary=1024)
  assert read(one) == 4 * (2 * D * D + LAYER + 1024 * D)
  assert not borrowed(one, target) and one.variant == "1, 1024 ids"
  three, target = made("eagle", eagle=3, vocabulary=1024)
  whole, _ = made("eagle", eagle=3)
  assert read(whole) - read(three) == 4 * (V - 1024) * D
  # All of the ids are no reduced vocabulary.
  assert made("eagle", vocabulary=V)[0].variant == "1"


@pytest.mark.parametrize("lookahead", [2, 4])
def test_as_many_medusa_heads_are_read_as_draft_and_the_table_once(lookahead):
  one, target = made("medusa", lookahead)
  assert read(one) == lookahead * (D * D + D)
  assert borrowed(one, target) == {"embed.weight": 1}
  assert not one.walks and one.variant == "4"


def test_too_few_medusa_heads_are_refused():
  with pytest.raises(ValueError, match="2 Medusa heads"):
    made("medusa", heads=2)


def test_the_modules_of_mtp_that_read_a_draft_are_those_from_it_on():
  one, target = made("mtp")
  module = 2 * D * D + LAYER + 4 * NORM
  assert read(one) == 4 * module and one.shares == (1.0,)
  assert borrowed(one, target) == {"embed.weight": 4}
  three, _ = made("mtp", heads=3)
  # The block by all of them; then by two, and twice by the last alone.
  assert [part.passes for part in three.walks] == [1, 2, 4]
  assert read(three) == (1 + 2 + 4) * module
  assert three.shares == pytest.approx((1 / 3, 1 / 3, 1 / 3))
  many, _ = made("mtp", 3, heads=4)
  assert [part.passes for part in many.walks] == [1, 2, 3, 3]
  assert many.shares == (0.5, 0.5, 0, 0)


def test_a_prefix_reads_the_targets_weights_and_cache_again():
  one, target = made("layer_skip", draft_layers=2)
  often = borrowed(one, target)
  assert often.pop("embed.weight") == often.pop("norm.weight") == 4
  assert list(often.values()) == pytest.approx([4 * 2 / LAYERS] * len(often))
  assert one.shared == drafting.Walk(windows=(0, 0), passes=4)
  assert not one.walks and not one.shapes and one.variant == "2"


def test_other_layers_have_a_cache_of_their_own():
  one, target = made("layer_skip", scan_layers=False, draft_layers=(0, 3))
  often = borrowed(one, target)
  ran = {path.split(".")[1] for path in often if path.startswith("layers.")}
  assert ran == {"0", "3"} and set(often.values()) == {4}
  assert one.shared is None and one.variant == "0,3"
  assert one.walks == (drafting.Walk(windows=(0, 0), passes=4),)


def test_windows_are_those_of_the_layers_that_draft():
  windows = (0, 64, 64, 0, 64, 64)
  target = dataclasses.replace(PAIR.target, windows=windows)
  one, _ = made("layer_skip", target=target, draft_layers=(1, 3))
  assert one.walks[0].windows == (64, 0)


@pytest.mark.parametrize("kind", ["eagle", "medusa", "mtp", "layer_skip"])
def test_nothing_is_drafted_at_lookahead_0(kind):
  one, target = made(kind, 0, draft_layers=2)
  assert read(one) == 0 and not borrowed(one, target) and one.trips == 0


KINDS = {
  "draft_model": {}, "eagle": {}, "medusa": {}, "mtp": {},
  "layer_skip": dict(draft_layers=2),
}  # fmt: skip


@pytest.mark.parametrize("kind, chosen", KINDS.items())
def test_siblings_are_read_in_the_same_passes(kind, chosen):
  """The target's own is wider; the draft's know them from what they drew."""
  one, _ = made(kind, **chosen)
  other, _ = made(kind, siblings=3, **chosen)
  assert one.proposer.siblings == 0 and other.proposer.siblings == 3
  assert (other.reads, other.walks, other.trips) == (
    one.reads, one.walks, one.trips
  )  # fmt: skip


@pytest.mark.parametrize(
  "kind, lookahead", [("none", 0), ("ngram", 4), ("eagle", 0)]
)
def test_siblings_that_nobody_makes_are_no_case(kind, lookahead):
  with pytest.raises(ValueError, match="has no second guesses; give 0"):
    pairs.case(proposer=kind, lookahead=lookahead, siblings=3)


@functools.cache
def of(
  kind,
  how="tensor",
  where="v5e:2x2",
  lookahead=4,
  siblings=0,
  batch=2,
  **chosen,
):
  pair = dataclasses.replace(PAIR, **chosen)
  case = pairs.case(
    *(where, how),
    proposer=kind,
    lookahead=lookahead,
    siblings=siblings,
    batch=batch,
  )
  return rows.row(pair, case, "small")


def check(row, caches):
  """What holds of every step that fits."""
  assert row.fits and row.cache_leaves == row.cache_leaves_aliased == caches
  assert row.donated_bytes == row.state_bytes
  # More is what is copied, and a weight that is fetched for the next step; less
  # stays in the chip's fast memory.
  for part in ("draft_weights", "draft_cache"):
    assert row.traffic[part] <= 1.06 * row.ideal[part] + 9e6
  # Four passes, if any; see the step's lookahead.
  assert row.traffic["draft_weights"] >= 0.24 * row.ideal["draft_weights"]
  assert row.traffic["target_cache"] == pytest.approx(
    row.ideal["target_cache"], rel=0.06
  )
  assert row.temp_bytes < 0.2 * row.argument_bytes  # of so small a pair


@needs_compiler
def test_a_prefixs_step_is_in_place_in_the_targets_cache():
  row = of("layer_skip", draft_layers=2)
  check(row, 2)
  assert row.held["draft_weights"] == row.held["draft_cache"] == 0
  assert row.traffic["target_weights"] == pytest.approx(
    row.ideal["target_weights"], rel=0.06
  )
  # Four passes of two of six layers, beside the target's own.
  assert row.ideal["target_weights"] > 2.2 * row.held["target_weights"]


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize(
  "kind, caches, chosen",
  [
    ("eagle", 4, {}),
    ("eagle", 4, dict(eagle=3)),
    ("eagle", 4, dict(eagle=3, vocabulary=1024)),
    ("medusa", 2, {}),
    ("medusa", 2, dict(vocabulary=1024)),
    ("mtp", 4, {}),
    ("mtp", 8, dict(heads=3)),
    ("layer_skip", 4, dict(draft_layers=(0, 3, 5))),
    ("eagle", 4, dict(eagle=3, vocabulary=1024, siblings=4)),
    ("medusa", 2, dict(siblings=4)),
    ("mtp", 4, dict(siblings=4)),
    ("layer_skip", 2, dict(draft_layers=2, siblings=4)),
  ],
)
def test_every_step_is_in_place(kind, caches, chosen):
  check(of(kind, **chosen), caches)


@pytest.mark.long
@needs_compiler
def test_siblings_are_found_without_sorting_or_gathering_the_vocabulary():
  case = pairs.case("v5e:2x2", proposer="eagle", siblings=4)
  text = lower.step(PAIR, case).lowered.compile().as_text()
  sorted_ = re.findall(r"= \(f32\[([\d,]+)\][^=]* sort\(", text)
  # C + M + 1 of those at a place and the best before them.
  assert sorted_ and all(int(dims.split(",")[-1]) < 10 for dims in sorted_)
  # Nor do chips tell each other their parts of it.
  assert not re.search(rf"\[[\d,]*\b{V}\]\S* all-(gather|reduce)", text)


@pytest.mark.long
@needs_compiler
def test_a_heads_layer_is_split_as_the_targets_are():
  """Whole on every chip, it would be most of what a step of a 70B reads."""
  row = of("eagle")
  # Of two states' product for one, which has no heads, each chip reads all.
  size = 4 * 2 * (2 * D * D + (ATTENTION + MLP) / 4)
  assert row.ideal["draft_weights"] == pytest.approx(size, rel=1e-3)
  # Two sums a pass, beside the target's and those of embeddings and logits.
  count, _ = row.collectives["all-reduce"]
  assert 2 * (LAYERS + 4) <= count <= 2 * (LAYERS + 4) + 10
  assert set(row.collectives) == {"all-reduce"}


@pytest.mark.long
@needs_compiler
def test_plain_steps_leave_a_head_alone():
  row = of("eagle", lookahead=0)
  assert row.fits and row.cache_leaves == row.cache_leaves_aliased == 4
  assert row.traffic["draft_weights"] == row.traffic["draft_cache"] == 0


@needs_compiler
def test_a_head_that_the_target_has_no_room_for_says_why():
  row = of("eagle", vocabulary=V + 1)
  assert not row.fits and f"proposes {V + 1} ids" in row.refused
