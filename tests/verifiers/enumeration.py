"""Exact enumeration of what a verifier's `law` brings about, in float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.proposers.base import Proposal

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


def in_float64(test):
  @functools.wraps(test)
  def wide(*args, **kwargs):
    with jax.enable_x64(True):
      return test(*args, **kwargs)

  return wide


@functools.cache
def every_law(verifier, deterministic: bool):
  """The product's `law`, over all drafted sequences at once."""
  q = None if deterministic else 0
  axes = (0, Proposal(tokens=0, q=q, count=None))
  return jax.jit(jax.vmap(verifier.law, in_axes=axes))


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


def emitted_law(verifier, stops, p, tokens, weights, q, count):
  """The law of C + 1 tokens that a verifier's `law` brings about.

  Args:
    verifier: the product's.
    stops: from accept [M, C], with which probability each number of drafts is
      kept, [M, C + 1]; what the verifier's `draw` does, written again.
    p: the target's laws.
    tokens: [M, C], drafted sequences; weights: [M], how likely each is.
    q: [M, C, V], or None.
    count: drafts of the row.

  Returns:
    [V ** (C + 1)]; what a step leaves open is completed by the target.
  """
  width, vocab = tokens.shape[1], p[0].shape[1]
  numbers = prefix_numbers(tokens, vocab)
  law = every_law(verifier, q is None)(
    along(p, tokens), proposal(tokens, q, count)
  )
  assert law.accept.dtype == law.residual.dtype == jnp.float64
  accept, residual = np.asarray(law.accept), np.asarray(law.residual)
  assert np.all((accept >= 0) & (accept <= 1)) and np.all(residual >= 0)
  np.testing.assert_allclose(residual.sum(-1), 1, atol=EXACT)

  mass = np.zeros(1)  # of prefixes whose next token is the target's to draw
  kept = weights[:, None] * stops(accept)
  for i in range(width + 1):
    mass = mass[:, None] * p[i]
    np.add.at(mass, numbers[:, i], kept[:, i, None] * residual[:, i])
    mass = mass.ravel()
  return mass


def joint(laws):
  mass = np.ones(1)
  for law in laws:
    mass = (mass[:, None] * law).ravel()
  return mass


def check_every_pair(verifier, stops, vocab, width):
  """For every kind of p and q, and every count of drafts."""
  tokens = sequences(vocab, width)
  for kind in KINDS:
    p, q = pair(kind, vocab, width)
    for count in range(width + 1):
      drafts = along(q, tokens)
      chance = np.take_along_axis(drafts, tokens[..., None], 2)[..., 0]
      # Beyond the row's own count lies any token, and anything for its law.
      chance[:, count:], drafts[:, count:] = 1 / vocab, GARBAGE
      weights = np.prod(chance, 1)
      law = emitted_law(verifier, stops, p, tokens, weights, drafts, count)
      error = np.abs(law - joint(p)).max()
      assert error < EXACT, (kind, count, error)
      assert not law[joint(p) == 0].any(), (kind, count)


def check_every_certain_draft(verifier, stops, vocab, width):
  """With q = None each drafted token counts as drawn for certain."""
  for kind in ("random", "zeros", "one-hot target", "mixed"):
    p, _ = pair(kind, vocab, width)
    for tokens in sequences(vocab, width)[:: max(1, vocab**width // 16)]:
      for count in range(width + 1):
        law = emitted_law(
          verifier, stops, p, tokens[None], np.ones(1), None, count
        )
        assert np.abs(law - joint(p)).max() < EXACT, (kind, tokens, count)
