"""Losses against sums by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.training import losses

P = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]])
Q = np.array([[0.2, 0.2, 0.6], [0.3, 0.1, 0.6], [0.25, 0.5, 0.25]])


@pytest.fixture
def log_p():
  with np.errstate(divide="ignore"):
    return jnp.asarray(np.log(P), jnp.float32)


@pytest.fixture
def log_q():
  return jnp.asarray(np.log(Q), jnp.float32)


def close(found, wanted):
  np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-6)


def test_next_token_is_the_surprise_at_what_came(log_q):
  came = jnp.asarray([2, 0, 1])
  close(losses.next_token(log_q, came), -np.log([0.6, 0.3, 0.5]))


def test_kl_is_summed_over_what_the_target_may_say(log_p, log_q):
  wanted = [
    sum(p * np.log(p / q) for p, q in zip(a, b, strict=True) if p > 0)
    for a, b in zip(P, Q, strict=True)
  ]
  close(losses.forward_kl(log_p, log_q), wanted)


def test_total_variation_is_what_acceptance_leaves(log_p, log_q):
  close(losses.acceptance(log_p, log_q), np.minimum(P, Q).sum(-1))
  close(losses.total_variation(log_p, log_q), 1 - np.minimum(P, Q).sum(-1))
  close(losses.total_variation(log_p, log_q), np.abs(P - Q).sum(-1) / 2)


def test_agreement_is_of_the_arg_max(log_p, log_q):
  close(losses.agreement(log_p, log_q), [0, 1, 0])


def test_smooth_l1_is_square_near_and_straight_far():
  a, b = jnp.asarray([0.0, 0.0, 0.0]), jnp.asarray([0.5, 1.0, -3.0])
  close(losses.smooth_l1(a, b), (0.125 + 0.5 + 2.5) / 3)


def test_losses_add_up_by_their_weights_where_the_token_is_kept(log_p, log_q):
  came, kept = jnp.asarray([2, 0, 1]), jnp.asarray([1.0, 0.0, 1.0])
  feature = jnp.asarray([1.0, 2.0, 3.0])
  total, each = losses.weighted(
    {"kl": 1.0, "next_token": 0.5, "tv": 2.0, "feature": 0.1},
    log_q=log_q,
    token=came,
    is_kept=kept,
    log_p=log_p,
    feature=feature,
  )
  wanted = kept * (
    losses.forward_kl(log_p, log_q)
    + 0.5 * losses.next_token(log_q, came)
    + 2.0 * losses.total_variation(log_p, log_q)
  )
  close(total, wanted + 0.1 * feature)
  assert set(each) == {"kl", "next_token", "tv", "feature"}


def test_weights_are_read_from_a_text():
  assert losses.parse("kl:1, next_token:0.1") == {"kl": 1.0, "next_token": 0.1}
  assert losses.parse("tv") == {"tv": 1.0}


@pytest.mark.parametrize(
  "text", ["", "kl:0", "kl:x", "odd:1", "kl:-1", "kl:inf"]
)
def test_a_loss_that_is_none_is_named(text):
  with pytest.raises(ValueError, match="is no loss with a weight above 0"):
    losses.parse(text)


def test_a_loss_is_given_once():
  with pytest.raises(ValueError, match="kl is there twice"):
    losses.parse("kl:1,kl:2")
