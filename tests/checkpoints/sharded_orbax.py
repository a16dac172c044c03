"""Checks of Orbax checkpoints on several meshes; sharded_test runs them."""

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import hf, orbax, ranges
from tests.checkpoints.eight_devices import (
  LLAMA,
  PADDED,
  build,
  expected,
  made,
  place,
  process_of,
  refused,
  same,
  share,
)


def check_an_orbax_checkpoint_of_4_devices_restores_on_8_and_on_1(root):
  folder = made(root / "llama", LLAMA)
  places = {
    4: place("tensor", "model:4"),
    8: place("fsdp", "data:2,model:4"),
    1: None,
  }
  for saved_scan in (False, True):
    model = build(LLAMA, places[4], scan=saved_scan)
    params = hf.load_params(folder, model)
    kept = root / f"orbax_{saved_scan}"
    orbax.save(kept, model, params, config=LLAMA, others={"x.json": b"{}"})
    files = sorted(path.name for path in kept.iterdir())
    assert files == ["config.json", "orbax", "x.json"], files
    assert hf.read_config(kept)["torch_dtype"] == "float32"
    for scan in (False, True):
      for dtype in (jnp.float32, jnp.bfloat16):
        wanted = expected(folder, LLAMA, scan=scan, dtype=dtype)
        for placement in places.values():
          new = build(LLAMA, placement, scan=scan, dtype=dtype)
          same(orbax.load_params(kept, new), wanted, new)


def check_an_orbax_checkpoint_restores_with_other_padding(root):
  for config, name, changes, ways in PADDED[:3]:
    config = config | changes
    folder = made(root / name, config)
    saved = build(config, place("tensor", f"model:{ways}"), ways=ways)
    kept = root / f"orbax_{name}"
    orbax.save(kept, saved, hf.load_params(folder, saved), config=config)
    for other in (1, 2, ways, 6):
      placement = None if other in (1, 6) else place("tensor", f"model:{other}")
      model = build(config, placement, ways=other, scan=True)
      wanted = expected(folder, config, ways=other, scan=True)
      same(orbax.load_params(kept, model), wanted, model)


def check_a_process_reads_the_chunks_of_its_shards_and_no_others(root):
  folder = made(root / "llama", LLAMA)
  model = build(LLAMA, place("tensor", "model:8"))
  params = hf.load_params(folder, model)
  orbax.save(root / "orbax_8", model, params, config=LLAMA)
  traffic = ranges.Traffic()
  with process_of(jax.devices()[:4]):
    orbax.load_params(root / "orbax_8", model, traffic=traffic)
  assert traffic.nbytes == share(model, jax.devices()[:4])


def check_orbax_itself_restores_what_was_saved(root):
  import orbax.checkpoint as ocp

  folder = made(root / "llama", LLAMA)
  model = build(LLAMA, place("tensor", "model:4"), scan=True)
  params = hf.load_params(folder, model)
  orbax.save(root / "orbax_own", model, params, config=LLAMA)
  new = build(LLAMA, place("tensor2d", "data:2,model:4"), scan=True)
  tree = {}
  for path, spec, sharding in zip(
    new.paths, new.shapes, new.shardings, strict=True
  ):
    leaf = jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)
    *above, last = path.split(".")
    inner = tree
    for key in above:
      inner = inner.setdefault(key, {})
    inner[last] = leaf
  with ocp.StandardCheckpointer() as checkpointer:
    restored = checkpointer.restore(root / "orbax_own" / "orbax", tree)
  for path, value in zip(model.paths, params, strict=True):
    other = restored
    for key in path.split("."):
      other = other[key]
    np.testing.assert_array_equal(np.asarray(other), np.asarray(value))


def check_a_damaged_orbax_checkpoint_is_named_in_one_line(root):
  folder = made(root / "llama", LLAMA)
  model = build(LLAMA, place("tensor", "model:4"))
  params = hf.load_params(folder, model)
  load = orbax.load_params
  damaged = "orbax: missing, truncated or damaged ("
  kept = {}
  for kind in ("empty", "manifest", "data", "gone", "missing", "shapes"):
    kept[kind] = root / f"orbax_{kind}"
    orbax.save(kept[kind], model, params, config=LLAMA)
  refused(load, root / "nowhere", model, "no Orbax checkpoint in it")
  for path in kept["empty"].rglob("*"):
    if path.is_file():
      path.unlink()
  refused(load, kept["empty"], model, "no Orbax checkpoint in it")
  for path in kept["manifest"].rglob("manifest.ocdbt"):
    path.write_bytes(path.read_bytes()[:20])
  refused(load, kept["manifest"], model, damaged)
  for kind, keep in (("data", 40), ("gone", 0)):
    sizes = {p: p.stat().st_size for p in kept[kind].rglob("d/*")}
    path = max(sizes, key=sizes.get)
    if keep:
      path.write_bytes(path.read_bytes()[:keep])
    else:
      path.unlink()
    refused(load, kept[kind], model, damaged)
  other = build(LLAMA | {"num_hidden_layers": 3, "intermediate_size": 32})
  refused(
    load,
    kept["shapes"],
    other,
    "13 missing: layers.2.attention.k.bias, ",
    "6 of another shape: layers.0.mlp.down.weight (16, 24), the config says "
    "(16, 32), ",
  )
  heads = build(LLAMA | {"num_key_value_heads": 2})
  refused(load, kept["shapes"], heads, "heads are [16, 8, 16, 8], the config")
  for content, message in (
    ('{"custom_metadata": {"specjax_heads": "8"}}', "heads are '8', the"),
    ('{"custom_metadata": {"specjax_heads": [1]}}', "heads are [1], the"),
    ("{", damaged),
  ):
    (kept["missing"] / "orbax" / "_METADATA").write_text(content)
    refused(load, kept["missing"], model, message)
