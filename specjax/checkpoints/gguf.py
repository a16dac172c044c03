"""GGUF files of the Llama architecture, read as a Hugging Face checkpoint.

The format's keys and tensor names are those of the GGUF specification (ggml,
docs/gguf.md). Weights are dequantized by the `gguf` package (extra `gguf`);
Mistral's come as the Llama architecture, too.
"""

import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from specjax.checkpoints import gguf_file, gguf_metadata, gguf_tokenizer

# GGUF tensor name → Hugging Face tensor name.
_NAMES = {
  "token_embd.weight": "model.embed_tokens.weight",
  "output_norm.weight": "model.norm.weight",
  "output.weight": "lm_head.weight",
  "blk.{i}.attn_norm.weight": "model.layers.{i}.input_layernorm.weight",
  "blk.{i}.attn_q.weight": "model.layers.{i}.self_attn.q_proj.weight",
  "blk.{i}.attn_k.weight": "model.layers.{i}.self_attn.k_proj.weight",
  "blk.{i}.attn_v.weight": "model.layers.{i}.self_attn.v_proj.weight",
  "blk.{i}.attn_output.weight": "model.layers.{i}.self_attn.o_proj.weight",
  "blk.{i}.ffn_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
  "blk.{i}.ffn_gate.weight": "model.layers.{i}.mlp.gate_proj.weight",
  "blk.{i}.ffn_up.weight": "model.layers.{i}.mlp.up_proj.weight",
  "blk.{i}.ffn_down.weight": "model.layers.{i}.mlp.down_proj.weight",
}
# Not a weight: Llama 3's rescaled rotation, one divisor per frequency.
_ROPE_FACTORS = "rope_freqs.weight"
_LAYER = re.compile(r"^blk\.(\d+)\.")
# Keys whose meaning this module knows. Any other that is set is refused: it
# may change what the model computes.
_KNOWN_KEYS = frozenset(
  {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "vocab_size",
  }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
  """One weight, still on disk.

  Attributes:
    name: its Hugging Face name.
    shape: its Hugging Face shape.
    read: dequantizes it; float32, of that shape.
  """

  name: str
  shape: tuple[int, ...]
  read: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
  """A GGUF file in the terms of a Hugging Face folder.

  Attributes:
    config: the content of config.json, without the dtype.
    generation_config: the content of generation_config.json.
    tokenizer: the content of tokenizer.json.
    tokenizer_config: the content of tokenizer_config.json.
    tensors: the weights, none of them read yet.
  """

  config: dict[str, Any]
  generation_config: dict[str, Any]
  tokenizer: str
  tokenizer_config: dict[str, Any]
  tensors: tuple[Tensor, ...]


def read(path: os.PathLike | str) -> Checkpoint:
  """Reads the header of a GGUF file; weights follow one by one, on demand.

  Raises:
    FileNotFoundError: there is no such file.
    ImportError: the `gguf` package is not installed.
    ValueError: the file is not a whole GGUF file, or holds an architecture,
      a setting, a tensor or a tokenizer that cannot be carried over exactly.
  """
  path = pathlib.Path(path)
  _require_package()
  header = gguf_file.read(path)
  metadata, tensors = header.metadata, header.tensors
  try:
    config = _config(metadata, tensors)
    vocabulary = gguf_tokenizer.Vocabulary.from_metadata(metadata)
    if len(vocabulary.tokens) > config["vocab_size"]:
      raise ValueError(
        f"tokenizer.ggml.tokens holds {len(vocabulary.tokens)} tokens, but the "
        f"model embeds only {config['vocab_size']}"
      )
    ids = vocabulary.generation_config()
    return Checkpoint(
      config=config | ids,
      generation_config=ids,
      tokenizer=vocabulary.tokenizer_json(),
      tokenizer_config=vocabulary.tokenizer_config(
        config["max_position_embeddings"]
      ),
      tensors=tuple(_tensors(config, tensors)),
    )
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from None


def _require_package() -> None:
  """Says what to install before anything is read."""
  try:
    import gguf  # noqa: F401
  except ImportError:
    raise ImportError(
      "reading GGUF files needs the gguf package: pip install 'specjax[gguf]'"
    ) from None


def _config(
  metadata: Mapping[str, Any], tensors: Mapping[str, gguf_file.Tensor]
) -> dict[str, Any]:
  """config.json for the metadata of a file."""
  architecture = metadata.get("general.architecture")
  if architecture != "llama":
    raise ValueError(
      f"general.architecture={gguf_metadata.shown(architecture)} is not "
      "supported; only 'llama' is"
    )
  # 0 and 1 both mean a file that is whole.
  if (parts := metadata.get("split.count", 1)) not in (0, 1):
    raise ValueError(
      f"split.count={gguf_metadata.shown(parts)}: merge the parts of the "
      "file first (llama-gguf-split --merge)"
    )
  for key, value in metadata.items():
    name = key.removeprefix("llama.")
    if name != key and name not in _KNOWN_KEYS and _is_set(value):
      raise ValueError(
        f"{key}={gguf_metadata.shown(value)} is not supported; it may change "
        "the model's output"
      )
  if "token_embd.weight" not in tensors:
    raise ValueError("the tensor token_embd.weight is missing")
  embedding = tensors["token_embd.weight"].shape
  if len(embedding) != 2:
    raise ValueError(
      f"the tensor token_embd.weight has the shape {embedding}; it must have "
      "two axes, tokens and llama.embedding_length"
    )

  def whole(name: str, default: int | None = None) -> int:
    return gguf_metadata.whole(metadata, f"llama.{name}", default)

  if whole("vocab_size", embedding[0]) != embedding[0]:
    raise ValueError(
      f"llama.vocab_size={whole('vocab_size')}, but token_embd.weight has "
      f"{embedding[0]} rows"
    )

  def number(name: str, default: float | None = None) -> float:
    return gguf_metadata.number(metadata, f"llama.{name}", default)

  heads, kv_heads, head_size = _heads(metadata)
  theta = float(number("rope.freq_base", 10000.0))
  return {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": embedding[0],
    "hidden_size": whole("embedding_length"),
    "intermediate_size": whole("feed_forward_length"),
    "num_hidden_layers": _layers(whole("block_count"), tensors),
    "num_attention_heads": heads,
    "num_key_value_heads": kv_heads,
    "head_dim": head_size,
    "hidden_act": "silu",
    "max_position_embeddings": whole("context_length"),
    # Stored as float32: 9.999999747378752e-06 is meant to be 1e-05.
    "rms_norm_eps": float(
      str(np.float32(number("attention.layer_norm_rms_epsilon")))
    ),
    "rope_theta": theta,
    "rope_scaling": _rope_scaling(tensors, theta, head_size),
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": "output.weight" not in tensors,
  }


def _heads(metadata: Mapping[str, Any]) -> tuple[int, int, int]:
  """N, K and H."""

  def whole(name: str, default: int | None = None) -> int:
    return gguf_metadata.whole(metadata, f"llama.{name}", default)

  hidden = whole("embedding_length")
  heads = whole("attention.head_count")
  kv_heads = whole("attention.head_count_kv", heads)
  if heads % kv_heads:
    raise ValueError(
      f"llama.attention.head_count={heads} is not a multiple of "
      f"llama.attention.head_count_kv={kv_heads}"
    )
  if "llama.attention.key_length" not in metadata and hidden % heads:
    raise ValueError(
      f"llama.embedding_length={hidden} is not a multiple of "
      f"llama.attention.head_count={heads}"
    )
  head_size = whole("attention.key_length", hidden // heads)
  if head_size % 2:
    raise ValueError(
      f"the head size {head_size} (llama.embedding_length by "
      "llama.attention.head_count, or llama.attention.key_length) is odd; "
      "rotary positions need pairs"
    )
  for name in ("attention.value_length", "rope.dimension_count"):
    if whole(name, head_size) != head_size:
      raise ValueError(
        f"llama.{name}={whole(name)} is not supported; only the head size "
        f"{head_size} is"
      )
  return heads, kv_heads, head_size


def _layers(announced: int, tensors: Mapping[str, gguf_file.Tensor]) -> int:
  """L, which the metadata and the tensors must agree on."""
  # Checked here and not with the tensors' shapes: no list of expected names
  # is made for a number that may be billions.
  numbers = {m.group(1) for m in map(_LAYER.match, tensors) if m}
  if len(numbers) != announced:
    raise ValueError(
      f"llama.block_count={announced}, but the file holds tensors of "
      f"{len(numbers)} layers"
    )
  return announced


def _is_set(value: Any) -> bool:
  return value not in (0, False, "", "none")


def _rope_scaling(
  tensors: Mapping[str, gguf_file.Tensor], theta: float, head_size: int
) -> dict[str, Any] | None:
  """Llama 3's rope_scaling, found again from the factors it led to.

  GGUF keeps one divisor per frequency and drops the four numbers behind
  them. Llama 3.1 and later use low 1, high 4 and 8192 throughout; the factor
  is the largest divisor. Divisors that this does not explain are refused.
  """
  if _ROPE_FACTORS not in tensors:
    return None
  found = tensors[_ROPE_FACTORS].read().astype(np.float64)
  scaling = {
    "rope_type": "llama3",
    "factor": float(found.max(initial=1)),
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
  }
  frequency = theta ** -(np.arange(0, head_size, 2) / head_size)
  turns = 8192 * frequency / (2 * math.pi)
  smooth = np.clip((turns - 1) / (4 - 1), 0, 1)
  expected = 1 / ((1 - smooth) / scaling["factor"] + smooth)
  if found.shape != expected.shape or not np.allclose(
    found, expected, rtol=1e-4
  ):
    raise ValueError(
      f"the rotation factors in {_ROPE_FACTORS} are not those of Llama 3 "
      "(low 1, high 4, 8192 positions) and cannot be carried over"
    )
  return scaling


def _tensors(
  config: Mapping[str, Any], tensors: Mapping[str, gguf_file.Tensor]
) -> Iterator[Tensor]:
  """The weights under their Hugging Face names; unknown ones are refused."""
  unknown = []
  for name, tensor in tensors.items():
    if name == _ROPE_FACTORS:
      continue
    number = _LAYER.match(name)
    layer = number.group(1) if number else ""
    template = _LAYER.sub("blk.{i}.", name)
    if template not in _NAMES:
      unknown.append(name)
      continue
    heads = {
      "blk.{i}.attn_q.weight": config["num_attention_heads"],
      "blk.{i}.attn_k.weight": config["num_key_value_heads"],
    }.get(template)
    yield Tensor(
      name=_NAMES[template].replace("{i}", layer),
      shape=tensor.shape,
      read=_reader(tensor, heads),
    )
  if unknown:
    raise ValueError(
      f"{len(unknown)} unexpected tensors, such as {', '.join(unknown[:4])}"
    )


def _reader(
  tensor: gguf_file.Tensor, rotated_heads: int | None
) -> Callable[[], np.ndarray]:
  """A function that dequantizes a tensor.

  Args:
    tensor: still in the file.
    rotated_heads: number of heads if the rows are a query's or a key's.
  """

  def read_tensor() -> np.ndarray:
    values = tensor.read()
    return unpermute(values, rotated_heads) if rotated_heads else values

  return read_tensor


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
  """Undoes the order in which a Llama GGUF keeps query and key rows.

  GGUF rotates neighbouring pairs (0, 1), (2, 3), …; Hugging Face rotates
  halves (0, H/2), (1, H/2 + 1), …

  Args:
    rows: (N·H, D), or (K·H, D) for keys.
    heads: N, or K for keys.

  Returns:
    The same rows in Hugging Face's order.
  """
  pairs = rows.reshape(heads, -1, 2, rows.shape[1])
  return pairs.swapaxes(1, 2).reshape(rows.shape)
