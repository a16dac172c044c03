"""Rules, meshes and placements: what they say, and what they refuse."""

import dataclasses
import re

import jax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from specjax import pretrained
from specjax.models import decoder, presets
from specjax.sharding import axes, mesh, rules, shape
from specjax.sharding.placement import LOGITS, Placement

QUERIES = (axes.HEADS, axes.HEAD_DIM, axes.EMBED)
CACHE = (None, axes.ROWS, axes.KV_HEADS, axes.CACHE_POSITIONS, None)


def placement(sizes="data:2,model:4", strategy="tensor", caches=None):
  """Rules on a mesh that needs no devices."""
  sizes = {"data": 1, "model": 1} | shape.parse(sizes)
  made = AbstractMesh(tuple(sizes.values()), tuple(sizes))
  return Placement(made, rules.find(strategy, caches))


def test_a_mesh_is_read_from_a_text():
  assert shape.parse("data:2, model:4") == {"data": 2, "model": 4}
  assert shape.spell({"data": 2, "model": 4}) == "data:2,model:4"


@pytest.mark.parametrize(
  "text, why",
  [
    ("data", "'data' is no axis; give NAME:SIZE"),
    ("data:0", "'data:0' is no axis"),
    ("data:2,", "'' is no axis"),
    ("", "'' is no axis"),
    ("data:x", "'data:x' is no axis"),
    ("data:2,data:4", "axis 'data' is there twice"),
  ],
)
def test_a_text_that_is_no_mesh_is_refused_by_name(text, why):
  with pytest.raises(ValueError, match=re.escape(f"--mesh={text}: {why}")):
    shape.parse(text)


def test_a_mesh_has_as_many_devices_as_there_are():
  made = mesh.make("model:1")
  assert dict(made.shape) == {"model": 1, "data": 1}
  with pytest.raises(ValueError, match="--mesh=data:2,model:4 is 8 devices, b"):
    mesh.make("data:2,model:4")
  with pytest.raises(ValueError, match="axis 'model' is True; give a whole"):
    mesh.make({"model": True})


def test_tensor_splits_heads_mlp_and_vocabulary_and_rows():
  place = placement()
  spec = lambda names, kind="arrays": tuple(place.spec(names, kind))
  assert spec(QUERIES, "parameters") == ("model", None, None)
  assert spec((axes.EMBED, axes.MLP), "parameters") == (None, "model")
  assert spec(LOGITS) == ("data", None, "model")
  assert spec(CACHE, "caches") == (None, "data", "model", None, None)
  assert place.ways(axes.VOCAB) == 4 and place.ways(axes.EMBED) == 1


def test_the_other_strategies_split_weights_further_or_not_at_all():
  for name, weight, logits in (
    ("fsdp", ("model", None, "data"), ("data", None, "model")),
    ("tensor2d", ("model", None, "data"), (None, None, "model")),
    ("replicated", (None, None, None), ("data", None, None)),
  ):
    place = placement(strategy=name)
    assert tuple(place.spec(QUERIES, "parameters")) == weight
    assert tuple(place.spec(LOGITS)) == logits


def test_caches_are_split_by_heads_rows_or_sequence():
  for how, expected in (
    ("heads", (None, "data", "model", None, None)),
    ("rows", (None, ("data", "model"), None, None, None)),
    ("sequence", (None, "data", None, "model", None)),
  ):
    place = placement(caches=how)
    assert tuple(place.spec(CACHE, "caches")) == expected
  with pytest.raises(ValueError, match="cache_sharding is 'layers'; give one"):
    placement(caches="layers")


def test_an_axis_of_size_one_splits_nothing():
  place = placement("data:1,model:4")
  assert place.spec(LOGITS) == PartitionSpec(None, None, "model")


def test_rules_of_ones_own_are_data():
  own = dict(
    parameters={"heads": "model", "mlp": ["data", "model"]},
    arrays={"heads": "model", "mlp": ("data", "model"), "rows": None},
  )
  place = placement(strategy=own)
  assert tuple(place.spec(("mlp", "embed"), "parameters")) == (
    ("data", "model"),
    None,
  )
  # Like any data they can be compared, and be static in compiled programs.
  assert rules.find(own) == rules.find(dict(own))
  assert hash(place) == hash(placement(strategy=own))
  assert dataclasses.replace(place.rules) == place.rules


@pytest.mark.parametrize(
  "strategy, why",
  [
    ("tensors", "strategy is 'tensors'; give one of tensor, tensor2d, fsdp"),
    (3, "strategy is 3; give a name, Rules or a mapping"),
    ({"arrays": {}}, "strategy: missing 'parameters'"),
    (
      {"arrays": {}, "parameters": {}, "weights": {}},
      "strategy: unknown 'weights'",
    ),
    (
      {"arrays": {}, "parameters": {"head": "model"}},
      "parameters: there is no logical axis 'head'",
    ),
    (
      {"arrays": {"heads": 4}, "parameters": {}},
      "arrays: heads is 4; give a mesh axis",
    ),
    ({"arrays": 4, "parameters": {}}, "arrays is 4; give {logical axis"),
    (
      {"arrays": {"heads": ["model", "model"]}, "parameters": {}},
      "heads is ['model', 'model']; name each mesh axis once",
    ),
    (
      {"arrays": {}, "parameters": {}, "name": 5},
      "rules: name is 5; give a text",
    ),
    (
      {"arrays": {"heads": "chips"}, "parameters": {}},
      "arrays split heads over 'chips', and --mesh=data:2,model:4 has no such",
    ),
  ],
)
def test_rules_that_are_wrong_are_refused_by_name(strategy, why):
  with pytest.raises(ValueError, match=re.escape(why)):
    placement(strategy=strategy)


@pytest.mark.parametrize(
  "change, why",
  [
    (
      dict(heads=9, kv_heads=3),
      "m: 9 heads do not divide over model:4 (strategy 'tensor'); 1, 3 or 9 "
      "would, or --pad_heads",
    ),
    (
      dict(kv_heads=2),
      "m: 2 kv heads do not divide over model:4 (strategy 'tensor'); 1 or 2 "
      "would, or --pad_heads",
    ),
    (dict(d_ff=90), "m: d_ff 90 does not divide over model:4"),
    (
      dict(vocab_size=50257),
      "m: 50257 vocabulary entries do not divide over model:4",
    ),
  ],
)
def test_what_does_not_divide_is_refused_with_what_would_fit(change, why):
  config = dataclasses.replace(presets.get("chinchilla_tiny"), **change)
  with pytest.raises(ValueError, match=re.escape(why)):
    decoder.build(config, placement=placement(), name="m")


def test_two_dimensions_of_one_array_on_one_axis_collide():
  parameters = {"heads": "model", "embed": "model"}
  place = placement(strategy=dict(parameters=parameters, arrays={}))
  with pytest.raises(ValueError, match="split both embed and heads over 'mod"):
    decoder.build(presets.get("chinchilla_tiny"), placement=place)
  arrays = {"rows": "model", "vocab": "model"}
  place = placement(strategy=dict(parameters={}, arrays=arrays))
  with pytest.raises(ValueError, match="split both rows and vocab over 'mode"):
    decoder.build(presets.get("chinchilla_tiny"), placement=place)


def test_every_parameter_of_a_model_has_a_sharding():
  for scan_layers in (False, True):
    model = decoder.build(
      presets.get("chinchilla_tiny"),
      placement=placement(strategy="fsdp"),
      scan_layers=scan_layers,
    )
    found = dict(zip(model.paths, model.shardings, strict=True))
    assert tuple(found["embed.weight"].spec) == ("model", "data")
    assert any("data" in sharding.spec for sharding in found.values())
  assert decoder.build(presets.get("chinchilla_tiny")).shardings is None


def test_settings_of_a_mesh_do_nothing_without_one_and_are_refused():
  assert pretrained.placed(None, None, None) is None
  for name, given in (
    ("strategy", ("fsdp", None, False)),
    ("cache_sharding", (None, "rows", False)),
    ("pad_heads", (None, None, True)),
  ):
    with pytest.raises(ValueError, match=f"{name} does nothing without a mesh"):
      pretrained.placed(None, *given)
  place = pretrained.placed("model:1", None, "sequence")
  assert place.rules.name == "tensor, caches by sequence"
  assert pretrained.placed(mesh.make("model:1"), "fsdp", None).mesh.size == 1


def test_many_processes_need_a_mesh(monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  with pytest.raises(
    ValueError, match="mesh is not given, and there are 2 pro"
  ):
    pretrained.placed(None, None, None)
