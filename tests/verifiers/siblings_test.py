"""One token more after a sibling, and the emitted law stays the target's."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.proposers.base import Proposal, Siblings
from specjax.verifiers import siblings
from specjax.verifiers.base import Verdict
from specjax.verifiers.block import Block
from specjax.verifiers.rejection import Rejection
from tests.verifiers import block_test, rejection_test
from tests.verifiers.enumeration import (
  EXACT,
  GARBAGE,
  along,
  every_law,
  in_float64,
  joint,
  pair,
  prefix_numbers,
  proposal,
  sequences,
)

VOCAB = 3
KINDS = ("random", "disjoint", "mixed")


def ints(values):
  return jnp.asarray(values, jnp.int32)


# A row that drafted three tokens: what it emits, its own count, the siblings'
# (place, token), and which of them it is.
CASES = {
  "the first place's": ((7,), 3, ((0, 7), (1, 8)), 0),
  "a later place's": ((4, 8), 3, ((0, 7), (1, 8)), 1),
  "the last place's": ((4, 5, 9), 3, ((2, 9), (0, 9)), 0),
  "no sibling of any place": ((6,), 3, ((0, 7), (1, 8)), -1),
  "a sibling of a later place": ((8,), 3, ((0, 7), (1, 8)), -1),
  "a sibling of an earlier place": ((4, 7), 3, ((0, 7), (1, 8)), -1),
  "a place that the row did not draft": ((4, 8), 1, ((0, 7), (1, 8)), -1),
  "after full acceptance": ((4, 5, 6, 8), 3, ((2, 8), (2, 7)), -1),
  "a row that drafted nothing": ((7,), 0, ((0, 7), (1, 8)), -1),
  "an unused entry": ((7,), 3, ((-1, 7), (-1, 7)), -1),
  "an unused entry before the one": ((7,), 3, ((-1, 7), (0, 7)), 1),
  "the second of two at a place": ((4, 9), 3, ((1, 8), (1, 9)), 1),
}


def proposed(tokens, places, ids, count):
  """A proposal all of whose siblings are read, however many drafts there are.

  Args:
    tokens: [B, C]. places, ids: [B, M]. count: [B].
  """
  unused = ((0, 0), (0, tokens.shape[1] - 1))
  return Proposal(
    tokens=ints(tokens),
    q=None,
    count=ints(count),
    siblings=Siblings(
      tokens=jnp.pad(ints(ids), unused),
      places=jnp.pad(ints(places), unused, constant_values=-1),
    ),
  )


def found_in(case):
  """(verdict, what `find` says) of one row beside another that has none."""
  said, count, others, _ = case
  tokens = [[*said, *[0] * (4 - len(said))], [1, 0, 0, 0]]
  verdict = Verdict(tokens=ints(tokens), count=ints([len(said), 1]))
  places, ids = zip(*others, strict=True)
  both = proposed(np.zeros((2, 3)), [places, [0, 0]], [ids, [2, 3]], [count, 3])
  return verdict, siblings.find(verdict, both)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_row_goes_on_where_its_last_token_is_a_sibling_at_its_place(case):
  said, count, _, expected = case
  verdict, found = found_in(case)
  assert found.tolist() == [1 + count + expected if expected >= 0 else 0, 0]
  more = siblings.extend(verdict, found, ints([5, 5]))
  size = len(said)
  assert more.tokens[1].tolist() == [1, 0, 0, 0] and more.count[1] == 1
  assert more.tokens[0, :size].tolist() == list(said)
  at = siblings.read_at(more, found)
  assert at[1].tolist() == [0, 1, 2, 3]
  if expected < 0:
    np.testing.assert_array_equal(more.tokens[0], verdict.tokens[0])
    assert more.count[0] == size and at[0].tolist() == [0, 1, 2, 3]
    return
  assert more.count[0] == size + 1 and more.tokens[0, size] == 5
  # The sibling itself was drawn in the chain; what follows it, behind it.
  assert at[0, :size].tolist() == list(range(size))
  assert at[0, size] == 1 + count + expected


def test_a_pass_reads_a_rows_drafts_and_then_siblings_until_it_is_full():
  """C = 3, M = 2: rows of three, one and no drafts."""
  drafts = np.asarray([[4, 5, 6]] * 3)
  proposal = Proposal(
    tokens=ints(drafts),
    q=None,
    count=ints([3, 1, 0]),
    siblings=Siblings(
      tokens=ints([[11, 12, 13, 14]] * 3), places=ints([[0, 2, 1, -1]] * 3)
    ),
  )
  tokens, ahead = siblings.layout(proposal)
  assert tokens.tolist() == [
    [4, 5, 6, 11, 12],
    [4, 11, 12, 13, 14],
    [11, 12, 13, 14, 14],
  ]
  assert ahead[:2].tolist() == [[1, 2, 3, 1, 3], [1, 1, 3, 2, 1]]
  # A row whose pass has no room for a sibling does not go on after it.
  said = Verdict(tokens=ints([[4, 13, 0, 0]] * 3), count=ints([2, 2, 1]))
  others = dataclasses.replace(
    proposal.siblings, places=ints([[0, 1, 1, 1]] * 3)
  )
  wide = dataclasses.replace(proposal, count=ints([3, 2, 0]), siblings=others)
  assert siblings.find(said, wide).tolist() == [0, 5, 0]


@functools.cache
def jitted():
  return tuple(map(jax.jit, (siblings.find, siblings.extend, siblings.read_at)))


def emitted(rule, stops, p, tokens, weights, q, count, beside):
  """The law of C + 1 tokens: [V ** (C + 1)], as `enumeration.emitted_law`.

  Args:
    beside: of every sequence its siblings: tokens [n, M], places [n, M].
    (the others): see there.
  """
  n, width = tokens.shape
  numbers = prefix_numbers(tokens, VOCAB)
  chain = along(p, tokens)
  law = every_law(rule, False)(chain, proposal(tokens, q, count))
  kept = weights[:, None] * stops(np.asarray(law.accept))
  ids, places = beside
  # What the pass says at each sibling: behind the drafts before it.
  rows = np.arange(n)[:, None]
  behind = numbers[rows, np.maximum(places, 0)] * VOCAB + ids
  theirs = np.zeros((*ids.shape, VOCAB))
  for place in range(width):
    here = places == place
    theirs[here] = p[place + 1][behind[here]]
  whole = np.concatenate([chain[:, : count + 1], theirs], axis=1)

  # Every verdict that there may be: a sequence, drafts kept, the next token.
  cases = itertools.product(range(n), range(width + 1), range(VOCAB))
  row, keeps, last = np.asarray(list(cases)).T
  said = np.zeros((len(row), width + 1), np.int32)
  for i in range(width):
    said[:, i] = np.where(i < keeps, tokens[row, i], 0)
  said[np.arange(len(row)), keeps] = last
  mass = kept[row, keeps] * np.asarray(law.residual)[row, keeps, last]
  verdict = Verdict(tokens=ints(said), count=ints(keeps + 1))
  counts = np.full(len(row), count)
  others = proposed(tokens[row], places[row], ids[row], counts)
  find, extend, read_at = jitted()
  found = find(verdict, others)

  shares = [np.zeros(VOCAB**i) for i in range(width + 2)]
  more = np.asarray(found) > 0
  assert np.all(np.asarray(verdict.count)[more] <= width)
  for token in range(VOCAB):
    after = extend(verdict, found, ints(np.full(len(row), token)))
    at = np.asarray(read_at(after, found))
    size, ids_now = np.asarray(after.count), np.asarray(after.tokens)
    numbers = prefix_numbers(ids_now, VOCAB)
    chance = whole[row, at[np.arange(len(row)), size - 1], token]
    for i in range(1, width + 2):
      here = more & (size == i)
      np.add.at(shares[i], numbers[here, i], (mass * chance)[here])
      if token == 0:  # once: these rows are not extended
        here = ~more & (size == i)
        np.add.at(shares[i], numbers[here, i], mass[here])

  total = shares[0]
  for i in range(width + 1):
    total = (total[:, None] * p[i]).ravel() + shares[i + 1]
  return total, mass[more].sum()


def sets_of(tokens):
  """Every set of siblings, of all sequences alike; and a mixture of them."""
  n, width = tokens.shape
  offers = list(itertools.product(range(width), range(1, VOCAB)))
  places = np.broadcast_to([place for place, _ in offers], (n, len(offers)))
  ids = np.stack([(tokens[:, i] + by) % VOCAB for i, by in offers], axis=1)
  every = list(itertools.product((False, True), repeat=len(offers)))
  for some in every:
    yield ids, np.where(some, places, -1)
  pick = np.random.default_rng(0).integers(0, len(every), n)
  yield ids, np.where(np.asarray(every)[pick], places, -1)


@in_float64
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(
  "rule, stops",
  [(Rejection(), rejection_test.kept), (Block(), block_test.kept)],
  ids=["token", "block"],
)
def test_rules_1_6_whatever_the_siblings_the_emitted_law_is_the_targets(
  rule, stops, width
):
  tokens = sequences(VOCAB, width)
  often = []
  for kind in KINDS:
    p, q = pair(kind, VOCAB, width)
    for count in range(width + 1):
      drafts = along(q, tokens)
      chance = np.take_along_axis(drafts, tokens[..., None], 2)[..., 0]
      chance[:, count:], drafts[:, count:] = 1 / VOCAB, GARBAGE
      weights = np.prod(chance, 1)
      for beside in sets_of(tokens):
        law, more = emitted(
          rule, stops, p, tokens, weights, drafts, count, beside
        )
        error = np.abs(law - joint(p)).max()
        assert error < EXACT, (kind, count, error)
        often.append(more)
        assert count or not more
  assert max(often) > 0.5  # rows do go on
