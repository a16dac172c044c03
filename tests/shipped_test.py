"""What comes with specjax: small, with a card, and of use to SmolLM2."""

import functools

import pytest

from specjax import api, shipped
from tests import smollm2_test

MOST_BYTES = 40_000_000
ALL = smollm2_test.GOLDENS["max_new_tokens"]
KINDS = {"smollm2-135m-draft": "draft_model", "smollm2-135m-eagle": "eagle"}


def test_each_has_a_card_that_says_what_it_was_made_of():
  assert shipped.names() == tuple(KINDS)
  total = 0
  for name in shipped.names():
    folder = shipped.find(name)
    total += sum(path.stat().st_size for path in folder.iterdir())
    card = (folder / "README.md").read_text()
    assert name in card and "\n\n    specjax-generate" in card
    for part in ("What it is", "Data", "Recipe", "Took", "Held out", "License"):
      assert f"**{part}**" in card, (name, part)
    kind = "draft" if name.endswith("draft") else "eagle"
    assert f"configs/train_smollm2_{kind}.py" in card
  assert total < MOST_BYTES


@functools.cache
def engine(name):
  target = smollm2_test.pretrained()
  return api.Engine(
    target,
    proposer=KINDS[name],
    draft=api.load_head(name, target),
    lookahead=2,
    slots=3,
    capacity=smollm2_test.CAPACITY,
  )


@pytest.mark.parametrize(
  "most", [48, pytest.param(ALL, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", KINDS)
def test_rule_25_the_targets_greedy_ids_and_drafts_that_are_kept(name, most):
  rows = smollm2_test.ROWS[:3]
  done = smollm2_test.complete(engine(name), rows, most=most)
  smollm2_test.check_goldens(done, rows, most)
  drafted = sum(row.drafted for row in done.values())
  accepted = sum(row.accepted for row in done.values())
  # Two of the three prompts are nothing that it was trained on.
  assert accepted > 0.05 * drafted, (accepted, drafted)
