"""A load never holds two copies of the model, nor does a conversion.

Measured as the operating system sees it (peak resident memory, file maps and
all), on a model of some 200 MB; each case in a process of its own, forked from
one that has imported everything.
"""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = {
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 8192,
  "hidden_size": 1024,
  "intermediate_size": 2560,
  "num_hidden_layers": 4,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "max_position_embeddings": 256,
  "tie_word_embeddings": True,
}

_SCRIPT = """
import json, os, pathlib, resource, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, numpy as np
from specjax.checkpoints import folders, hf
from specjax.cli import convert
from specjax.models import config as config_lib, decoder
from specjax.sharding import mesh, rules
from specjax.sharding.placement import Placement

root, config = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
model = decoder.build(config_lib.from_hugging_face(config))
shapes = {n: s for n, s in json.loads(sys.argv[3]).items()}

def write(name, dtype, **options):
  draws = np.random.default_rng(0)
  values = ((n, draws.random(s, np.float32)) for n, s in shapes.items())
  others = {"tokenizer.json": b"{}"}
  folders.write(
    root / name, shapes, values, config=config, dtype=jax.numpy.dtype(dtype),
    others=others, **options)

def peak():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def forked(work):
  read, write = os.pipe()
  if os.fork() == 0:
    jax.block_until_ready(jax.device_put(np.ones(1024)))
    before = peak()
    kept = work()
    os.write(write, json.dumps(peak() - before).encode())
    os._exit(0)
  os.wait()
  os.close(write)
  return json.loads(os.read(read, 100))

def load(folder, dtype, scan, split=None):
  read = config_lib.from_hugging_face(config)
  built = decoder.build(read, dtype=dtype, scan_layers=scan)
  if split:
    built = decoder.build(
      read, dtype=dtype, scan_layers=scan,
      placement=Placement(mesh.make("data:2,model:4"), rules.find(split)))
  return lambda: jax.block_until_ready(hf.load_params(root / folder, built))

forked(lambda: write("whole", "float32"))
forked(lambda: write("shards", "float32", max_shard_bytes=60_000_000))
forked(lambda: write("half", "bfloat16"))
found = {"parameters": model.parameter_count}
for folder, dtype in (
  ("whole", "float32"), ("shards", "float32"), ("half", "float32"),
  ("whole", "bfloat16"),
):
  for scan in (False, True):
    found[f"{folder} {dtype} {scan}"] = forked(load(folder, dtype, scan))
for split, folder in (
  ("tensor", "whole"), ("fsdp", "half"), ("replicated", "whole")
):
  found[split] = forked(load(folder, "float32", True, split))
found["copy"] = forked(
  lambda: convert.copy(str(root / "whole"), root / "copy", dtype="bfloat16"))
print(json.dumps(found))
"""


def shapes():
  d, f = CONFIG["hidden_size"], CONFIG["intermediate_size"]
  sizes = {"model.embed_tokens.weight": (CONFIG["vocab_size"], d)}
  for i in range(CONFIG["num_hidden_layers"]):
    layer = f"model.layers.{i}"
    sizes |= {
      f"{layer}.input_layernorm.weight": (d,),
      f"{layer}.self_attn.q_proj.weight": (d, d),
      f"{layer}.self_attn.k_proj.weight": (d // 2, d),
      f"{layer}.self_attn.v_proj.weight": (d // 2, d),
      f"{layer}.self_attn.o_proj.weight": (d, d),
      f"{layer}.post_attention_layernorm.weight": (d,),
      f"{layer}.mlp.gate_proj.weight": (f, d),
      f"{layer}.mlp.up_proj.weight": (f, d),
      f"{layer}.mlp.down_proj.weight": (d, f),
    }
  return sizes | {"model.norm.weight": (d,)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
  root = tmp_path_factory.mktemp("memory")
  arguments = [str(root), json.dumps(CONFIG), json.dumps(shapes())]
  done = subprocess.run(
    [sys.executable, "-W", "ignore", "-c", _SCRIPT, *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize(
  "folder, dtype, size",
  [
    ("whole", "float32", 4),
    ("shards", "float32", 4),
    ("half", "float32", 4),
    ("whole", "bfloat16", 2),
  ],
)
def test_a_load_peaks_at_the_parameters_and_a_quarter(
  measured, folder, dtype, size, scan_layers
):
  parameters = measured["parameters"] * size
  assert parameters > 90e6
  peak = measured[f"{folder} {dtype} {scan_layers}"]
  assert 0.9 * parameters < peak <= 1.25 * parameters


@pytest.mark.parametrize("strategy", ["tensor", "fsdp", "replicated"])
def test_a_sharded_load_peaks_at_its_shards_and_a_quarter(measured, strategy):
  # All eight devices are this process's, and share what they have alike.
  parameters = measured["parameters"] * 4
  assert 0.9 * parameters < measured[strategy] <= 1.25 * parameters


def test_a_copy_holds_a_tensor_at_a_time(measured):
  assert measured["copy"] < 0.5 * measured["parameters"] * 4
