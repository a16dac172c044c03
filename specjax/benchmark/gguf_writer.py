"""Writes a Llama model's folder as a GGUF file of the same weights.

For llama.cpp, which reads nothing else. Prompts go in as ids, so the file
carries no tokenizer.
"""

import pathlib
from typing import Any

import numpy as np
import safetensors

from specjax.benchmark import derived
from specjax.checkpoints import hf

DTYPES = {"float32": "F32", "bfloat16": "BF16"}
_ARCHITECTURE = "LlamaForCausalLM"


def cached(folder: str, *, dtype: str, cache: pathlib.Path) -> pathlib.Path:
  """The folder's model as a GGUF file in `cache`, written if it is not there.

  Raises: as `write`.
  """
  return derived.kept(
    [folder],
    lambda path: write(folder, path, dtype=dtype),
    dtype=dtype,
    cache=cache,
    suffix=".gguf",
  )


def write(
  folder: str | pathlib.Path, path: str | pathlib.Path, *, dtype: str
) -> None:
  """Writes the GGUF file.

  Args:
    folder: a Hugging Face folder of a Llama model with plain rotation.
    path: the file to be.
    dtype: float32 or bfloat16, of matrices; vectors are float32.

  Raises:
    ImportError: the gguf package is missing.
    ValueError: the model is no such Llama.
  """
  try:
    import gguf
  except ImportError:
    raise ImportError(
      "writing GGUF files needs the gguf package: pip install 'specjax[gguf]'"
    ) from None
  folder = pathlib.Path(folder)
  config = hf.read_config(folder)
  _check(folder, config)
  heads = config["num_attention_heads"]
  kv_heads = config.get("num_key_value_heads") or heads
  size = config.get("head_dim") or config["hidden_size"] // heads
  rope = config.get("rope_parameters") or {}
  names = gguf.get_tensor_name_map(
    gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"]
  )
  kind = gguf.GGMLQuantizationType[DTYPES[dtype]]
  writer = gguf.GGUFWriter(path, "llama")
  writer.add_context_length(config.get("max_position_embeddings", 2048))
  writer.add_embedding_length(config["hidden_size"])
  writer.add_block_count(config["num_hidden_layers"])
  writer.add_feed_forward_length(config["intermediate_size"])
  writer.add_head_count(heads)
  writer.add_head_count_kv(kv_heads)
  writer.add_key_length(size)
  writer.add_value_length(size)
  writer.add_rope_dimension_count(size)
  writer.add_rope_freq_base(
    config.get("rope_theta") or rope.get("rope_theta") or 10000.0
  )
  writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
  writer.add_vocab_size(config["vocab_size"])
  writer.add_tokenizer_model("no_vocab")
  for source in sorted(folder.glob("*.safetensors")):
    with safetensors.safe_open(source, "np") as file:
      for name in file.keys():  # noqa: SIM118 (it is no mapping)
        if name.endswith("rotary_emb.inv_freq"):
          continue
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
          continue
        target = names.get_name(name, try_suffixes=(".weight",))
        if target is None:
          raise ValueError(f"{source}: {name} is no tensor of a Llama model")
        values = np.asarray(file.get_tensor(name), np.float32)
        if ".q_proj." in name:
          values = permute(values, heads)
        if ".k_proj." in name:
          values = permute(values, kv_heads)
        if values.ndim == 1:
          writer.add_tensor(target, values)
        else:
          writer.add_tensor(target, gguf.quantize(values, kind), raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
  """Query or key rows in the order in which a Llama GGUF keeps them.

  The reverse of `checkpoints.gguf.unpermute`: halves that rotate together
  become neighbours.

  Args:
    rows: (N·H, D), or (K·H, D) for keys.
    heads: N, or K for keys.
  """
  halves = rows.reshape(heads, 2, -1, rows.shape[1])
  return halves.swapaxes(1, 2).reshape(rows.shape)


def _check(folder: pathlib.Path, config: dict[str, Any]) -> None:
  """Refuses what the file could not say, and llama.cpp would compute wrong."""
  names = config.get("architectures") or [None]
  if names[0] != _ARCHITECTURE:
    raise ValueError(
      f"{folder}: a {names[0]} cannot be written as GGUF, only a"
      f" {_ARCHITECTURE}; name a file of it in --gguf"
    )
  rope = config.get("rope_parameters") or {}
  scaling = config.get("rope_scaling") or rope
  kind = scaling.get("rope_type") or scaling.get("type") or "default"
  if kind != "default":
    raise ValueError(
      f"{folder}: rope type {kind!r} cannot be written as GGUF; name a file of"
      " the model in --gguf"
    )
  for key in ("attention_bias", "mlp_bias"):
    if config.get(key):
      raise ValueError(f"{folder}: {key} cannot be written as GGUF")
