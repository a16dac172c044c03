"""What the checks of sharded_test share, in a process with eight devices.

Every function named check_… of a module is a test. They run in one process of
their own, because a process has as many devices as it started with.
"""

import contextlib
import json
import math
import os
import pathlib
import traceback
import warnings
from unittest import mock

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import numpy as safetensors

from specjax.checkpoints import hf
from specjax.models import config as config_lib
from specjax.models import decoder, padding
from specjax.sharding import mesh as mesh_lib
from specjax.sharding import rules
from specjax.sharding.placement import Placement

LLAMA = {
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 48,
  "hidden_size": 16,
  "intermediate_size": 24,
  "num_hidden_layers": 2,
  "num_attention_heads": 16,
  "num_key_value_heads": 8,
  "head_dim": 4,
  "max_position_embeddings": 64,
  "tie_word_embeddings": False,
  "attention_bias": True,
}
GPT2 = {
  "architectures": ["GPT2LMHeadModel"],
  "model_type": "gpt2",
  "vocab_size": 48,
  "n_embd": 32,
  "n_layer": 2,
  "n_head": 8,
  "n_positions": 16,
}
# Both along one dimension of a parameter, and axes that no strategy splits.
ODD = rules.Rules(
  name="odd",
  parameters={"head_dim": "data", "embed": "model", "position": "data"},
  arrays={},
)
BOTH = rules.Rules(
  name="both",
  parameters={"vocab": ("data", "model"), "mlp": ("model", "data")},
  arrays={},
)
STACKS = rules.Rules(name="stacks", parameters={"layers": "data"}, arrays={})
SPLITS = [
  ("tensor", "model:8"),
  ("tensor", "data:2,model:4"),
  ("fsdp", "data:4,model:2"),
  ("fsdp", "data:2,model:4"),
  ("tensor2d", "data:2,model:4"),
  ("replicated", "data:8"),
  (ODD, "data:2,model:4"),
  (BOTH, "data:2,model:4"),
]


PADDED = (
  (LLAMA, "repeated", dict(num_attention_heads=8, num_key_value_heads=4), 8),
  (LLAMA, "dealt", dict(num_attention_heads=12, num_key_value_heads=4), 8),
  (LLAMA, "zeros", dict(num_attention_heads=9, num_key_value_heads=3), 4),
  (GPT2, "gpt2_odd", dict(n_embd=24, n_head=3), 4),
)


def place(strategy, mesh, devices=None):
  count = math.prod(mesh_lib.parse(mesh).values())
  devices = jax.devices()[:count] if devices is None else devices
  return Placement(mesh_lib.make(mesh, devices), rules.find(strategy))


def build(config, placement=None, *, ways=1, scan=False, dtype=jnp.float32):
  config = padding.padded(config_lib.from_hugging_face(config), ways)
  return decoder.build(
    config, placement=placement, scan_layers=scan, dtype=dtype
  )


def made(folder, config):
  """A folder with a random model, every number another."""
  if not folder.exists():
    model = build(config)
    draws = np.random.default_rng(0)
    params = [draws.standard_normal(s.shape, np.float32) for s in model.shapes]
    hf.save_params(folder, model, params, config=config)
  return folder


def expected(folder, config, **form):
  """What a model's parameters are, read whole and padded then."""
  ways = form.pop("ways", 1)
  own, model = build(config, **form), build(config, ways=ways, **form)
  params = hf.load_params(folder, own)
  return [
    padding.pad(model.config, names, np.asarray(value))
    for names, value in zip(own.axes, params, strict=True)
  ]


def same(params, wanted, model):
  shardings = model.shardings or [None] * len(params)
  for path, value, other, place in zip(
    model.paths, params, wanted, shardings, strict=True
  ):
    assert place is None or value.sharding == place, path
    assert value.dtype == other.dtype, path
    assert np.asarray(value).tobytes() == other.tobytes(), path


def same_files(one, other):
  one, other = (
    safetensors.load_file(folder / "model.safetensors")
    for folder in (one, other)
  )
  assert one.keys() == other.keys()
  for name, value in one.items():
    assert value.tobytes() == other[name].tobytes(), name


def share(model, devices, itemsize=4):
  """Bytes of the distinct parts of all parameters on some devices."""
  total = 0
  for spec, sharding in zip(model.shapes, model.shardings, strict=True):
    indices = sharding.devices_indices_map(spec.shape)
    parts = {str(indices[device]) for device in devices}
    total += len(parts) * math.prod(sharding.shard_shape(spec.shape)) * itemsize
  return total


@contextlib.contextmanager
def process_of(devices):
  """As if only these devices were this process's; gives the parts made."""
  parts = []
  sharding = jax.sharding.NamedSharding
  whole = sharding.addressable_devices_indices_map

  def own(self, shape):
    return {d: i for d, i in whole(self, shape).items() if d in devices}

  def collect(shape, sharding, arrays):
    parts.append(arrays)
    return arrays

  with (
    mock.patch.object(sharding, "addressable_devices_indices_map", own),
    mock.patch.object(jax, "make_array_from_single_device_arrays", collect),
  ):
    yield parts


def refused(load, folder, model, *messages):
  try:
    load(folder, model)
  except hf.CheckpointError as error:
    text = str(error)
    assert text.startswith(str(folder)) and "\n" not in text, text
    for message in messages:
      assert message in text, text
  else:
    raise AssertionError(f"{folder} was loaded")


def main(root: pathlib.Path, modules) -> None:
  """Runs all checks; prints {name: its traceback or null} as JSON."""
  warnings.simplefilter("error")
  jax.config.update("jax_numpy_dtype_promotion", "strict")
  results = {}
  for module in modules:
    for name, check in vars(module).items():
      if name.startswith("check_"):
        try:
          check(root)
          results[name] = None
        except Exception:
          results[name] = traceback.format_exc()
  print(json.dumps(results))
