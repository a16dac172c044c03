"""Token rejection is exact: the product's own `law`, enumerated in float64.

RULES are the project's list of what a correct speculative decoder satisfies; a
test that shows one names its number.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.proposers.base import Proposal
from specjax.verifiers.base import Law, VerifyNoise
from specjax.verifiers.rejection import Rejection

SHAPES = list(itertools.product((3, 4, 5, 6), (1, 2, 3, 4)))  # V, C
EXACT = 1e-12
GARBAGE = 1.0  # fills q where there is no draft; it must not matter


# Laws at every position: a list of C + 1 (target) or C (draft) arrays; entry
# i is [V ** i, V], the law of the next token after each prefix of i tokens.


def random_laws(draws, vocab, positions):
  return [
    draws.dirichlet(np.full(vocab, 0.7), vocab**i) for i in range(positions)
  ]


def with_zeros(draws, laws):
  """Each law keeps between one and all but one of its tokens."""

  def thin(law):
    kept = draws.random(law.shape) < 0.5
    kept[np.arange(len(law)), law.argmax(1)] = True
    kept[np.arange(len(law)), law.argmin(1)] = False
    law = np.where(kept, law, 0)
    return law / law.sum(1, keepdims=True)

  return [thin(law) for law in laws]


def one_hots(draws, laws):
  return [
    np.eye(law.shape[1])[draws.integers(0, law.shape[1], len(law))]
    for law in laws
  ]


def apart(draws, laws):
  """Two sets of laws with disjoint supports."""
  one, other = [], []
  for law in laws:
    vocab = law.shape[1]
    mine = np.arange(vocab) < draws.integers(1, vocab, (len(law), 1))
    mine = draws.permuted(mine, axis=1)
    for side, keep in ((one, mine), (other, ~mine)):
      kept = np.where(keep, law, 0)
      side.append(kept / kept.sum(1, keepdims=True))
  return one, other


def some_of_each(draws, laws):
  """Each prefix has a law of another kind."""
  kinds = (laws, with_zeros(draws, laws), one_hots(draws, laws))
  mixed = []
  for options in zip(*kinds, strict=True):
    pick = draws.integers(0, len(kinds), len(options[0]))
    mixed.append(np.stack(options)[pick, np.arange(len(pick))])
  return mixed


def pair(kind, vocab, width):
  """p and q of one kind."""
  draws = np.random.default_rng([KINDS.index(kind), vocab, width])
  p = random_laws(draws, vocab, width + 1)
  q = random_laws(draws, vocab, width)
  match kind:
    case "zeros":
      p, q = with_zeros(draws, p), with_zeros(draws, q)
    case "one-hot":
      p, q = one_hots(draws, p), one_hots(draws, q)
    case "one-hot target":
      p = one_hots(draws, p)
    case "one-hot draft":
      q = one_hots(draws, q)
    case "disjoint":
      p, q = apart(draws, p)
      q = q[:width]
    case "equal":
      q = p[:width]
    case "mixed":
      p, q = some_of_each(draws, p), some_of_each(draws, q)
      q[0] = p[0]
  return p, q


KINDS = [
  "random",
  "zeros",
  "one-hot",
  "one-hot target",
  "one-hot draft",
  "disjoint",
  "equal",
  "mixed",
]


@pytest.fixture
def float64():
  with jax.enable_x64(True):
    yield


in_float64 = pytest.mark.usefixtures("float64")


@functools.cache
def every_law(deterministic: bool):
  """The product's `law`, over all drafted sequences at once."""
  q = None if deterministic else 0
  axes = (0, Proposal(tokens=0, q=q, count=None))
  return jax.jit(jax.vmap(Rejection().law, in_axes=axes))


def sequences(vocab, width):
  """int32 [V ** C, C], in the order of their prefixes' numbers."""
  every = itertools.product(range(vocab), repeat=width)
  return np.array(list(every), np.int32)


def prefix_numbers(tokens, vocab):
  """Number of each sequence's prefix of i tokens, for i = 0..C: [M, C + 1]."""
  numbers = np.zeros((len(tokens), tokens.shape[1] + 1), int)
  for i in range(tokens.shape[1]):
    numbers[:, i + 1] = numbers[:, i] * vocab + tokens[:, i]
  return numbers


def along(laws, tokens):
  """Each position's law along each sequence: [M, len(laws), V]."""
  numbers = prefix_numbers(tokens, laws[0].shape[1])
  return np.stack([law[numbers[:, i]] for i, law in enumerate(laws)], 1)


def proposal(tokens, q, count):
  return Proposal(tokens=tokens, q=q, count=np.int32(count))


def emitted_law(p, tokens, weights, q, count):
  """The law of C + 1 tokens that `law` brings about.

  Args:
    p: the target's laws.
    tokens: [M, C], drafted sequences; weights: [M], how likely each is.
    q: [M, C, V], or None.
    count: drafts of the row.

  Returns:
    [V ** (C + 1)]; what a step leaves open is completed by the target.
  """
  width, vocab = tokens.shape[1], p[0].shape[1]
  numbers = prefix_numbers(tokens, vocab)
  law = every_law(q is None)(along(p, tokens), proposal(tokens, q, count))
  assert law.accept.dtype == law.residual.dtype == jnp.float64
  accept, residual = np.asarray(law.accept), np.asarray(law.residual)
  assert np.all((accept >= 0) & (accept <= 1)) and np.all(residual >= 0)
  np.testing.assert_allclose(residual.sum(-1), 1, atol=EXACT)

  mass = np.zeros(1)  # of prefixes whose next token is the target's to draw
  reached = weights
  for i in range(width + 1):
    stops = 1 - accept[:, i] if i < width else np.ones_like(reached)
    mass = mass[:, None] * p[i]
    np.add.at(mass, numbers[:, i], (reached * stops)[:, None] * residual[:, i])
    mass = mass.ravel()
    if i < width:
      reached = reached * accept[:, i]
  return mass


def joint(laws):
  mass = np.ones(1)
  for law in laws:
    mass = (mass[:, None] * law).ravel()
  return mass


@in_float64
@pytest.mark.parametrize("vocab,width", SHAPES)
def test_emitted_sequence_follows_the_target(vocab, width):
  """RULES 2, 4: for every kind of p and q, and every count of drafts."""
  tokens = sequences(vocab, width)
  for kind in KINDS:
    p, q = pair(kind, vocab, width)
    for count in range(width + 1):
      drafts = along(q, tokens)
      chance = np.take_along_axis(drafts, tokens[..., None], 2)[..., 0]
      # Beyond the row's own count lies any token, and anything for its law.
      chance[:, count:], drafts[:, count:] = 1 / vocab, GARBAGE
      law = emitted_law(p, tokens, np.prod(chance, 1), drafts, count)
      error = np.abs(law - joint(p)).max()
      assert error < EXACT, (kind, count, error)
      assert not law[joint(p) == 0].any(), (kind, count)


@in_float64
@pytest.mark.parametrize("vocab,width", SHAPES)
def test_deterministic_proposals_are_one_hot(vocab, width):
  """RULES 3: with q = None each drafted token counts as drawn for certain."""
  for kind in ("random", "zeros", "one-hot target", "mixed"):
    p, _ = pair(kind, vocab, width)
    for tokens in sequences(vocab, width)[:: max(1, vocab**width // 16)]:
      for count in range(width + 1):
        law = emitted_law(p, tokens[None], np.ones(1), None, count)
        assert np.abs(law - joint(p)).max() < EXACT, (kind, tokens, count)


@in_float64
@pytest.mark.parametrize("kind", KINDS)
def test_none_is_the_one_hot_q(kind):
  """RULES 3: q = None and the one-hot q are the same proposal."""
  p, _ = pair(kind, 5, 3)
  tokens = jnp.asarray([4, 0, 2], jnp.int32)
  rows = jnp.stack([jnp.asarray(law[0]) for law in p])
  laws = [
    Rejection().law(rows, proposal(tokens, q, 2))
    for q in (None, jax.nn.one_hot(tokens, 5, dtype=jnp.float64))
  ]
  jax.tree.map(np.testing.assert_array_equal, *laws)


@in_float64
def test_equal_laws_accept_everything():
  """RULES 17: a model that drafts for itself is never turned down."""
  p, _ = pair("equal", 4, 3)
  tokens = sequences(4, 3)
  rows = along(p, tokens)
  law = every_law(False)(rows, proposal(tokens, rows[:, :3], 3))
  np.testing.assert_array_equal(law.accept, 1)
  np.testing.assert_allclose(law.residual, rows, atol=EXACT)


@in_float64
def test_impossible_tokens_are_turned_down():
  """RULES 4: a draft that the target never emits is never accepted."""
  p, q = pair("disjoint", 5, 4)
  tokens = sequences(5, 4)
  rows = along(p, tokens)
  law = every_law(False)(rows, proposal(tokens, along(q, tokens), 4))
  at = np.take_along_axis(rows[:, :4], tokens[..., None], 2)[..., 0]
  assert not np.asarray(law.accept)[at == 0].any()
  assert not np.asarray(law.residual)[rows == 0].any()


# `draw` at its thresholds. It runs in float32, as in the step.

LOWEST = np.float32(2**-24)  # the smallest and largest uniform there are
HIGHEST = np.float32(1 - 2**-24)


def draw(accept, residual, uniform, exponential=None, tokens=(1, 2, 3)):
  residual = np.asarray(residual, np.float32)
  if exponential is None:
    exponential = np.ones(residual.shape[1])
  verdict = Rejection().draw(
    Law(
      tokens=jnp.asarray(tokens, jnp.int32),
      accept=jnp.asarray(accept, jnp.float32),
      residual=jnp.asarray(residual, jnp.float32),
    ),
    VerifyNoise(
      uniform=jnp.asarray(uniform, jnp.float32),
      exponential=jnp.asarray(exponential, jnp.float32),
    ),
  )
  return np.asarray(verdict.tokens).tolist(), int(verdict.count)


# The token emitted after n accepted ones tells n: 4 + n.
TELLING = np.eye(8)[[4, 5, 6, 7]]


def test_accepts_just_below_the_threshold_and_not_at_it():
  edge = np.float32(0.3)
  below = np.nextafter(edge, np.float32(0))
  above = np.nextafter(edge, np.float32(1))
  for place in range(3):
    accept = np.ones(3, np.float32)
    accept[place] = edge
    for u, passes in ((below, True), (edge, False), (above, False)):
      uniform = np.full(3, 0.5, np.float32)
      uniform[place] = u
      tokens, count = draw(accept, TELLING, uniform)
      kept = 3 if passes else place
      assert count == kept + 1
      assert tokens == [*(1, 2, 3)[:kept], 4 + kept, *[0] * (3 - kept)]


def test_certain_tokens_pass_at_the_highest_uniform():
  tokens, count = draw([1, 1, 1], TELLING, [HIGHEST] * 3)
  assert (tokens, count) == ([1, 2, 3, 7], 4)


def test_impossible_tokens_fail_at_the_lowest_uniform():
  """RULES 4: 0 < u, so u < 0 never holds, whatever comes after."""
  tokens, count = draw([0, 1, 1], TELLING, [LOWEST] * 3)
  assert (tokens, count) == ([4, 0, 0, 0], 1)


def test_nothing_after_the_first_rejection_counts():
  tokens, count = draw([1, 0.5, 1], TELLING, [0.1, 0.9, 0.1])
  assert (tokens, count) == ([1, 5, 0, 0], 2)


def test_rows_without_drafts_emit_one_token():
  tokens, count = draw(np.zeros(3), TELLING, [LOWEST] * 3, tokens=(9, 9, 9))
  assert (tokens, count) == ([4, 0, 0, 0], 1)
  tokens, count = draw([], TELLING[:1], [], tokens=())
  assert (tokens, count) == ([4], 1)


def test_last_token_comes_from_the_residual_alone():
  """RULES 4: weight 0 never wins, however small its exponential."""
  tiny, huge = np.float32(2**-33), np.float32(16.7)
  for possible in range(4):
    exponential = np.full(4, tiny)
    exponential[possible] = huge
    residual = np.tile(np.eye(4)[possible] * 1e-30, (4, 1))
    tokens, count = draw([0, 0, 0], residual, [0.5] * 3, exponential)
    assert (tokens, count) == ([possible, 0, 0, 0], 1)
  # Of two possible tokens the one with the larger weight / exponential.
  residual = np.tile([0.0, 0.25, 0.75, 0.0], (4, 1))
  for ratio, winner in ((2.99, 2), (3.01, 1)):
    exponential = [tiny, 1, ratio, tiny]
    tokens, _ = draw([0, 0, 0], residual, [0.5] * 3, exponential)
    assert tokens[0] == winner
