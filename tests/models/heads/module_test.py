"""Where heads lie and work beside a target that is split over a mesh."""

import dataclasses

import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from specjax.models import decoder
from specjax.models.heads import eagle, medusa, module
from specjax.sharding import axes, rules
from specjax.sharding.placement import Placement
from tests.models.heads import tiny

V, D = tiny.VOCAB, tiny.CONFIG["hidden_size"]


def placement(strategy="tensor", model=2, caches=None):
  mesh = AbstractMesh((2, model), ("data", "model"))
  return Placement(mesh, rules.find(strategy, caches))


def target(strategy="tensor", caches=None):
  whole, _ = tiny.target()
  place = placement(strategy, caches=caches)
  return decoder.build(whole.config, placement=place)


def specs(model):
  """{name: how a parameter of the head lies}."""
  places = model.head.shardings
  return {
    path: place.spec
    for path, place in zip(model.head.paths, places, strict=True)
  }


@pytest.mark.parametrize("strategy", ["tensor", "tensor2d", "fsdp"])
@pytest.mark.parametrize("caches", [None, "rows", "sequence"])
def test_a_layer_is_split_as_the_targets_are(strategy, caches):
  own = target(strategy, caches)
  head = eagle.build(eagle.small(own.config, fuses=True), own)
  found = specs(head)
  assert found["attention.q.weight"] == PartitionSpec("model", None, None)
  assert found["attention.o.weight"] == PartitionSpec(None, "model", None)
  assert found["mlp.down.weight"] == PartitionSpec(None, "model")
  assert found["fc.weight"] == PartitionSpec(None, None)
  # A table of all of the ids rests as the target's does.
  assert found["head.weight"] == PartitionSpec("model", None)
  place = head.placement
  assert place.over(axes.ROWS) == own.placement.over(axes.ROWS)
  assert place.over(axes.KV_HEADS, "caches") == ("model",)
  assert not place.over(axes.CACHE_POSITIONS, "caches")
  assert head.logits_sharding.spec[1] == "model"


def test_a_reduced_vocabulary_is_whole():
  own = target()
  config = eagle.small(own.config, fuses=True, draft_vocab=tiny.KEPT)
  head = eagle.build(config, own)
  assert specs(head)["head.weight"] == PartitionSpec(None, None)
  assert head.logits_sharding.spec == PartitionSpec("data", None)


def test_what_does_not_divide_is_whole():
  layer = eagle.small(tiny.target()[0].config, fuses=False).layer
  layer = dataclasses.replace(layer, d_ff=20)
  place = module.beside(placement(model=4), layer)  # 4 heads, 2 key heads
  assert not place.over(axes.HEADS) and not place.over(axes.KV_HEADS)
  assert (
    place.over(axes.MLP) == place.over(axes.MLP, "parameters") == ("model",)
  )


def test_medusa_has_nothing_to_split_but_its_rows():
  own = target()
  config = medusa.MedusaConfig(d_model=D, vocab_size=V, heads=2, shares=True)
  head = medusa.build(config, own)
  assert {str(spec) for spec in specs(head).values()} <= {
    str(PartitionSpec(*[None] * n)) for n in (1, 2)
  }
  assert head.placement.over(axes.ROWS) == ("data",)


def test_beside_a_whole_target_it_is_whole():
  own = target("replicated")
  head = eagle.build(eagle.small(own.config, fuses=False), own)
  assert not any(axis for spec in specs(head).values() for axis in spec)
  assert module.beside(None) is None
