import numpy as np
import pytest
import tokenizers

from specjax.checkpoints import gguf
from tests.checkpoints import gguf_files

HEADS = "llama.attention.head_count"


def write(tmp_path, **changes):
  return gguf_files.write(tmp_path / "model.gguf", **changes)


@pytest.mark.parametrize(
  "key, value, message",
  [
    (HEADS, 0, "positive whole number"),
    (HEADS, [4, 4], "per-layer head counts are not supported"),
    (f"{HEADS}_kv", [2, 2], "per-layer head counts are not supported"),
    (f"{HEADS}_kv", 0, "positive whole number"),
    (f"{HEADS}_kv", 3, "not a multiple"),
    (HEADS, "4", "positive whole number"),
    (HEADS, 3, "multiple"),
    (HEADS, 64, "multiple"),
    (HEADS, True, "positive whole number"),
    ("llama.embedding_length", "32", "positive whole number"),
    ("llama.embedding_length", 32.5, "positive whole number"),
    ("llama.attention.key_length", "8", "positive whole number"),
    ("llama.attention.key_length", 7, "is odd"),
    ("llama.attention.value_length", "8", "positive whole number"),
    ("llama.rope.dimension_count", [8], "not supported"),
    ("llama.feed_forward_length", "64", "positive whole number"),
    ("llama.feed_forward_length", [64, 64], "per-layer values are not"),
    ("llama.context_length", "128", "positive whole number"),
    ("llama.context_length", 0, "positive whole number"),
    ("llama.block_count", "2", "positive whole number"),
    ("llama.block_count", 1, "tensors of 2 layers"),
    ("llama.block_count", 3, "tensors of 2 layers"),
    ("llama.block_count", 2**32 - 1, "tensors of 2 layers"),
    ("llama.rope.freq_base", "5000", "positive number"),
    ("llama.rope.freq_base", float("nan"), "positive number"),
    ("llama.rope.freq_base", float("inf"), "positive number"),
    ("llama.attention.layer_norm_rms_epsilon", "1e-5", "positive number"),
    ("llama.attention.layer_norm_rms_epsilon", [1.0], "not supported"),
    ("llama.attention.layer_norm_rms_epsilon", 0.0, "positive number"),
    ("llama.expert_count", [8, 8], "is not supported"),
    ("split.count", "2", "merge the parts"),
    ("split.count", [2, 3], "merge the parts"),
    ("tokenizer.ggml.model", [1, 2], "is not supported"),
    ("tokenizer.ggml.pre", ["smollm"], "is not supported"),
    ("tokenizer.ggml.pre", 3, "is not supported"),
    ("tokenizer.ggml.tokens", "abc", "must be a list"),
    ("tokenizer.ggml.tokens", [1, 2], "list of texts"),
    ("tokenizer.ggml.token_type", ["a", "b"], "list of whole numbers"),
    ("tokenizer.ggml.token_type", [1.5, 1.5], "list of whole numbers"),
    ("tokenizer.ggml.merges", [1, 2], "list of texts"),
    ("tokenizer.ggml.merges", "h e", "must be a list"),
    ("tokenizer.ggml.bos_token_id", "1", "must be a token id"),
    ("tokenizer.ggml.eos_token_id", [1, 2], "must be a token id"),
    ("tokenizer.ggml.padding_token_id", 1.0, "must be a token id"),
    ("tokenizer.ggml.unknown_token_id", True, "must be a token id"),
    ("tokenizer.ggml.add_bos_token", "no", "must be true or false"),
    ("tokenizer.ggml.add_eos_token", 1, "must be true or false"),
    ("llama.vocab_size", gguf_files.V + 1, "token_embd.weight has"),
    ("llama.vocab_size", "263", "positive whole number"),
    ("tokenizer.chat_template", ["a"], "must be a text"),
  ],
)
def test_metadata_of_the_wrong_kind_is_named(tmp_path, key, value, message):
  drop = ("llama.rope.dimension_count",) if "key_length" in key else ()
  path = write(tmp_path, metadata={key: value}, drop=drop)
  with pytest.raises(ValueError, match=message) as error:
    gguf.read(path)
  assert str(error.value).startswith(f"{path}: ")
  assert key in str(error.value)
  assert "\n" not in str(error.value)


def test_long_values_are_cut_in_errors(tmp_path):
  path = write(tmp_path, metadata={HEADS: [4] * 1000})
  with pytest.raises(ValueError, match="…: per-layer") as error:
    gguf.read(path)
  assert len(str(error.value)) < 200 + len(str(path))


def test_metadata_that_is_not_utf8_is_named(tmp_path):
  path = write(tmp_path, metadata={"tokenizer.chat_template": "mark-it"})
  path.write_bytes(path.read_bytes().replace(b"mark-it", b"mark\xff\xfft"))
  with pytest.raises(
    ValueError,
    match=r"model\.gguf: .*the key tokenizer\.chat_template: not UTF-8",
  ):
    gguf.read(path)


@pytest.mark.parametrize("shape", [(40,), (2, 3, 4)])
def test_an_embedding_that_is_no_matrix_is_named(tmp_path, shape):
  tensors = gguf_files.weights()
  tensors["model.embed_tokens.weight"] = np.ones(shape, np.float32)
  path = write(tmp_path, tensors=tensors)
  with pytest.raises(ValueError, match="token_embd.weight has the shape"):
    gguf.read(path)


@pytest.mark.parametrize("kind", [np.int8, np.int32])
def test_weights_of_a_type_that_is_none_are_named(tmp_path, kind):
  tensors = gguf_files.weights()
  tensors["model.norm.weight"] = np.ones(gguf_files.D, kind)
  path = write(tmp_path, tensors=tensors)
  with pytest.raises(ValueError, match="output_norm.weight: the type I"):
    gguf.read(path)


def test_a_head_size_of_its_own_needs_no_multiple(tmp_path):
  path = write(
    tmp_path,
    metadata={"llama.embedding_length": 34, "llama.attention.key_length": 8},
  )
  assert gguf.read(path).config["head_dim"] == 8


@pytest.mark.parametrize("token", ["a:b", "<s>:1", "$A", "$B"])
@pytest.mark.parametrize("role", ["bos", "eos"])
def test_a_token_that_means_something_to_the_template_is_only_a_token(
  tmp_path, token, role
):
  tokens = list(gguf_files.TOKENS)
  tokens[1] = token
  path = write(
    tmp_path,
    metadata={
      "tokenizer.ggml.tokens": tokens,
      f"tokenizer.ggml.{role}_token_id": 1,
      f"tokenizer.ggml.add_{role}_token": True,
    },
  )
  built = tokenizers.Tokenizer.from_str(gguf.read(path).tokenizer)
  ids = built.encode("he").ids
  assert ids[0 if role == "bos" else -1] == 1
  assert len(ids) == 2
