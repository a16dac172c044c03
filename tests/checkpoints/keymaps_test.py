import jax.numpy as jnp
import pytest

from specjax.checkpoints import keymaps
from specjax.models import config as config_lib
from specjax.models import decoder

CONFIG = config_lib.DecoderConfig(
  vocab_size=97,
  d_model=24,
  layers=3,
  heads=4,
  kv_heads=2,
  head_dim=8,
  d_ff=40,
  rope_theta=10000.0,
  rope_scaling=None,
  norm_eps=1e-5,
  tied=False,
  max_position=64,
)


def sources(*, scan_layers: bool):
  model = decoder.build(CONFIG, dtype=jnp.float32, scan_layers=scan_layers)
  return keymaps.sources(model.paths, [shape.shape for shape in model.shapes])


@pytest.mark.parametrize("scan_layers", [False, True])
def test_every_parameter_of_the_decoder_has_its_own_tensors(scan_layers):
  names = [n for s in sources(scan_layers=scan_layers) for n in s.names]
  assert len(names) == len(set(names)) == 3 + 9 * CONFIG.layers


def test_scanned_and_unrolled_layers_come_from_the_same_tensors():
  unrolled, scanned = (
    {n: s.file_shape for s in sources(scan_layers=scan) for n in s.names}
    for scan in (False, True)
  )
  assert unrolled == scanned


def test_a_stack_has_its_layers_in_order():
  stacks = {s.path: s for s in sources(scan_layers=True) if s.stacked}
  assert stacks["layers.mlp.up.weight"].names == tuple(
    f"model.layers.{i}.mlp.up_proj.weight" for i in range(CONFIG.layers)
  )


@pytest.mark.parametrize(
  "path, name, shape, file_shape",
  [
    (
      "layers.2.attention.k.weight",
      "model.layers.2.self_attn.k_proj.weight",
      (2, 8, 24),
      (16, 24),
    ),
    (
      "layers.0.attention.o.weight",
      "model.layers.0.self_attn.o_proj.weight",
      (24, 4, 8),
      (24, 32),
    ),
    ("head.weight", "lm_head.weight", (97, 24), (97, 24)),
  ],
)
def test_heads_are_folded_in_the_file(path, name, shape, file_shape):
  (source,) = keymaps.sources([path], [shape])
  assert source.names == (name,)
  assert source.file_shape == file_shape


def test_a_parameter_without_a_row_is_named():
  with pytest.raises(KeyError, match="layers.0.attention.q.scale"):
    keymaps.sources(["layers.0.attention.q.scale"], [(4, 8)])
