import json

import numpy as np
import pytest
import tokenizers

from specjax.checkpoints import gguf
from specjax.models import config as config_lib
from tests.checkpoints import gguf_files


def write(tmp_path, **changes):
  return gguf_files.write(tmp_path / "model.gguf", **changes)


def read_tensors(checkpoint):
  return {tensor.name: tensor.read() for tensor in checkpoint.tensors}


def built(checkpoint) -> tokenizers.Tokenizer:
  return tokenizers.Tokenizer.from_str(checkpoint.tokenizer)


# Weights


def test_every_weight_comes_back_in_hugging_face_order(tmp_path):
  tensors = read_tensors(gguf.read(write(tmp_path)))
  expected = gguf_files.weights()
  assert tensors.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(tensors[name], value, err_msg=name)


def test_the_announced_shapes_are_those_of_the_weights(tmp_path):
  checkpoint = gguf.read(write(tmp_path))
  expected = gguf_files.weights()
  for tensor in checkpoint.tensors:
    assert tensor.shape == expected[tensor.name].shape


def test_unpermute_turns_neighbouring_pairs_into_halves():
  rows = np.arange(8)[:, None]  # one head of 8: pairs (0, 1), (2, 3), …
  halves = gguf.unpermute(rows, 1)[:, 0].tolist()
  assert halves == [0, 2, 4, 6, 1, 3, 5, 7]


# Config


def test_the_config_is_one_that_the_decoder_takes(tmp_path):
  config = gguf.read(write(tmp_path)).config
  assert config["rms_norm_eps"] == 1e-5
  assert config["eos_token_id"] == 2
  decoder = config_lib.from_hugging_face(config)
  assert decoder == config_lib.DecoderConfig(
    vocab_size=gguf_files.V,
    d_model=gguf_files.D,
    layers=gguf_files.L,
    heads=gguf_files.N,
    kv_heads=gguf_files.K,
    head_dim=gguf_files.H,
    d_ff=gguf_files.F,
    rope_theta=5000.0,
    rope_scaling=None,
    norm_eps=1e-5,
    tied=True,
    max_position=128,
  )


def test_an_output_tensor_means_untied(tmp_path):
  tensors = gguf_files.weights(tied=False)
  checkpoint = gguf.read(write(tmp_path, tensors=tensors))
  assert checkpoint.config["tie_word_embeddings"] is False
  np.testing.assert_array_equal(
    read_tensors(checkpoint)["lm_head.weight"], tensors["lm_head.weight"]
  )


def test_keys_with_a_default_may_be_absent(tmp_path):
  tensors = gguf_files.weights()
  for name in list(tensors):
    if "k_proj" in name or "v_proj" in name:
      tensors[name] = np.repeat(tensors[name], 2, axis=0)
  path = write(
    tmp_path,
    drop=("llama.attention.head_count_kv", "llama.rope.freq_base"),
    tensors={k: v for k, v in tensors.items() if "k_proj" not in k},
  )
  config = gguf.read(path).config
  assert config["num_key_value_heads"] == gguf_files.N
  assert config["rope_theta"] == 10000.0


def rope_factors(factor: float, theta: float) -> np.ndarray:
  """Llama 3's divisor of every frequency, by its case distinction."""
  factors = []
  for i in range(0, gguf_files.H, 2):
    wavelength = 2 * np.pi * theta ** (i / gguf_files.H)
    if wavelength < 8192 / 4:
      factors.append(1.0)
    elif wavelength > 8192:
      factors.append(factor)
    else:
      smooth = (8192 / wavelength - 1) / (4 - 1)
      factors.append(1 / ((1 - smooth) / factor + smooth))
  return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_scaling_is_found_again(tmp_path, factor):
  factors = rope_factors(factor, 500000.0)
  # All three cases occur.
  assert factors[0] == 1 and 1 < factors[2] < factor and factors[3] == factor
  path = write(
    tmp_path,
    metadata={"llama.rope.freq_base": 500000.0},
    extra={"rope_freqs.weight": factors},
  )
  checkpoint = gguf.read(path)
  assert checkpoint.config["rope_scaling"] == {
    "rope_type": "llama3",
    "factor": factor,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
  }
  assert config_lib.from_hugging_face(checkpoint.config).rope_scaling
  assert "rope_freqs.weight" not in read_tensors(checkpoint)


@pytest.mark.parametrize(
  "factors", [[1, 2, 4, 8], [1, 1], [1.0, 1.0, 1.0, float("nan")]]
)
def test_factors_of_another_kind_are_refused(tmp_path, factors):
  extra = {"rope_freqs.weight": np.array(factors, np.float32)}
  with pytest.raises(ValueError, match="rotation factors in rope_freqs"):
    gguf.read(write(tmp_path, extra=extra))


# Tokenizer


def test_special_tokens_and_template_are_carried_over(tmp_path):
  checkpoint = gguf.read(write(tmp_path))
  config = checkpoint.tokenizer_config
  assert config["bos_token"] == "<|im_start|>"
  assert config["eos_token"] == config["pad_token"] == "<|im_end|>"
  assert config["unk_token"] == "<|endoftext|>"
  assert config["chat_template"] == "{{ messages[0].content }}"
  assert config["model_max_length"] == 128
  assert checkpoint.generation_config == {
    "bos_token_id": 1,
    "pad_token_id": 2,
    "eos_token_id": 2,
  }
  ids = built(checkpoint).encode("<|im_start|>he").ids
  assert ids == [1, gguf_files.TOKENS.index("he")]


def test_smollm_takes_digits_one_by_one_and_gpt2_does_not(tmp_path):
  letter = gguf_files.TOKENS.index
  smollm = built(gguf.read(write(tmp_path)))
  assert smollm.encode("123").ids == [letter("1"), letter("2"), letter("3")]
  path = write(tmp_path, metadata={"tokenizer.ggml.pre": "gpt-2"})
  gpt2 = built(gguf.read(path))
  assert gpt2.encode("123").ids == [letter("12"), letter("3")]


def test_llama_3_splits_as_its_rule_says(tmp_path):
  path = write(tmp_path, metadata={"tokenizer.ggml.pre": "llama-bpe"})
  tokenizer = built(gguf.read(path))
  words = tokenizer.pre_tokenizer.pre_tokenize_str("I'LL say: 12345\n\n  x")
  assert [word for word, _ in words] == [
    *("I", "'LL", "Ġsay", ":", "Ġ", "123", "45", "ĊĊ", "Ġ", "Ġx")
  ]
  # Unless the file says otherwise, such a model begins with BOS.
  path = write(
    tmp_path,
    metadata={"tokenizer.ggml.pre": "llama-bpe"},
    drop=("tokenizer.ggml.add_bos_token",),
  )
  assert built(gguf.read(path)).encode("he").ids[0] == 1


def test_bos_is_added_where_the_file_says_so(tmp_path):
  path = write(tmp_path, metadata={"tokenizer.ggml.add_bos_token": True})
  tokenizer = built(gguf.read(path))
  assert tokenizer.encode("he").ids[0] == 1
  assert 1 not in tokenizer.encode("he", add_special_tokens=False).ids


def test_eos_is_added_where_the_file_says_so(tmp_path):
  both = {
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_eos_token": True,
  }
  he = gguf_files.TOKENS.index("he")
  assert built(gguf.read(write(tmp_path, metadata=both))).encode("he").ids == [
    *(1, he, 2)
  ]
  path = write(tmp_path, metadata={"tokenizer.ggml.add_eos_token": True})
  tokenizer = built(gguf.read(path))
  assert tokenizer.encode("he").ids == [he, 2]
  assert tokenizer.encode("he", add_special_tokens=False).ids == [he]


def test_a_vocab_size_that_is_the_embeddings_is_accepted(tmp_path):
  path = write(tmp_path, metadata={"llama.vocab_size": gguf_files.V})
  assert gguf.read(path).config["vocab_size"] == gguf_files.V


def test_an_end_of_turn_token_ends_a_generation_too(tmp_path):
  path = write(tmp_path, metadata={"tokenizer.ggml.eot_token_id": 0})
  assert gguf.read(path).generation_config["eos_token_id"] == [0, 2]


def test_user_defined_tokens_are_whole_but_not_special(tmp_path):
  types = list(gguf_files.METADATA["tokenizer.ggml.token_type"])
  types[0] = 4
  path = write(tmp_path, metadata={"tokenizer.ggml.token_type": types})
  tokenizer = built(gguf.read(path))
  assert tokenizer.encode("<|endoftext|>").ids == [0]
  assert tokenizer.decode([0, 1]) == "<|endoftext|>"


# Bad input: one line that names the file and what is wrong with it


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(metadata={"general.architecture": "qwen2"}), "'qwen2'"),
    (dict(metadata={"llama.expert_count": 8}), "llama.expert_count=8"),
    (
      dict(metadata={"llama.rope.scaling.type": "linear"}),
      "llama.rope.scaling.type='linear'",
    ),
    (dict(metadata={"llama.rope.dimension_count": 4}), "dimension_count=4"),
    (dict(metadata={"llama.attention.value_length": 4}), "value_length=4"),
    (dict(metadata={"split.count": 2}), "split.count=2"),
    (dict(drop=("llama.block_count",)), "llama.block_count is missing"),
    (dict(tensors={}), "token_embd.weight is missing"),
    (
      dict(extra={"blk.0.attn_q.bias": np.zeros(32, np.float32)}),
      "unexpected tensors, such as blk.0.attn_q.bias",
    ),
    (dict(metadata={"tokenizer.ggml.model": "llama"}), "'llama'"),
    (dict(metadata={"tokenizer.ggml.pre": "odd"}), "'odd'"),
    (dict(drop=("tokenizer.ggml.pre",)), "tokenizer.ggml.pre=None"),
    (dict(drop=("tokenizer.ggml.merges",)), "tokenizer.ggml.merges"),
    (dict(metadata={"tokenizer.ggml.merges": ["he"]}), "'he'"),
    (dict(metadata={"tokenizer.ggml.merges": ["h zz"]}), "merges: .*zz"),
    (dict(metadata={"tokenizer.ggml.token_type": [1, 1]}), "token_type 2"),
    (dict(metadata={"tokenizer.ggml.eos_token_id": 9999}), "eos_token_id=9999"),
    (
      dict(
        metadata={"tokenizer.ggml.add_bos_token": True},
        drop=("tokenizer.ggml.bos_token_id",),
      ),
      "bos_token_id is missing",
    ),
    (
      dict(metadata={"tokenizer.ggml.tokens": ["a"] * gguf_files.V}),
      "twice",
    ),
  ],
)
def test_what_cannot_be_carried_over_is_refused(tmp_path, changes, message):
  path = write(tmp_path, **changes)
  with pytest.raises(ValueError, match=message) as error:
    gguf.read(path)
  assert str(error.value).startswith(f"{path}: ")
  assert "\n" not in str(error.value)


def test_settings_that_say_nothing_are_accepted(tmp_path):
  path = write(
    tmp_path,
    metadata={"llama.expert_count": 0, "llama.rope.scaling.type": "none"},
  )
  assert gguf.read(path).config["num_hidden_layers"] == gguf_files.L


def test_more_tokens_than_the_model_embeds_are_refused(tmp_path):
  tensors = gguf_files.weights()
  name = "model.embed_tokens.weight"
  tensors[name] = tensors[name][:100]
  with pytest.raises(ValueError, match="embeds only 100"):
    gguf.read(write(tmp_path, tensors=tensors))


@pytest.mark.parametrize("part", [0.001, 0.02, 0.1, 0.3, 0.6, 0.95])
def test_a_truncated_file_is_refused(tmp_path, part):
  path = write(tmp_path)
  content = path.read_bytes()
  path.write_bytes(content[: int(len(content) * part)])
  with pytest.raises(ValueError, match="truncated or damaged"):
    gguf.read(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a GGUF"])
def test_another_kind_of_file_is_refused(tmp_path, content):
  path = tmp_path / "model.gguf"
  path.write_bytes(content)
  with pytest.raises(ValueError, match="not a GGUF file"):
    gguf.read(path)


def test_a_missing_file_is_named(tmp_path):
  with pytest.raises(FileNotFoundError, match="nowhere.gguf"):
    gguf.read(tmp_path / "nowhere.gguf")


def test_the_tokenizer_is_the_one_of_the_file(tmp_path):
  state = json.loads(gguf.read(write(tmp_path)).tokenizer)
  assert len(state["added_tokens"]) == len(gguf_files.CONTROL)
  assert state["model"]["vocab"] == {
    token: i for i, token in enumerate(gguf_files.TOKENS)
  }
  assert len(state["model"]["merges"]) == len(gguf_files.MERGES)
