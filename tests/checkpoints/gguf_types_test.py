"""Every type of tensor, through specjax-convert: packed, written, read again.

What the numbers must be is worked out here from the definition of the formats
(ggml, `block_q8_0` and its like); the gguf package only packs those that it
can pack.
"""

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from specjax.checkpoints import gguf_file
from specjax.cli import convert
from tests.checkpoints import gguf_files

# K-quants pack 256 numbers of a row at a time.
D, N, K = 256, 4, 2
METADATA = {
  "llama.embedding_length": D,
  "llama.feed_forward_length": 2 * D,
  "llama.attention.head_count": N,
  "llama.attention.head_count_kv": K,
  "llama.rope.dimension_count": D // N,
}
# The largest error of a number of about 1, by the format's steps.
STEP = {
  "F32": 0,
  "F16": 2e-3,
  "BF16": 2e-2,
  "Q8_0": 2e-2,
  "Q4_0": 0.4,
  "Q4_1": 0.25,
}


def shapes():
  sizes = {"model.embed_tokens.weight": (gguf_files.V, D)}
  for i in range(gguf_files.L):
    layer = f"model.layers.{i}"
    sizes |= {
      f"{layer}.self_attn.q_proj.weight": (D, D),
      f"{layer}.self_attn.k_proj.weight": (D * K // N, D),
      f"{layer}.self_attn.v_proj.weight": (D * K // N, D),
      f"{layer}.self_attn.o_proj.weight": (D, D),
      f"{layer}.mlp.gate_proj.weight": (2 * D, D),
      f"{layer}.mlp.up_proj.weight": (2 * D, D),
      f"{layer}.mlp.down_proj.weight": (D, 2 * D),
    }
  return sizes


def norms():
  names = ["model.norm.weight"]
  for i in range(gguf_files.L):
    names += [
      f"model.layers.{i}.{which}_layernorm.weight"
      for which in ("input", "post_attention")
    ]
  return {name: np.full((D,), 1.5, np.float32) for name in names}


def half(blocks, at):
  """The float16 at byte `at` of every block, as float32 with an axis."""
  two = np.ascontiguousarray(blocks[..., at : at + 2])
  return two.view(np.float16).astype(np.float32)


def nibbles(data):
  """Low halves of the bytes, then the high ones."""
  return np.concatenate([data & 15, data >> 4], axis=-1).astype(np.float32)


def unpack(kind, packed):
  """The numbers of packed rows, as the format defines them."""
  if kind == "F32":
    return packed
  if kind == "F16":
    return packed.astype(np.float32)
  if kind == "BF16":
    return packed.view(ml_dtypes.bfloat16).astype(np.float32)
  sizes = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}
  blocks = packed.reshape(len(packed), -1, sizes[kind])
  if kind == "Q8_0":
    values = half(blocks, 0) * blocks[..., 2:].view(np.int8)
  elif kind == "Q4_0":
    values = half(blocks, 0) * (nibbles(blocks[..., 2:]) - 8)
  else:
    values = half(blocks, 0) * nibbles(blocks[..., 4:]) + half(blocks, 2)
  return values.reshape(len(packed), -1)


def q4_k(draws, rows, width):
  """Random blocks of Q4_K: (bytes, what they mean).

  256 numbers in 8 groups of 32: d x scale x q - dmin x least, with 4 bits for
  q and 6 for each scale and least.
  """
  count = width // 256
  q = draws.integers(0, 16, (rows, count, 8, 32), np.uint8)
  scale, least = draws.integers(0, 64, (2, rows, count, 8), np.uint8)
  d, dmin = draws.uniform(1e-3, 1e-2, (2, rows, count, 1)).astype(np.float16)
  six = np.empty((rows, count, 12), np.uint8)
  # Bytes 0-3 and 4-7: the first four whole, and the upper two bits of the last
  # four. Bytes 8-11: the lower four bits of the last four.
  six[..., 0:4] = scale[..., :4] | (scale[..., 4:] >> 4 << 6)
  six[..., 4:8] = least[..., :4] | (least[..., 4:] >> 4 << 6)
  six[..., 8:12] = (scale[..., 4:] & 15) | (least[..., 4:] & 15) << 4
  # Two groups share 32 bytes: one the low halves, the next the high ones.
  quants = q[..., 0::2, :] | q[..., 1::2, :] << 4
  packed = np.concatenate(
    [
      d.view(np.uint8),
      dmin.view(np.uint8),
      six,
      quants.reshape(rows, count, 128),
    ],
    axis=-1,
  )
  wide = lambda array: array.astype(np.float32)[..., None]
  values = wide(d) * wide(scale) * q - wide(dmin) * wide(least)
  return packed.reshape(rows, -1), values.reshape(rows, width)


def q6_k(draws, rows, width):
  """Random blocks of Q6_K: (bytes, what they mean).

  256 numbers in 16 groups of 16: d x scale x (q - 32), with 6 bits for q.
  """
  count = width // 256
  q = draws.integers(0, 64, (rows, count, 256), np.uint8)
  scale = draws.integers(-128, 128, (rows, count, 16), np.int8)
  d = draws.uniform(1e-4, 1e-3, (rows, count, 1)).astype(np.float16)
  # Halves of 128, each four runs of 32: runs 0 and 1 are the low halves of 64
  # bytes, runs 2 and 3 the high ones; the upper bits of all four share a byte.
  run = q.reshape(rows, count, 2, 4, 32)
  low = np.concatenate(
    [
      (run[..., 0, :] & 15) | (run[..., 2, :] & 15) << 4,
      (run[..., 1, :] & 15) | (run[..., 3, :] & 15) << 4,
    ],
    axis=-1,
  )
  high = run >> 4
  high = (
    high[..., 0, :]
    | high[..., 1, :] << 2
    | high[..., 2, :] << 4
    | high[..., 3, :] << 6
  )
  packed = np.concatenate(
    [
      low.reshape(rows, count, 128),
      high.reshape(rows, count, 64),
      scale.view(np.uint8),
      d.view(np.uint8),
    ],
    axis=-1,
  )
  values = d.astype(np.float32) * np.repeat(scale, 16, axis=-1) * (q - 32.0)
  return packed.reshape(rows, -1), values.astype(np.float32).reshape(
    rows, width
  )


def made(kind):
  """(packed, meant) of every matrix, by Hugging Face name."""
  draws = np.random.default_rng(3)
  packed, meant = {}, {}
  for name, (rows, width) in shapes().items():
    if kind in ("Q4_K", "Q6_K"):
      make = q4_k if kind == "Q4_K" else q6_k
      packed[name], meant[name] = make(draws, rows, width)
      continue
    value = draws.uniform(-1, 1, (rows, width)).astype(np.float32)
    packed[name] = gguf.quantize(value, gguf.GGMLQuantizationType[kind])
    meant[name] = unpack(kind, packed[name])
    np.testing.assert_allclose(meant[name], value, atol=STEP[kind] / 2)
  return packed, meant


@pytest.mark.parametrize("kind", [*STEP, "Q4_K", "Q6_K"])
def test_the_command_writes_what_the_packed_weights_mean(tmp_path, kind):
  packed, meant = made(kind)
  path = gguf_files.write(
    tmp_path / "model.gguf",
    metadata=METADATA,
    tensors=packed | norms(),
    packed=gguf.GGMLQuantizationType[kind],
  )
  out = tmp_path / "out"
  call = ["specjax-convert", f"--gguf={path}", f"--output={out}"]
  assert convert.main(call) == 0
  written = safetensors.load_file(out / "model.safetensors")
  assert written.keys() == meant.keys() | norms().keys()
  for name, value in (meant | norms()).items():
    assert written[name].dtype == np.float32
    np.testing.assert_allclose(
      written[name], value, rtol=1e-6, atol=1e-7, err_msg=name
    )


def test_the_types_are_those_that_are_promised():
  names = {kind.name for kind in gguf_file.TYPES.values()}
  assert names == {*STEP, "Q4_K", "Q6_K"}
  for code, kind in gguf_file.TYPES.items():
    assert gguf.GGMLQuantizationType[kind.name] == code
    assert gguf.GGML_QUANT_SIZES[code] == (kind.block, kind.nbytes)


@pytest.mark.parametrize("kind", ["Q5_0", "Q8_K", "IQ4_XS", "I8", "F64"])
def test_another_type_is_refused_by_tensor_type_and_file(
  tmp_path, capsys, kind
):
  kind = gguf.GGMLQuantizationType[kind]
  block, size = gguf.GGML_QUANT_SIZES[kind]
  name = "model.layers.1.mlp.up_proj.weight"
  writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
  writer.add_tensor(
    gguf_files.gguf_name(name),
    np.zeros((2 * D, D // block * size), np.uint8),
    raw_dtype=kind,
  )
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  call = [f"--gguf={tmp_path}/model.gguf", f"--output={tmp_path}/out"]
  assert convert.main(["specjax-convert", *call]) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert line == (
    f"specjax-convert: error: {tmp_path}/model.gguf: blk.1.ffn_up.weight: the "
    f"type {kind.name} is not supported; only F32, F16, BF16, Q8_0, Q4_0, "
    "Q4_1, Q4_K, Q6_K are"
  )
  assert not (tmp_path / "out").exists()


def test_large_tensors_are_read_in_pieces(tmp_path, monkeypatch):
  monkeypatch.setattr(gguf_file, "_PIECE", 3 * D)
  test_the_command_writes_what_the_packed_weights_mean(tmp_path, "Q6_K")
