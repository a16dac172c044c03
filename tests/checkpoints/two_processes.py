"""One of two processes with four devices each: the program of hosts_test.

python -m tests.checkpoints.two_processes NUMBER PORT FOLDER LARGE_FOLDER
"""

import json
import os
import pathlib
import re
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import numpy as np
from safetensors import numpy as safetensors

import specjax
from specjax.checkpoints import hf
from tests.checkpoints import eight_devices


def peak() -> int:
  # Not getrusage's: that begins with what the parent process had.
  status = pathlib.Path("/proc/self/status").read_text()
  return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024


def raised(call):
  try:
    call()
  except Exception as error:
    return f"{type(error).__name__}: {error}"
  return None


def main(number: int, port: str, root: pathlib.Path, large: pathlib.Path):
  jax.distributed.initialize(f"localhost:{port}", 2, number)
  assert (jax.device_count(), jax.local_device_count()) == (8, 4)
  local = jax.local_devices()
  # A larger model, for its peak: first, while nothing else has made one.
  model = specjax.load(large, mesh="model:8", strategy="tensor")
  before, start = peak(), time.monotonic()
  jax.block_until_ready(model.params)
  found = {
    "peak": peak() - before,
    "seconds": time.monotonic() - start,
    "large read": model.traffic.nbytes,
    "large share": eight_devices.share(model.model, local),
  }
  whole = safetensors.load_file(root / "model" / "model.safetensors")
  for strategy, mesh in (
    ("tensor", "model:8"), ("fsdp", "data:2,model:4"), ("replicated", "data:8")
  ):  # fmt: skip
    model = specjax.load(root / "model", mesh=mesh, strategy=strategy)
    params = dict(zip(model.model.paths, model.params, strict=True))
    found[f"read {strategy}"] = model.traffic.nbytes
    share = eight_devices.share(model.model, local)
    found[f"share {strategy}"] = share
    table = whole["model.embed_tokens.weight"]
    for shard in params["embed.weight"].addressable_shards:
      np.testing.assert_array_equal(shard.data, table[shard.index])
  # Both save: process 0 writes, or each its shards.
  padded = specjax.load(
    root / "odd", mesh="model:8", pad_heads=True, scan_layers=True
  )
  whole = safetensors.load_file(root / "odd" / "model.safetensors")
  for format in ("safetensors", "orbax"):
    padded.save(root / format, format=format)
    # Nobody comes back before all is there.
    assert (root / format / "config.json").exists()
    again = specjax.load(
      root / format, mesh="data:2,model:4", strategy="fsdp", pad_heads=True
    )
    back = root / f"{format}_back"
    again.save(back)
    written = safetensors.load_file(back / "model.safetensors")
    assert written.keys() == whole.keys()
    for name, value in whole.items():
      np.testing.assert_array_equal(written[name], value)
    found[f"refused {format}"] = raised(
      lambda format=format: padded.save(root / format, format=format)
    )
  config = hf.read_config(root / "odd")
  found["failed"] = raised(
    lambda: hf.save_params(
      root / "failed", padded.model, padded.params, config=config,
      others={"no/such/folder": b""},
    )
  )  # fmt: skip
  assert not (root / "failed").exists() or not list((root / "failed").iterdir())
  print(json.dumps(found), flush=True)


if __name__ == "__main__":
  number, port, *folders = sys.argv[1:]
  main(int(number), port, *map(pathlib.Path, folders))
