"""Whole runs of models with sliding windows, and of one that must end.

The table model of the other tests sees one token; here real decoders write
drafts over a window's edge, roll them back and go on.
"""

import jax
import numpy as np
import pytest

from specjax.proposers.draft_model import DraftModel
from specjax.proposers.ngram import Ngram
from tests import engines
from tests.engines import LOOKAHEAD, request
from tests.models import golden


def noisy(params):
  """A draft that is right about half of the time."""
  rng = np.random.default_rng(3)
  return tuple(
    leaf + 0.1 * np.std(leaf) * rng.standard_normal(leaf.shape, np.float32)
    for leaf in params
  )


def engine(loaded, kind, **options):
  model, params = loaded.model, loaded.params
  if kind == "ngram":
    return engines.build(
      model, params, Ngram(lookahead=LOOKAHEAD, shortest=1), (), **options
    )
  proposer = DraftModel(
    model=model,
    lookahead=LOOKAHEAD,
    vocab_size=model.vocab_size,
    siblings=3 if kind == "siblings" else 0,
  )
  draft = jax.tree.map(jax.numpy.asarray, noisy(params))
  return engines.build(model, params, proposer, draft, **options)


def speculated_and_plain(made, rows):
  """Token ids by id, with drafts and without; some drafts were wrong."""
  done = engines.complete(made, [request(p, i, **s) for i, p, s in rows])
  drafted = sum(row.drafted for row in done.values())
  accepted = sum(row.accepted for row in done.values())
  assert 0 < accepted < drafted
  plain = engines.complete(
    made, [request(p, i, **s, lookahead=0) for i, p, s in rows]
  )
  assert not any(row.drafted for row in plain.values())
  return tuple(
    {name: row.token_ids for name, row in run.items()} for run in (done, plain)
  )


@pytest.mark.parametrize(
  "kind",
  ["ngram", pytest.param("draft_model", marks=pytest.mark.long), "siblings"],
)
def test_rule_20_greedy_runs_over_a_windows_edge_equal_plain_ones(kind):
  loaded = golden.load("mistral")
  window = loaded.model.config.windows[0]
  rng = np.random.default_rng(0)
  sizes = (1, window - 3, window, window + 1, 40, 118, 126)
  rows = [
    (
      str(size),
      rng.integers(0, loaded.model.vocab_size, size),
      dict(max_new_tokens=24),
    )
    for size in sizes
  ]
  made = engine(loaded, kind, capacity=200, prefill_widths=(32,))
  speculated, plain = speculated_and_plain(made, rows)
  assert speculated == plain
  # And plain ones are what full passes over the whole text give.
  for name, prompt, _ in rows:
    text = np.concatenate([prompt, plain[name]])
    cache = loaded.model.init_cache(1, 256)
    padded = np.zeros((1, 160), np.int32)
    padded[0, : len(text)] = text
    best = np.argmax(loaded.run(padded, cache).logits[0], -1)
    np.testing.assert_array_equal(
      best[len(prompt) - 1 : len(text) - 1], plain[name]
    )


@pytest.mark.long  # the model alone: tests/models/decoder_test.py
@pytest.mark.parametrize("kind", ["ngram", "siblings"])
def test_rule_16_drafts_beyond_the_last_learned_position_change_nothing(kind):
  loaded = golden.load("gpt2")
  limit = loaded.model.config.max_position
  rng = np.random.default_rng(1)
  rows = [
    (str(size), rng.integers(0, loaded.model.vocab_size, size), {})
    for size in (limit - 1, limit - LOOKAHEAD, limit - 18)
  ]
  made = engine(loaded, kind, capacity=limit, prefill_widths=(32,))
  speculated, plain = speculated_and_plain(made, rows)
  assert speculated == plain
  # Each ran up to the limit, with chunks and drafts that reached beyond it.
  assert {len(p) + len(plain[i]) for i, p, _ in rows} == {limit}
