"""The schedule, clipping, which parameters decay, Muon's matrices, scales."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.training import optimizer

OPTIONS = optimizer.Options(
  learning_rate=1.0, steps=100, warmup=10, final=0.1, weight_decay=0.5
)


def test_the_rate_rises_in_a_line_and_falls_as_a_cosine():
  rate = jax.jit(jax.vmap(optimizer.schedule(OPTIONS)))
  rise = rate(np.arange(10))
  np.testing.assert_allclose(rise, np.arange(1, 11) / 10, rtol=1e-5)
  at = np.arange(10, 101)
  cosine = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * (at - 10) / 90))
  np.testing.assert_allclose(rate(at), cosine, rtol=1e-5)


@pytest.mark.parametrize("warmup", [0, 1])
def test_without_a_rise_the_first_step_has_the_whole_rate(warmup):
  options = optimizer.Options(learning_rate=0.5, steps=10, warmup=warmup)
  assert float(optimizer.schedule(options)(0)) == 0.5


def test_matrices_decay_and_norms_do_not():
  tx = optimizer.make(OPTIONS, {})
  params = {"w": jnp.ones((2, 2)), "norm": jnp.ones((2,))}
  zeros = {name: jnp.zeros_like(value) for name, value in params.items()}
  run = jax.jit(lambda grads: tx.update(grads, tx.init(params), params)[0])
  updates = run(zeros)
  np.testing.assert_allclose(updates["w"], -0.1 * 0.5, rtol=1e-5)
  np.testing.assert_allclose(updates["norm"], 0.0)


def test_gradients_are_clipped_together():
  big = {"a": jnp.full((3,), 100.0), "b": jnp.full((3,), 1.0)}
  small = {name: value / 100 for name, value in big.items()}
  params = {name: jnp.zeros_like(value) for name, value in big.items()}
  for clip, same in ((1.0, True), (0.0, False)):
    # Adam forgets sizes in one step; two in a row show them.
    options = optimizer.Options(learning_rate=1.0, steps=10, clip=clip)
    tx = optimizer.make(options, {})

    @jax.jit
    def run(first, tx=tx):
      _, state = tx.update(first, tx.init(params), params)
      return tx.update(small, state, params)[0]

    found = [run(first) for first in (big, small)]
    pairs = (np.allclose(found[0][n], found[1][n], atol=1e-4) for n in big)
    assert all(pairs) == same


def _stepped(options, axes, params, grads, scales=None):
  tx = optimizer.make(options, axes, scales)
  run = jax.jit(lambda grads: tx.update(grads, tx.init(params), params)[0])
  return run(grads)


def test_muon_steps_every_direction_of_a_matrix_equally():
  rng = np.random.default_rng(0)
  # What leaves is [heads x dimensions, D], and what attention gives [D, both].
  axes = {
    "q": ("heads", "head_dim", "embed"),
    "o": ("embed", "heads", "head_dim"),
    "up": ("mlp", "embed"),
    "stacked": ("layers", "mlp", "embed"),
  }
  shapes = {"q": (4, 8, 16), "o": (16, 4, 8), "up": (32, 16)}
  shapes["stacked"] = (3, 32, 16)
  # Directions of which some are twenty times as large as others.
  grads = {
    name: jnp.asarray(
      rng.normal(size=shape) * np.geomspace(1, 20, shape[-1]), jnp.float32
    )
    for name, shape in shapes.items()
  }
  params = jax.tree.map(jnp.zeros_like, grads)
  options = optimizer.Options(learning_rate=1.0, steps=10, kind="muon")
  found = _stepped(options, axes, params, grads)
  views = {
    "q": found["q"].reshape(32, 16),
    "o": found["o"].reshape(16, 32),
    "up": found["up"],
    **{f"stacked {n}": x for n, x in enumerate(found["stacked"])},
  }
  for name, update in views.items():
    size = np.linalg.svd(np.asarray(update), compute_uv=False)
    # Newton and Schulz's steps end between .7 and 1.2 of one size.
    assert size.max() / size.min() < 1.8, (name, size)
    rms = np.sqrt(np.mean(np.square(update)))
    assert 0.1 < rms < 0.3, (name, rms)  # as Adam's usually are


def test_muon_leaves_norms_biases_and_tables_of_ids_to_adam():
  axes = {
    "norm": ("embed",),
    "bias": ("heads", "head_dim"),
    "head": ("vocab", "embed"),
  }
  grads = {
    "norm": jnp.asarray([1.0, -5.0]),
    "bias": jnp.asarray([[1.0, -5.0], [3.0, 0.1]]),
    "head": jnp.asarray([[2.0, 7.0], [-3.0, 0.1], [1.0, 1.0]]),
  }
  params = jax.tree.map(jnp.zeros_like, grads)
  options = optimizer.Options(
    learning_rate=1.0, steps=10, kind="muon", clip=0.0
  )
  found = _stepped(options, axes, params, grads)
  for name in axes:
    # Adam's first step is the gradient's sign, and with Nesterov's momentum
    # one and a half times as large.
    np.testing.assert_allclose(
      found[name], -1.474 * np.sign(grads[name]), rtol=1e-3
    )


@pytest.mark.parametrize("kind", optimizer.KINDS)
def test_steps_are_in_units_of_the_scales(kind):
  """y = W x is learned alike whatever the units of x: W / s of x · s."""
  rng = np.random.default_rng(1)
  axes = {"w": ("mlp", "embed")}
  grads = {"w": jnp.asarray(rng.normal(size=(8, 4)), jnp.float32)}
  params = {"w": jnp.asarray(rng.normal(size=(8, 4)), jnp.float32)}
  scale = jnp.asarray([1.0, 10.0, 0.1, 3.0])
  options = optimizer.Options(
    learning_rate=0.1, steps=10, kind=kind, weight_decay=0.1
  )
  plain = _stepped(options, axes, params, grads)["w"]
  scaled = _stepped(
    options,
    axes,
    {"w": params["w"] * scale},
    {"w": grads["w"] / scale},
    {"w": scale},
  )["w"]
  np.testing.assert_allclose(scaled, plain * scale, rtol=1e-4)
