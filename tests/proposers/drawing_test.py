"""Drafts are drawn from exactly the q they carry (RULES.md 2, 9, 10).

RULES are the project's list of what a correct speculative decoder satisfies.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specjax.penalties import Penalties
from specjax.proposers import drawing
from specjax.proposers.base import Context
from specjax.sampling import Noise, RowSettings
from tests import exact

VOCAB, WIDTH = 11, 3
KEPT = np.asarray([0, 2, 3, 7, 8, 10], np.int32)
SETTINGS = (
  dict(temperature=0.0),
  dict(temperature=1.0),
  dict(temperature=2.0, top_p=0.8),
  dict(temperature=0.7, top_k=3, min_p=0.1),
)
PENALTY = dict(
  repetition_penalty=1.7,
  presence_penalty=0.4,
  frequency_penalty=0.6,
  logit_bias=((2, -1.5), (5, 3.0), (8, 1.0)),
)
PROMPT, OUTPUT = (2, 3, 9), (7, 7, 1)


def context(settings, rows, *, penalized=False, lookahead=WIDTH):
  """Of `rows` rows for each of the settings, every row with its own seed."""
  each = lambda key, off: jnp.asarray(
    [one.get(key, off) for one in settings for _ in range(rows)],
    type(off),
  )
  count = rows * len(settings)
  seeds = jnp.arange(count, dtype=jnp.uint32)
  sampling = RowSettings(
    temperature=each("temperature", np.float32(0)),
    top_k=each("top_k", np.int32(0)),
    top_p=each("top_p", np.float32(1)),
    min_p=each("min_p", np.float32(0)),
    seed=jnp.stack([jnp.zeros_like(seeds), seeds], axis=1),
  )
  penalties = Penalties.none(count, VOCAB)
  if penalized:
    fill = lambda value: jnp.full((count,), value, jnp.float32)
    read = jnp.zeros((count, VOCAB), bool).at[:, np.asarray(PROMPT)].set(True)
    bias = np.zeros((count, VOCAB), np.float32)
    for token, value in PENALTY["logit_bias"]:
      bias[:, token] = value
    said = np.bincount(OUTPUT, minlength=VOCAB)
    penalties = dataclasses.replace(
      penalties,
      asked=jnp.ones((count,), bool),
      repetition=fill(PENALTY["repetition_penalty"]),
      presence=fill(PENALTY["presence_penalty"]),
      frequency=fill(PENALTY["frequency_penalty"]),
      bias=jnp.asarray(bias),
      prompt=read,
      output=jnp.broadcast_to(jnp.asarray(said, jnp.int32), (count, VOCAB)),
    )
  zeros = jnp.zeros((count,), jnp.int32)
  return Context(
    target_params=(),
    cache=(),
    last_token=zeros,
    length=zeros,
    history=zeros[:, None],
    sampling=sampling,
    penalties=penalties,
    noise=Noise(seed=sampling.seed, base=zeros, is_greedy=jnp.asarray(False)),
    lookahead=jnp.broadcast_to(jnp.asarray(lookahead, jnp.int32), (count,)),
  )


def logits_after(token, size):
  """float32 [..., size], of what comes after a token of the target's ids."""
  table = np.random.default_rng(3).normal(0, 2, (VOCAB, VOCAB))
  table = jnp.asarray(table, jnp.float32)[:, :size]
  return table[token]


@jax.jit
def drawn(ctx):
  """Of a reduced vocabulary."""
  count = ctx.lookahead.shape[0]
  size = len(KEPT)
  step = lambda token, index, carry: (logits_after(token, size), carry + index)
  first = jnp.broadcast_to(logits_after(0, size), (count, size))
  return drawing.draw_each(
    ctx,
    first,
    step,
    jnp.int32(0),
    width=WIDTH,
    vocab_size=VOCAB,
    kept=jnp.asarray(KEPT),
  )


def laws(tokens, settings, *, penalized):
  """q of each draft, by the reference: a whole vocabulary, most of it -inf."""
  found, before = [], 0
  for index in range(WIDTH):
    logits = np.full(VOCAB, -1e30)
    logits[KEPT] = np.asarray(logits_after(before, len(KEPT)))
    if penalized:
      said = (*OUTPUT, *tokens[:index])
      outside = logits < -1e29
      logits = exact.penalized(logits, PROMPT, said, **PENALTY)
      logits[outside] = -1e30
    found.append(exact.filtered(logits, **settings))
    before = int(tokens[index])
  return np.stack(found)


def test_rules_2_9_10_q_is_the_law_after_penalties_and_filters():
  """Ids outside the reduced vocabulary have none of it."""
  outside = np.setdiff1d(np.arange(VOCAB), KEPT)
  for penalized in (False, True):
    proposal, _ = drawn(context(SETTINGS, 8, penalized=penalized))
    tokens, q = np.asarray(proposal.tokens), np.asarray(proposal.whole(VOCAB).q)
    assert q.shape == (8 * len(SETTINGS), WIDTH, VOCAB)
    assert np.isin(tokens, KEPT).all()
    assert (q[..., outside] == 0).all()
    for row in range(len(tokens)):
      settings = SETTINGS[row // 8]
      theirs = laws(tokens[row], settings, penalized=penalized)
      np.testing.assert_allclose(q[row], theirs, atol=1e-5)
      assert (theirs[np.arange(WIDTH), tokens[row]] > 0).all()


def test_rule_2_drafts_are_drawn_from_their_q():
  """Chi-squared of what follows what."""
  rows = 4096
  for settings in SETTINGS[1:]:
    proposal, _ = drawn(context((settings,), rows))
    tokens, q = np.asarray(proposal.tokens), np.asarray(proposal.whole(VOCAB).q)
    for index in range(WIDTH):
      before = tokens[:, index - 1] if index else np.zeros(rows, np.int32)
      for token in np.unique(before):
        here = before == token
        if here.sum() < 400:
          continue
        law = q[here, index][0].astype(np.float64)
        support = law > 0
        seen = np.bincount(tokens[here, index], minlength=VOCAB)
        assert not seen[~support].any()
        expected = law[support] / law[support].sum() * here.sum()
        p = stats.chisquare(seen[support], expected).pvalue
        assert p > 1e-4 or support.sum() == 1, (settings, index, token)


def test_lookahead_and_readiness_bound_the_count_of_each_row():
  ctx = context((SETTINGS[1],) * 3, 1, lookahead=[0, 1, 3])
  proposal, steps = drawn(ctx)
  assert list(proposal.count) == [0, 1, 3]
  assert steps == 1 + 2
  _, steps = drawn(context((SETTINGS[1],) * 3, 1, lookahead=[0, 1, 1]))
  assert steps == 0
  logits = jnp.broadcast_to(logits_after(0, VOCAB), (3, VOCAB))
  step = lambda token, index, carry: (logits_after(token, VOCAB), carry)
  proposal, _ = drawing.draw_each(
    *(ctx, logits, step, ()),
    width=WIDTH,
    vocab_size=VOCAB,
    ready=jnp.asarray([True, True, False]),
  )
  assert list(proposal.count) == [0, 1, 0]


def test_rule_5_a_draft_that_is_no_number_ends_its_rows_proposal():
  ctx = context((SETTINGS[1],) * 2, 1)
  bad = jnp.asarray([[False], [True]])

  def step(token, index, carry):
    logits = logits_after(token, VOCAB)
    return jnp.where(bad & (index == 2), jnp.nan, logits), carry

  logits = jnp.broadcast_to(logits_after(0, VOCAB), (2, VOCAB))
  proposal, _ = drawing.draw_each(
    *(ctx, logits, step, ()), width=WIDTH, vocab_size=VOCAB
  )
  assert list(proposal.count) == [3, 2]


# Siblings.


@functools.partial(jax.jit, static_argnames=("siblings", "reduced"))
def beside(ctx, bad=None, ready=None, *, siblings, reduced=False):
  """A proposal with siblings; rows' logits at place `bad` are no numbers."""
  count = ctx.lookahead.shape[0]
  size = len(KEPT) if reduced else VOCAB

  def at(index, logits):
    return (
      logits
      if bad is None
      else jnp.where((bad == index)[:, None], jnp.nan, logits)
    )

  first = jnp.broadcast_to(logits_after(0, size), (count, size))
  step = lambda token, index, carry: (
    at(index, logits_after(token, size)),
    carry,
  )
  proposal, _ = drawing.draw_each(
    *(ctx, at(0, first), step, ()),
    width=WIDTH,
    vocab_size=VOCAB,
    kept=jnp.asarray(KEPT) if reduced else None,
    ready=ready,
    siblings=siblings,
  )
  return proposal


def guesses(row, proposal):
  """[(place, id)] of a row, best first."""
  pairs = zip(
    proposal.siblings.places[row].tolist(),
    proposal.siblings.tokens[row].tolist(),
    strict=True,
  )
  return [pair for pair in pairs if pair[0] >= 0]


def chosen(tokens, places, siblings, *, penalized=False, reduced=False):
  """By the definition, of a row that may draft at so many places.

  Returns:
    How many drafts it makes, and [(place, id)] of all that might have been
    drafted at them, likeliest first.
  """
  found, before, path = [], 0, 0.0
  ids = KEPT if reduced else np.arange(VOCAB)
  for place in range(places):
    rest = WIDTH + siblings - place - 1  # what the pass has room for beside
    ranked = sorted(found, reverse=True)
    if place and len(found) > rest and path - np.log(4) < ranked[rest][0]:
      places = place
      break
    logits = np.full(VOCAB, -1e30)
    logits[ids] = np.asarray(logits_after(before, len(ids)))
    if penalized:
      said = (*OUTPUT, *tokens[:place])
      logits = exact.penalized(logits, PROMPT, said, **PENALTY)
    logits = logits[ids]
    law = logits - logits.max()
    law = law - np.log(np.exp(law).sum())
    before = int(tokens[place])
    for id, value in zip(ids.tolist(), law, strict=True):
      if id != before:
        found.append((path + value, place, id))
    path += law[ids.tolist().index(before)]
  return places, [pair[1:] for pair in sorted(found, reverse=True)]


def check_row(row, proposal, places, siblings, **how):
  """Drafts and siblings of a row are those of the definition; how many."""
  drafts = np.asarray(proposal.tokens)[row]
  count, best = chosen(drafts, places, siblings, **how)
  assert proposal.count[row] == count
  read = WIDTH + siblings - count if count else 0
  own = guesses(row, proposal)[:read]
  assert own == best[:read] and len(set(own)) == len(own)
  assert all(drafts[place] != id for place, id in own)
  return count


@pytest.mark.parametrize("penalized", (False, True))
@pytest.mark.parametrize("reduced", (False, True))
def test_siblings_are_what_the_draft_thinks_likeliest_beside_its_drafts(
  reduced, penalized
):
  """Along the path that was drawn, while that is worth a sibling's room."""
  ctx = context(SETTINGS, 6, penalized=penalized)
  how = dict(penalized=penalized, reduced=reduced)
  without = beside(ctx, siblings=0, reduced=reduced)
  assert without.siblings is None
  seen = set()
  for siblings in (1, 4):
    proposal = beside(ctx, siblings=siblings, reduced=reduced)
    for row in range(proposal.tokens.shape[0]):
      count = check_row(row, proposal, WIDTH, siblings, **how)
      seen.add(count)
      # They change nothing of what is drafted.
      for name in ("tokens", "q"):
        got, plain = (getattr(one, name)[row] for one in (proposal, without))
        np.testing.assert_array_equal(got[:count], plain[:count])
  assert len(seen) > 1  # some rows draft less


def test_there_are_no_siblings_where_a_row_does_not_draft():
  ctx = context((SETTINGS[1],) * 4, 1, lookahead=[0, 1, 2, 3])
  proposal = beside(ctx, siblings=5)
  for row in range(4):
    check_row(row, proposal, row, 5)
  assert guesses(0, proposal) == []


def test_rule_7_a_rows_siblings_are_its_own():
  """Whatever its neighbours draft."""
  short, long = (
    beside(context((SETTINGS[1],) * 2, 1, lookahead=[1, n]), siblings=6)
    for n in (1, 3)
  )
  assert guesses(0, short) == guesses(0, long)
  assert guesses(1, short) != guesses(1, long)


def test_rule_5_what_is_no_number_has_no_siblings():
  """Those of the places before it stay."""
  ctx = context((SETTINGS[1],) * 4, 1)
  proposal = beside(ctx, jnp.asarray([-1, 0, 1, 2]), siblings=6)
  for row, places in enumerate((3, 0, 1, 2)):
    check_row(row, proposal, places, 6)


def test_impossible_tokens_are_no_siblings():
  """What a smaller draft lacks is padded with -inf."""
  ctx = context((SETTINGS[1],), 1)
  logits = jnp.where(jnp.arange(VOCAB) < 3, logits_after(0, VOCAB), -jnp.inf)
  step = lambda token, index, carry: (logits[None], carry)
  run = jax.jit(
    lambda ctx: drawing.draw_each(
      *(ctx, logits[None], step, ()),
      width=WIDTH,
      vocab_size=VOCAB,
      siblings=8,
    )[0]
  )
  found = guesses(0, run(ctx))
  assert len(found) == 2 * WIDTH and {id for _, id in found} <= {0, 1, 2}


def test_more_siblings_than_there_are_ids_are_all_there_are():
  ctx = context((SETTINGS[1],), 1)
  for reduced, size in ((False, VOCAB), (True, len(KEPT))):
    proposal = beside(ctx, siblings=40, reduced=reduced)
    check_row(0, proposal, WIDTH, 40, reduced=reduced)
    assert len(guesses(0, proposal)) == WIDTH * (size - 1)
