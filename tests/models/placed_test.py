"""Products of a model that is split over a mesh."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from specjax.models import decoder, presets
from specjax.models.layers import Linear
from specjax.sharding import axes, rules
from specjax.sharding.placement import Placement


def placement(chips=4, strategy="tensor"):
  mesh = jax.sharding.AbstractMesh((2, chips), ("data", "model"))
  return Placement(mesh, rules.find(strategy))


def made(names, dtype, **how):
  """The dtype in which a product comes out of each device."""
  place = placement(**how)
  linear = Linear((8, 16), names, dtype, placement=place)
  x = jax.ShapeDtypeStruct((1, 5, 16), dtype)
  weight = jax.ShapeDtypeStruct((8, 16), dtype)
  return jax.eval_shape(linear.multiply, x, weight).dtype


DOWN, UP = (axes.EMBED, axes.MLP), (axes.MLP, axes.EMBED)


@pytest.mark.parametrize(
  "names, how, dtype",
  [
    (DOWN, {}, jnp.bfloat16),
    (UP, {}, jnp.float32),  # Every device has all of what it adds up.
    (DOWN, dict(chips=1), jnp.float32),
    (UP, dict(strategy="tensor2d"), jnp.bfloat16),
    (UP, dict(strategy="fsdp"), jnp.float32),  # Gathered first.
  ],
)
def test_devices_tell_each_other_what_they_add_up_in_the_sums_dtype(
  names, how, dtype
):
  assert made(names, jnp.bfloat16, **how) == dtype
  assert made(names, jnp.float32, **how) == jnp.float32


@pytest.mark.parametrize("scan_layers", [False, True])
def test_a_split_models_biases_are_added_in_float32(scan_layers):
  config = dataclasses.replace(
    presets.get("chinchilla_tiny"), o_bias=True, mlp_bias=True
  )
  model = decoder.build(
    config,
    dtype=jnp.bfloat16,
    placement=placement(),
    scan_layers=scan_layers,
  )
  tokens = jax.ShapeDtypeStruct((2, 5), jnp.int32)
  run = lambda params, tokens: model(params, tokens, None).logits
  text = str(jax.make_jaxpr(run)(model.shapes, tokens))
  width = config.d_model
  assert f"f32[2,5,{width}] = add" in text
  assert jax.eval_shape(run, model.shapes, tokens).dtype == jnp.float32
