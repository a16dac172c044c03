"""Parts of tensors, read without the rest; files behind URLs."""

import contextlib
from unittest import mock

import fsspec
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specjax
from specjax.checkpoints import (
  hf,
  keymaps,
  locate,
  ranges,
  regions,
  tensor_files,
)
from tests import api_test
from tests.checkpoints import hf_test
from tests.text import tokenizers_made


@st.composite
def parts(draw):
  shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
  ends = [
    sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape
  ]
  return tuple(shape), [slice(*pair) for pair in ends]


@settings(max_examples=200, deadline=None)
@given(parts())
def test_runs_are_where_numpy_has_the_part(part):
  shape, where = part
  whole = np.arange(np.prod(shape)).reshape(shape)
  starts, length = regions.runs(shape, where)
  found = [at + i for at in starts for i in range(length)]
  assert found == whole[tuple(where)].reshape(-1).tolist()


def test_whole_rows_are_one_run_and_columns_one_a_row():
  starts, length = regions.runs(
    (6, 4, 8), [slice(2, 5), slice(0, 4), slice(0, 8)]
  )
  assert (list(starts), length) == ([64], 96)
  starts, length = regions.runs((3, 8), [slice(0, 3), slice(2, 6)])
  assert (list(starts), length) == ([2, 10, 18], 4)


# Files behind URLs


@pytest.fixture
def bucket():
  """(a URL, the bytes that are asked of it)."""
  system = fsspec.filesystem("memory")
  asked = []
  cat_file = type(system).cat_file

  def counted(self, path, start=None, end=None, **kwargs):
    asked.append((start, end))
    return cat_file(self, path, start=start, end=end, **kwargs)

  with mock.patch.object(type(system), "cat_file", counted):
    yield system, asked
  with contextlib.suppress(FileNotFoundError):
    system.rm("/ranged", recursive=True)


URL = "memory://ranged/model"


def upload(system, folder):
  for path in folder.rglob("*"):
    if path.is_file():
      name = f"/ranged/model/{path.relative_to(folder).as_posix()}"
      system.pipe(name, path.read_bytes())


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shards", [False, True])
def test_a_url_is_read_like_a_folder(
  tmp_path, bucket, scan_layers, dtype, shards
):
  save = hf_test.save_sharded if shards else hf_test.save
  save(tmp_path, hf_test.tensors())
  upload(bucket[0], tmp_path)
  model = hf_test.build(scan_layers=scan_layers, dtype=dtype)
  whole = hf.load_params(tmp_path, model)
  for path in tmp_path.glob("*.safetensors"):
    path.unlink()
  traffic = ranges.Traffic()
  params = hf.load_params(tmp_path, model, url=URL, traffic=traffic)
  for a, b in zip(params, whole, strict=True):
    np.testing.assert_array_equal(a, b)
  assert traffic.nbytes == sum(v.nbytes for v in hf_test.tensors().values())


def column_part(folder, url=None):
  """Columns 8 … 12 of a tensor 64 by 32, and what was read for them."""
  traffic = ranges.Traffic()
  with contextlib.ExitStack() as stack:
    entries = tensor_files.open_folder(folder, stack, url=url, traffic=traffic)
    (source,) = keymaps.sources(["head.weight"], [(64, 32)])
    out = np.empty((64, 4), np.float32)
    where = (slice(0, 64), slice(8, 12))
    regions.read(entries["lm_head.weight"], source, where, out)
  return out, traffic.nbytes


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_columns_are_few_requests_to_a_url_and_exact_reads_on_disk(
  tmp_path, bucket, dtype
):
  system, asked = bucket
  value = np.arange(64 * 32).reshape(64, 32).astype(dtype)
  hf_test.save(tmp_path, {"lm_head.weight": value})
  upload(system, tmp_path)
  out, nbytes = column_part(tmp_path)
  np.testing.assert_array_equal(out, value[:, 8:12])
  assert nbytes == out.size * value.itemsize
  asked.clear()
  out, nbytes = column_part(tmp_path, URL)
  np.testing.assert_array_equal(out, value[:, 8:12])
  assert nbytes == (63 * 32 + 4) * value.itemsize
  assert len(asked) == 3  # the header's length, the header, the numbers


def test_long_ranges_are_asked_for_in_pieces(tmp_path, bucket, monkeypatch):
  monkeypatch.setattr(ranges, "_PIECE", 1000)
  monkeypatch.setattr(ranges, "_AT_ONCE", 3)
  system, asked = bucket
  content = np.random.default_rng(0).integers(0, 256, 10_500, np.uint8)
  system.pipe("/ranged/model/x", content.tobytes())
  buffer = np.empty(9000, np.uint8)
  file = ranges.Remote(f"{URL}/x")
  assert file.size == 10_500
  assert file.fill(buffer, 1234)
  np.testing.assert_array_equal(buffer, content[1234:10_234])
  assert {end - start for start, end in asked} == {1000}
  assert not file.fill(buffer, 5000)


def test_a_failing_url_is_named(tmp_path, bucket):
  system, _ = bucket
  hf_test.save(tmp_path, hf_test.tensors())
  with pytest.raises(FileNotFoundError, match="model.safetensors: no such"):
    hf.load_params(tmp_path, hf_test.build(), url=URL)
  upload(system, tmp_path)
  fail = mock.Mock(side_effect=OSError("reset\nby peer"))
  with mock.patch.object(type(system), "cat_file", fail):
    with pytest.raises(ConnectionError) as error:
      hf.load_params(tmp_path, hf_test.build(), url=URL)
  assert str(error.value) == f"{URL}/model.safetensors: fetching failed (reset)"


@pytest.fixture
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
  return tmp_path / "cache"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  return api_test.checkpoint(
    tmp_path_factory.mktemp("source") / "model",
    tokenizers_made.byte_level(),
    api_test.VOCAB,
  )


def test_with_a_mesh_the_weights_of_a_url_stay_there(bucket, cache, checkpoint):
  upload(bucket[0], checkpoint)
  here = specjax.load(checkpoint)
  there = specjax.load(URL, mesh="model:1")
  assert not list(cache.rglob("*.safetensors"))
  for a, b in zip(there.params, here.params, strict=True):
    np.testing.assert_array_equal(a, b)
  assert there.traffic.nbytes == sum(param.nbytes for param in here.params)
  # Without one they are copied, as they are if they are asked for again.
  copied = specjax.load(URL)
  assert len(list(cache.rglob("*.safetensors"))) == 1
  assert copied.url is None


def test_an_orbax_checkpoint_behind_a_url_stays_there(
  tmp_path, cache, checkpoint
):
  here = specjax.load(checkpoint)
  here.save(tmp_path / "orbax_model", format="orbax")
  url = f"file://{tmp_path}/orbax_model"
  found = locate.find(url)
  assert found.url == url
  there = specjax.load(url)
  for a, b in zip(there.params, here.params, strict=True):
    np.testing.assert_array_equal(a, b)
  assert not [p for p in cache.rglob("*") if "ocdbt" in p.name]


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path):
  folder = hf_test.save(tmp_path, hf_test.tensors())
  with contextlib.ExitStack() as stack:
    entries = hf.open_tensors(folder, hf_test.build(), stack)
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
      file.truncate(path.stat().st_size // 2)
    with pytest.raises(hf.CheckpointError, match="file ends within tensor"):
      for entry in entries:
        entry.read()
