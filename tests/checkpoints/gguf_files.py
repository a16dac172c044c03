"""A tiny Llama as a GGUF file, and how to spoil it."""

import pathlib

import gguf
import numpy as np
from tokenizers import pre_tokenizers

D, N, K, H, F, L = 32, 4, 2, 8, 64, 2
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "l l", "Ġ he", "1 2"]
TOKENS = [*CONTROL, *LETTERS, *(m.replace(" ", "") for m in MERGES)]
V = len(TOKENS)

METADATA = {
  "general.architecture": "llama",
  "llama.block_count": L,
  "llama.context_length": 128,
  "llama.embedding_length": D,
  "llama.feed_forward_length": F,
  "llama.attention.head_count": N,
  "llama.attention.head_count_kv": K,
  "llama.attention.layer_norm_rms_epsilon": 1e-5,
  "llama.rope.freq_base": 5000.0,
  "llama.rope.dimension_count": H,
  "tokenizer.ggml.model": "gpt2",
  "tokenizer.ggml.pre": "smollm",
  "tokenizer.ggml.tokens": TOKENS,
  "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (V - len(CONTROL)),
  "tokenizer.ggml.merges": MERGES,
  "tokenizer.ggml.bos_token_id": 1,
  "tokenizer.ggml.eos_token_id": 2,
  "tokenizer.ggml.unknown_token_id": 0,
  "tokenizer.ggml.padding_token_id": 2,
  "tokenizer.ggml.add_bos_token": False,
  "tokenizer.chat_template": "{{ messages[0].content }}",
}


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
  """Hugging Face's order of query and key rows to GGUF's, index by index."""
  half = rows.shape[0] // heads // 2
  order = [
    head * 2 * half + part * half + i
    for head in range(heads)
    for i in range(half)
    for part in range(2)
  ]
  return rows[order]


def weights(tied: bool = True) -> dict[str, np.ndarray]:
  """Random weights by Hugging Face name."""
  draws = np.random.default_rng(0)
  shapes = {"model.embed_tokens.weight": (V, D), "model.norm.weight": (D,)}
  for i in range(L):
    layer = f"model.layers.{i}"
    shapes |= {
      f"{layer}.input_layernorm.weight": (D,),
      f"{layer}.self_attn.q_proj.weight": (N * H, D),
      f"{layer}.self_attn.k_proj.weight": (K * H, D),
      f"{layer}.self_attn.v_proj.weight": (K * H, D),
      f"{layer}.self_attn.o_proj.weight": (D, N * H),
      f"{layer}.post_attention_layernorm.weight": (D,),
      f"{layer}.mlp.gate_proj.weight": (F, D),
      f"{layer}.mlp.up_proj.weight": (F, D),
      f"{layer}.mlp.down_proj.weight": (D, F),
    }
  if not tied:
    shapes["lm_head.weight"] = (V, D)
  return {
    name: draws.standard_normal(shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def gguf_name(name: str) -> str:
  names = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
  }
  for theirs, ours in names.items():
    name = name.replace(theirs, ours)
  return name


def write(
  path: pathlib.Path,
  *,
  metadata: dict | None = None,
  drop: tuple[str, ...] = (),
  tensors: dict[str, np.ndarray] | None = None,
  extra: dict[str, np.ndarray] | None = None,
  packed: gguf.GGMLQuantizationType | None = None,
) -> pathlib.Path:
  """Writes a GGUF file.

  Args:
    path: the file.
    metadata: keys beside METADATA, or in their place.
    drop: keys of METADATA that are left out.
    tensors: by Hugging Face name; `weights()` unless given.
    extra: more tensors, by GGUF name.
    packed: the type of the matrices in `tensors`, which are its bytes.
  """
  values = {
    key: value
    for key, value in (METADATA | (metadata or {})).items()
    if key not in drop
  }
  writer = gguf.GGUFWriter(path, values.pop("general.architecture", "llama"))
  for key, value in values.items():
    add = {
      bool: writer.add_bool,
      int: writer.add_uint32,
      float: writer.add_float32,
      str: writer.add_string,
      list: writer.add_array,
    }[type(value)]
    add(key, value)
  for name, value in (weights() if tensors is None else tensors).items():
    if "q_proj" in name:
      value = permute(value, N)
    if "k_proj" in name:
      value = permute(value, K)
    if packed is not None and value.ndim == 2:
      writer.add_tensor(gguf_name(name), value, raw_dtype=packed)
    else:
      writer.add_tensor(gguf_name(name), value)
  for name, value in (extra or {}).items():
    writer.add_tensor(name, value)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path
