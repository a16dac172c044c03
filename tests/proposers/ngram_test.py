"""Prompt lookup against a slow reference (RULES.md 3, 23)."""

import functools
import types

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from specjax.proposers import ngram

SIZE = 24
PADDING = 7  # an id that no history below has
SIZES = ((1, 1, 3), (1, 3, 4), (2, 4, 8), (3, 3, 1))  # shortest, longest, C


@functools.cache
def compiled(shortest, longest, width):
  find = functools.partial(
    ngram.lookup, shortest=shortest, longest=longest, width=width
  )
  return jax.jit(find)


def lookup(tokens, sizes, padding=()):
  """(tokens, found) of a history, padded to SIZE with `padding`."""
  rest = np.resize(padding or [PADDING], SIZE - len(tokens))
  history = np.concatenate([np.asarray(tokens, np.int32), rest])
  found = compiled(*sizes)(jnp.int32(history), jnp.int32(len(tokens)))
  return found[0].tolist(), bool(found[1])


def reference(tokens, sizes):
  """What a list comprehension would do."""
  shortest, longest, width = sizes
  length = len(tokens)
  for size in range(longest, shortest - 1, -1):
    for end in range(length - 1, size - 1, -1):
      if size < length and tokens[end - size : end] == tokens[-size:]:
        return [tokens[end + i % (length - end)] for i in range(width)], True
  return None, False


@hypothesis.given(
  tokens=st.lists(st.integers(0, 2), min_size=1, max_size=SIZE),
  padding=st.lists(st.integers(0, 3), max_size=4),
  sizes=st.sampled_from(SIZES),
)
@hypothesis.settings(max_examples=300, deadline=None)
def test_rule_23_lookup_equals_the_slow_reference(tokens, padding, sizes):
  """Whatever stands behind the history, the same few ids among it."""
  expected, match = reference(tokens, sizes)
  found, good = lookup(tokens, sizes, padding)
  assert good == match
  if match:
    assert found == expected
    # A copy of the history, never of the padding.
    assert set(found) <= set(tokens)


@pytest.mark.parametrize("sizes", SIZES)
def test_rule_23_padding_is_never_matched(sizes):
  """It repeats the history's end; nothing before the end does."""
  tokens = [0, 1, 2, 3, 4, 5, 6]
  for padding in (tokens, [6], [4, 5, 6], [0]):
    assert not lookup(tokens, sizes, padding)[1]
  # Nor where the history is shorter than what is compared.
  for length in (1, 2, 3):
    assert not lookup(tokens[:length], sizes, tokens[:length])[1]


def test_rule_23_a_match_at_the_very_end_continues_with_its_period():
  for sizes in ((1, 3, 4), (2, 4, 8)):
    width = sizes[2]
    # The end matches one place before itself: the last token again.
    assert lookup([0, 1, 5, 5, 5], sizes) == ([5] * width, True)
    # A loop of three is followed for the whole lookahead.
    loop = [0] + [1, 2, 3] * 3
    assert lookup(loop, sizes) == (([1, 2, 3] * 3)[:width], True)


def test_rule_23_a_full_history_and_a_single_token_are_fine():
  full = [index % 5 for index in range(SIZE)]
  assert lookup(full, (1, 3, 4)) == ([4, 0, 1, 2], True)
  assert not lookup([3], (1, 3, 4))[1]
  assert lookup([3, 3], (1, 3, 4)) == ([3] * 4, True)


def test_the_longest_match_wins_and_the_latest_of_equals():
  # 1 2 3 twice before: "2 3" alone stands later, but matches less.
  tokens = [1, 2, 3, 4, 0, 2, 3, 5, 1, 2, 3]
  assert lookup(tokens, (1, 3, 4)) == ([4, 0, 2, 3], True)
  assert lookup(tokens, (1, 1, 3)) == ([5, 1, 2], True)
  # No more than `longest` tokens are compared: the later of equals wins.
  tokens = [9, 1, 2, 4, 0, 1, 2, 5, 9, 1, 2]
  assert lookup(tokens, (1, 3, 4))[0][0] == 4
  assert compiled(1, 2, 4)(
    jnp.int32(np.resize(tokens, SIZE)), jnp.int32(len(tokens))
  )[0].tolist() == [5, 9, 1, 2]


def context(histories, lookahead):
  history = np.full((len(histories), SIZE), PADDING, np.int32)
  for row, tokens in enumerate(histories):
    history[row, : len(tokens)] = tokens
  length = np.asarray([len(tokens) - 1 for tokens in histories], np.int32)
  return types.SimpleNamespace(
    history=jnp.asarray(history),
    length=jnp.asarray(length),  # the last token stands there
    lookahead=jnp.asarray(lookahead, jnp.int32),
    last_token=jnp.asarray([tokens[-1] for tokens in histories], jnp.int32),
    cache="the target's cache",
  )


def test_a_row_proposes_its_own_lookahead_where_it_has_a_match():
  proposer = ngram.Ngram(lookahead=4, shortest=2, longest=3)
  ctx = context(
    [[1, 2, 3, 1, 2], [1, 2, 3, 1, 2], [1, 2, 3], [4]], [4, 1, 4, 4]
  )
  proposal, state, cache = proposer.draft((), (), ctx)
  assert proposal.count.tolist() == [4, 1, 0, 0]
  assert proposal.tokens[0].tolist() == [3, 1, 2, 3]
  assert (state, cache) == ((), ctx.cache)
  assert proposer.promising(ctx.history, ctx.length).tolist() == [
    True,
    True,
    False,
    False,
  ]


def test_rule_3_a_proposal_without_q_is_one_hot():
  """Deterministic at any temperature: there is no other law to carry."""
  proposer = ngram.Ngram(lookahead=4, shortest=2, longest=3)
  ctx = context([[1, 2, 3, 1, 2]], [4])
  proposal, _, _ = proposer.draft((), (), ctx)
  assert proposal.q is None
  law = np.asarray(proposal.law(6))
  np.testing.assert_array_equal(law.argmax(-1), proposal.tokens)
  np.testing.assert_array_equal(np.sort(law, -1)[..., -2:], [[[0, 1]] * 4])


@pytest.mark.parametrize("sizes", ((0, 2), (3, 2), (-1, -1)))
def test_rule_28_sizes_that_mean_nothing_are_refused(sizes):
  shortest, longest = sizes
  with pytest.raises(ValueError, match=rf"{shortest}\.\.{longest}"):
    ngram.Ngram(lookahead=4, shortest=shortest, longest=longest)
