"""The account against hand counts, on programs small enough to count."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from specjax.cache import KVCache
from specjax.lab import account, kernels, program, topology
from specjax.models import attend, tpu_attention

MB = 1e6
BF16 = 2

if not topology.is_installed():
  pytest.skip(
    "the TPU compiler is not installed: pip install 'specjax[lab]'",
    allow_module_level=True,
  )


def mesh_of(name="v5e:2x2"):
  devices = topology.devices(topology.parse(name))
  return jax.sharding.Mesh(devices, ("model",))


def counted(run, shapes, specs, trips=None, mesh=None, shares=None, **how):
  """The account of a function whose arguments are called a, b, …"""
  mesh = mesh or mesh_of()
  placed = [NamedSharding(mesh, spec) for spec in specs]
  with topology.uncached():
    compiled = jax.jit(run, in_shardings=placed).lower(*shapes).compile()
  parsed = program.parse(compiled.as_text())
  total = account.account(
    parsed,
    parts=lambda name: name.partition("[")[0],
    trips=lambda scopes: (trips or {}).get(scopes[-1]),
    shares=lambda scopes: shares if "choice" in scopes else None,
    **how,
  )
  return total


def shape(*dims, dtype=jnp.bfloat16):
  return jax.ShapeDtypeStruct(dims, dtype)


def product(x, w):
  out = jnp.einsum("td,fd->tf", x, w, preferred_element_type=jnp.float32)
  return out.astype(x.dtype)


LAYERS, ROWS, WIDTH = 16, 8, 2048


def test_a_scan_of_products_reads_every_weight_once():
  def run(x, weights):
    return lax.scan(lambda x, w: (product(x, w), None), x, weights)[0]

  shapes = (shape(ROWS, WIDTH), shape(LAYERS, WIDTH, WIDTH))
  total = counted(run, shapes, (P(), P()))
  weights = LAYERS * WIDTH * WIDTH * BF16
  ends = 2 * ROWS * WIDTH * BF16  # what comes in and what goes out
  assert total.traffic["weights"] == pytest.approx(weights, rel=0.02)
  assert total.traffic_bytes == pytest.approx(weights + ends, rel=0.02)
  assert total.flops == pytest.approx(2 * LAYERS * ROWS * WIDTH**2, rel=0.02)
  assert not total.collectives


def test_a_product_of_one_row_counts_too():
  """On TPU it is a sum of products, and no convolution."""
  total = counted(product, (shape(1, WIDTH), shape(WIDTH, WIDTH)), (P(), P()))
  assert total.flops == pytest.approx(2 * WIDTH**2, rel=0.02)


BLOCK, BLOCKS = 128, 64


def walk(q, cache, live):
  """Reads the first `live` blocks of a cache."""

  def body(carry):
    index, total = carry
    block = lax.dynamic_slice_in_dim(cache, index * BLOCK, BLOCK)
    return index + 1, total + product(q, block)

  with jax.named_scope("attention_blocks"):
    start = (jnp.int32(0), jnp.zeros((ROWS, BLOCK), q.dtype))
    return lax.while_loop(lambda carry: carry[0] < live, body, start)[1]


WALK = (
  shape(ROWS, WIDTH),
  shape(BLOCKS * BLOCK, WIDTH),
  shape(dtype=jnp.int32),
)


@pytest.mark.parametrize("live", [10, 40])
def test_a_loop_reads_as_many_blocks_as_it_is_said_to_run(live):
  total = counted(walk, WALK, (P(),) * 3, {"attention_blocks": live})
  cache = live * BLOCK * WIDTH * BF16
  assert total.traffic["cache"] == pytest.approx(cache, rel=0.02)
  flops = live * 2 * ROWS * BLOCK * WIDTH
  assert total.flops == pytest.approx(flops, rel=0.02)


def test_a_loop_that_nobody_knows_is_refused_by_name():
  with pytest.raises(ValueError, match="attention_blocks/while"):
    counted(walk, WALK, (P(),) * 3)


def choose(which, x, one, two):
  """Multiplies with one of two weights, or with both."""
  with jax.named_scope("choice"):
    return lax.switch(
      which,
      [
        lambda x: product(x, one),
        lambda x: product(x, one) + product(x, two),
      ],
      x,
    )


@pytest.mark.parametrize("shares", [None, (0.75, 0.25)])
def test_branches_count_as_often_as_they_are_said_to_run(shares):
  weights = shape(8 * WIDTH, 4 * WIDTH)  # no fast memory has room for it
  shapes = (shape(dtype=jnp.int32), shape(ROWS, 4 * WIDTH), weights, weights)
  total = counted(choose, shapes, (P(),) * 4, shares=shares)
  size = 8 * WIDTH * 4 * WIDTH * BF16
  # Unless they are told, it is the dearest one that runs.
  assert total.traffic["one"] == pytest.approx(size, rel=0.02)
  part = 1 if shares is None else shares[1]
  assert total.traffic["two"] == pytest.approx(part * size, rel=0.02)


def test_a_sharded_product_reads_its_part_and_adds_up_once():
  def run(x, up, down):
    return product(product(x, up), down)

  wide = 4 * WIDTH
  shapes = (shape(ROWS, WIDTH), shape(wide, WIDTH), shape(WIDTH, wide))
  total = counted(run, shapes, (P(), P("model"), P(None, "model")))
  part = wide * WIDTH * BF16 / 4
  assert total.traffic["up"] == pytest.approx(part, rel=0.02)
  assert total.traffic["down"] == pytest.approx(part, rel=0.02)
  ends = 2 * ROWS * WIDTH * BF16
  assert total.traffic_bytes == pytest.approx(2 * part + ends, rel=0.02)
  assert total.flops == pytest.approx(2 * 2 * ROWS * WIDTH * wide / 4, rel=0.02)
  ((key, (count, size)),) = total.collectives.items()
  assert key == ("all-reduce", False) and count == 1
  assert size in (ROWS * WIDTH * BF16, ROWS * WIDTH * 4)  # in either dtype


SIZE, KV_HEADS, ASKED = 128, 8, 5
HEADS = KV_HEADS // 4  # of a chip


@pytest.mark.parametrize("live", [1, 3])
def test_a_kernel_reads_what_it_is_said_to_take(live):
  """Live keys and values of one layer, and no scores: those stay inside."""
  stack = shape(4, ROWS, KV_HEADS, 4 * attend.TPU_BLOCK, SIZE)
  q = shape(ROWS, ASKED, KV_HEADS, SIZE)
  at = shape(ROWS, ASKED, dtype=jnp.int32)
  heads, caches = P(None, None, "model"), P(None, None, "model")

  def run(q, k, v, at):
    def local(q, k, v, at):
      cache = KVCache(k=k, v=v, length=at[:, 0])
      how = dict(scale=1.0, softcap=None)
      return tpu_attention.attend(q, cache, 1, at, at, jnp.int32(0), **how)

    return jax.shard_map(
      local, in_specs=(heads, caches, caches, P()), out_specs=heads,
      mesh=mesh, check_vma=False,
    )(q, k, v, at)  # fmt: skip

  def known(scopes, operands):
    assert tpu_attention.NAME in scopes
    return kernels.attention(operands, live)

  mesh = mesh_of("v5p:2x2x1")
  total = counted(
    run, (q, stack, stack, at), (heads, caches, caches, P()), mesh=mesh,
    kernels=known,
  )  # fmt: skip
  walked = ROWS * HEADS * live * attend.TPU_BLOCK * SIZE
  assert total.traffic["k"] == pytest.approx(walked * BF16, rel=1e-6)
  assert total.traffic["v"] == pytest.approx(walked * BF16, rel=1e-6)
  # Queries and results, some of them with 5 rounded up to 8, a few times.
  few = ROWS * HEADS * 8 * SIZE * BF16
  rest = total.traffic_bytes - 2 * walked * BF16
  assert few < rest < 6 * few
  assert total.flops == pytest.approx(2 * 2 * walked * ASKED, rel=1e-6)
