"""EAGLE's forward pass in plain numpy, from the papers' descriptions.

Written without the product: float64, one token at a time, loops over heads.
"""

import numpy as np


def rms(x, weight, eps):
  return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


def silu(x):
  return x / (1 + np.exp(-x))


def turned(x, position, theta):
  """Rotary positions of a head [H]: halves are pairs."""
  half = len(x) // 2
  angle = position / theta ** (np.arange(half) / half)
  a, b = x[:half], x[half:]
  cos, sin = np.cos(angle), np.sin(angle)
  return np.concatenate([a * cos - b * sin, b * cos + a * sin])


class Layer:
  """Attention over all earlier inputs, then the MLP; p is named parameters."""

  def __init__(self, p, theta, eps):
    self.p, self.theta, self.eps = p, theta, eps
    self.keys, self.values = [], []

  def step(self, x, residual):
    """One more input x of attention [D] or [2 D]."""
    p, position = self.p, len(self.keys)
    q, k, v = (np.einsum("nhd,d->nh", p[f"attention.{n}"], x) for n in "qkv")
    self.keys.append([turned(one, position, self.theta) for one in k])
    self.values.append(v)
    group = len(q) // len(k)
    mixed = []
    for head, one in enumerate(q):
      one = turned(one, position, self.theta)
      own = head // group
      scores = [one @ keys[own] / np.sqrt(len(one)) for keys in self.keys]
      weights = np.exp(scores - np.max(scores))
      weights /= weights.sum()
      values = [value[own] for value in self.values]
      mixed.append(sum(w * v for w, v in zip(weights, values, strict=True)))
    x = residual + np.einsum("dnh,nh->d", p["attention.o"], np.stack(mixed))
    y = rms(x, p["mlp_norm"], self.eps)
    return x + p["mlp.down"] @ (silu(p["mlp.gate"] @ y) * (p["mlp.up"] @ y))


class Eagle:
  """A head on a target; feed it pairs.

  p: the head's parameters by name; t: the target's embedding, norm and head.
  """

  def __init__(self, p, t, theta, eps, kept=None):
    self.p, self.t, self.eps, self.kept = p, t, eps, kept
    self.layer = Layer(p, theta, eps)

  def fused(self, states):
    """What a pair has of the target's states [n, D]."""
    if len(states) == 1:
      return rms(states[0], self.t["norm"], self.eps)
    return self.p["fc"] @ np.concatenate(states)

  def step(self, token, hidden):
    """One more pair; returns the head's own state, and logits."""
    p, embedded = self.p, self.t["embed"][token]
    if "hidden_norm" not in p:  # EAGLE-1
      x = p["fc"] @ np.concatenate([embedded, hidden]) + p.get("fc.bias", 0)
      hidden = self.layer.step(x, x)
      logits = self.t["head"] @ hidden
      return hidden, logits if self.kept is None else logits[self.kept]
    both = [rms(embedded, p["embed_norm"], self.eps)]
    both.append(rms(hidden, p["hidden_norm"], self.eps))
    hidden = self.layer.step(np.concatenate(both), hidden)
    return hidden, p["head"] @ rms(hidden, p["norm"], self.eps)
