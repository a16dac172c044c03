"""Two processes with four devices each load a model and save it together."""

import json
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

from specjax.checkpoints import hf
from specjax.models import config as config_lib
from specjax.models import decoder
from tests.checkpoints import memory_test
from tests.text import tokenizers_made

ROOT = pathlib.Path(__file__).parents[2]
TINY = {
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 320,
  "hidden_size": 16,
  "intermediate_size": 32,
  "num_hidden_layers": 2,
  "num_attention_heads": 8,
  "num_key_value_heads": 8,
  "head_dim": 4,
  "max_position_embeddings": 64,
  "tie_word_embeddings": True,
}


ODD = TINY | {"num_attention_heads": 4, "num_key_value_heads": 2}
LARGE = memory_test.CONFIG | {"num_key_value_heads": 8}
# A minute each: two processes start, compile and wait for each other.
pytestmark = pytest.mark.long


def write(folder, config):
  """A model folder of random numbers."""
  model = decoder.build(config_lib.from_hugging_face(config))
  draws = np.random.default_rng(0)
  params = [draws.random(spec.shape, np.float32) for spec in model.shapes]
  hf.save_params(folder, model, params, config=config)
  tokenizers_made.folder(folder, tokenizers_made.byte_level())
  return model


@pytest.fixture(scope="module")
def results(tmp_path_factory):
  """What each of the two processes found."""
  root = tmp_path_factory.mktemp("hosts")
  for name, config in (("model", TINY), ("odd", ODD), ("large", LARGE)):
    write(root / name, config)
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = str(free.getsockname()[1])
  command = [sys.executable, "-m", "tests.checkpoints.two_processes"]
  processes = [
    subprocess.Popen(
      [*command, str(number), port, str(root), str(root / "large")],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for number in (0, 1)
  ]
  try:
    ended = [process.communicate(timeout=300) for process in processes]
  finally:
    for process in processes:
      process.kill()
  for process, (_, err) in zip(processes, ended, strict=True):
    assert process.returncode == 0, err
  return [json.loads(out.splitlines()[-1]) for out, _ in ended]


@pytest.mark.parametrize("strategy", ["tensor", "fsdp", "replicated"])
def test_each_process_reads_its_share(results, strategy):
  whole = results[0]["read replicated"]
  for found in results:
    assert found[f"read {strategy}"] == found[f"share {strategy}"]
    if strategy != "replicated":
      assert 0.5 * whole <= found[f"read {strategy}"] < 0.53 * whole


@pytest.mark.parametrize("format", ["safetensors", "orbax"])
def test_a_refused_save_ends_on_both(results, format):
  first, second = (found[f"refused {format}"] for found in results)
  assert first.startswith("FileExistsError: ") and "not empty" in first
  assert second == (
    "RuntimeError: process 0 could not save the model; it says why"
  )


def test_a_failed_save_ends_on_both_and_leaves_nothing(results):
  first, second = (found["failed"] for found in results)
  assert first.startswith("FileNotFoundError: ")
  assert second.startswith("RuntimeError: process 0 could not save")


def test_the_peak_is_the_share_and_a_tensor(results):
  largest = 4 * max(np.prod(shape) for shape in memory_test.shapes().values())
  for found in results:
    share = found["large share"]
    assert found["large read"] == share > 60e6
    # The promise is 1 GB; what is beyond it is buffers of fixed size.
    assert 0.9 * share < found["peak"] <= share + largest + 60e6
