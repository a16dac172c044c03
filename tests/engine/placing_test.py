"""What may be on a mesh together, and rows that are prefilled in turns."""

import re

import pytest

from specjax.engine import placing
from specjax.models import decoder, presets
from specjax.proposers.draft_model import DraftModel
from specjax.proposers.ngram import Ngram
from tests.sharding.rules_test import placement

NGRAM = Ngram(lookahead=2)


def model(*how):
  place = placement(*how) if how else None
  return decoder.build(presets.get("chinchilla_tiny"), placement=place)


def drafter(*how):
  return DraftModel(model=model(*how), lookahead=2, vocab_size=264)


def test_what_divides_and_is_on_one_mesh_passes():
  placing.check(model(), NGRAM, 3)
  placing.check(model("data:2,model:4"), NGRAM, 4)
  placing.check(model("data:2,model:4"), drafter("data:2,model:4"), 2)
  # What the target does not split, the draft may.
  whole = ("data:2,model:4", "replicated")
  placing.check(model(*whole), drafter("data:2,model:4"), 2)


@pytest.mark.parametrize(
  "target, proposer, slots, why",
  [
    (
      ("data:2,model:4",),
      NGRAM,
      3,
      "target: 3 slots do not divide over data:2 (strategy 'tensor'); 2 or 4 "
      "would",
    ),
    (
      ("data:2,model:4",),
      NGRAM,
      1,
      "target: 1 slot does not divide over data:2 (strategy 'tensor'); 2 would",
    ),
    (
      ("data:2,model:4", "tensor", "rows"),
      NGRAM,
      4,
      "target: 4 slots do not divide over data:2,model:4",
    ),
    (
      ("model:8",),
      drafter("model:4"),
      4,
      "the target's mesh is model:8 and the draft's is model:4; give both the",
    ),
    ((), drafter("model:4"), 4, "the target's mesh is None and the draft's"),
    (("model:4",), drafter(), 4, "mesh is model:4 and the draft's is None"),
    (
      ("data:2,model:4", "replicated"),
      NGRAM,
      4,
      "--mesh=data:2,model:4: nothing is split over 'model' (strategy "
      "'replicated'), so its devices would all do the same",
    ),
  ],
)
def test_what_cannot_be_together_is_refused_by_name(
  target, proposer, slots, why
):
  with pytest.raises(ValueError, match=re.escape(why)):
    placing.check(model(*target), proposer, slots)


def test_one_row_of_each_group_is_prefilled_at_a_time():
  assert list(placing.turns([0, 2, 3], 4)) == [[0], [2], [3]]
  assert list(placing.turns([0, 2, 3], 2)) == [[0, 2], [3]]
  assert list(placing.turns([0, 2, 3], 1)) == [[0, 2, 3]]
  assert list(placing.turns([], 2)) == []
