"""A folder written as GGUF holds the same weights in GGUF's order."""

import gguf
import numpy as np
import pytest

from specjax import api
from specjax.benchmark import gguf_writer
from specjax.checkpoints import gguf as gguf_reader
from specjax.checkpoints import hf
from tests.benchmark import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tiny.folder(
    tmp_path_factory.mktemp("writer") / "model", layers=2, tied=False
  )


def tensors(path):
  return {
    tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type)
    for tensor in gguf.GGUFReader(path).tensors
  }


def test_permute_is_undone_by_the_reader():
  rows = np.arange(4 * 6 * 3, dtype=np.float32).reshape(24, 3)
  permuted = gguf_writer.permute(rows, 4)
  assert not np.array_equal(permuted, rows)
  np.testing.assert_array_equal(gguf_reader.unpermute(permuted, 4), rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_the_folders_in_the_dtype(folder, tmp_path, dtype):
  path = gguf_writer.cached(str(folder), dtype=dtype, cache=tmp_path / "c")
  found = tensors(path)
  loaded = api.load(folder, dtype=dtype)
  own = dict(zip(loaded.model.paths, loaded.params, strict=True))
  own = {name: np.asarray(value, np.float32) for name, value in own.items()}
  np.testing.assert_array_equal(found["token_embd.weight"], own["embed.weight"])
  np.testing.assert_array_equal(found["output.weight"], own["head.weight"])
  key = next(value for name, value in own.items() if ".k." in name)
  np.testing.assert_array_equal(
    gguf_reader.unpermute(found["blk.0.attn_k.weight"], 2),
    key.reshape(-1, key.shape[-1]),
  )
  assert len(found) == 2 * 9 + 3


def test_the_header_holds_the_sizes(folder, tmp_path):
  path = gguf_writer.cached(str(folder), dtype="float32", cache=tmp_path)
  fields = gguf.GGUFReader(path).fields
  value = lambda key: fields[key].contents()
  assert value("general.architecture") == "llama"
  assert value("llama.vocab_size") == tiny.VOCAB
  assert value("llama.attention.head_count_kv") == 2
  assert value("llama.block_count") == 2
  assert value("tokenizer.ggml.model") == "no_vocab"


def test_a_file_is_written_once_and_again_for_other_weights(tmp_path):
  model = tiny.folder(tmp_path / "model")
  make = lambda: gguf_writer.cached(
    str(model), dtype="float32", cache=tmp_path / "cache"
  )
  path = make()
  written = path.stat().st_mtime_ns
  assert make() == path and path.stat().st_mtime_ns == written
  weights = model / "model.safetensors"
  weights.write_bytes(weights.read_bytes())  # Others, for all it knows.
  assert make() != path
  assert not list((tmp_path / "cache").glob("*.partial"))


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"architectures": ["Qwen2ForCausalLM"]}, "only a LlamaForCausalLM"),
    ({"rope_scaling": {"rope_type": "llama3"}}, "rope type 'llama3'"),
    ({"attention_bias": True}, "attention_bias"),
  ],
)
def test_what_it_could_not_say_is_refused(folder, tmp_path, changes, words):
  config = hf.read_config(folder) | changes
  with pytest.raises(ValueError, match=words):
    gguf_writer._check(folder, config)
