"""Drafts are drawn from exactly the q they carry (RULES.md 2, 9, 10).

RULES are the project's list of what a correct speculative decoder satisfies.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
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
