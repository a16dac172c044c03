"""Saving a loaded model, by Pretrained.save and by specjax-convert --model."""

import shutil
from unittest import mock

import ml_dtypes
import numpy as np
import orbax.checkpoint as orbax_checkpoint
import pytest
from safetensors import numpy as safetensors

import specjax
from specjax.checkpoints import hf
from specjax.cli import convert
from tests import api_test
from tests.text import tokenizers_made


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  folder = api_test.checkpoint(
    tmp_path_factory.mktemp("source") / "model",
    tokenizers_made.byte_level(),
    api_test.VOCAB,
  )
  (folder / "generation_config.json").write_text('{"eos_token_id": [0]}')
  (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
  (folder / "README.md").write_text("not a part of the model")
  return folder


def equal(one, other):
  for a, b in zip(one.params, other.params, strict=True):
    assert a.dtype == b.dtype
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
  assert one.model.config == other.model.config
  assert one.tokenizer.fingerprint() == other.tokenizer.fingerprint()
  assert one.tokenizer.eos_ids == other.tokenizer.eos_ids
  assert one.tokenizer.chat_template == other.tokenizer.chat_template


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("limit", [5_000_000_000, 4000])
def test_a_saved_model_loads_again_bit_equal(
  tmp_path, source, scan_layers, dtype, limit
):
  how = dict(dtype=dtype, scan_layers=scan_layers)
  model = specjax.load(source, **how)
  model.save(tmp_path / "new", max_shard_bytes=limit)
  sharded = (tmp_path / "new" / "model.safetensors.index.json").exists()
  assert sharded == (limit == 4000)
  equal(model, specjax.load(tmp_path / "new", **how))
  assert not (tmp_path / "new" / "README.md").exists()
  assert hf.read_config(tmp_path / "new")["torch_dtype"] == dtype


def test_a_model_may_be_saved_in_another_dtype(tmp_path, source):
  model = specjax.load(source)
  model.save(tmp_path / "new", dtype="bfloat16")
  read = safetensors.load_file(tmp_path / "new" / "model.safetensors")
  assert {v.dtype for v in read.values()} == {np.dtype(ml_dtypes.bfloat16)}
  equal(
    specjax.load(source, dtype="bfloat16"),
    specjax.load(tmp_path / "new", dtype="bfloat16"),
  )
  with pytest.raises(ValueError, match="dtype is 'int8'; give one of"):
    model.save(tmp_path / "other", dtype="int8")
  assert not (tmp_path / "other").exists()


def test_nothing_is_overwritten_unless_asked_and_nothing_loaded_for_it(
  tmp_path, source
):
  (tmp_path / "mine").write_text("mine")
  model = specjax.load(source)
  with pytest.raises(FileExistsError, match="not empty"):
    model.save(tmp_path)
  assert "params" not in vars(model)
  assert [path.name for path in tmp_path.iterdir()] == ["mine"]
  model.save(tmp_path, overwrite=True)
  assert (tmp_path / "mine").read_text() == "mine"
  equal(model, specjax.load(tmp_path))


def test_a_model_may_be_saved_over_itself(tmp_path, source):
  specjax.load(source).save(tmp_path / "new")
  model = specjax.load(tmp_path / "new")
  model.save(tmp_path / "new", overwrite=True)
  equal(specjax.load(source), specjax.load(tmp_path / "new"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_command_copies_a_folder_in_another_dtype(
  tmp_path, capsys, source, dtype
):
  out = tmp_path / "new"
  flags = [f"--model={source}", f"--output={out}", f"--dtype={dtype}"]
  assert convert.main(["specjax-convert", *flags]) == 0
  assert capsys.readouterr().out == f"wrote {out} ({dtype})\n"
  old = safetensors.load_file(source / "model.safetensors")
  new = safetensors.load_file(out / "model.safetensors")
  assert old.keys() == new.keys()
  for name, value in old.items():
    expected = value.astype(np.dtype(dtype))
    assert new[name].dtype == expected.dtype
    assert new[name].tobytes() == expected.tobytes()
  same = dict(dtype="bfloat16" if dtype == "bfloat16" else "float32")
  if dtype != "float16":
    equal(specjax.load(source, **same), specjax.load(out, **same))
  # Also over a folder that is there, itself included.
  assert convert.main(["specjax-convert", *flags]) == 1
  assert "--overwrite" in capsys.readouterr().err
  flags = [f"--model={out}", f"--output={out}", f"--dtype={dtype}"]
  assert convert.main(["specjax-convert", *flags, "--overwrite"]) == 0
  again = safetensors.load_file(out / "model.safetensors")
  assert all(v.tobytes() == new[n].tobytes() for n, v in again.items())


def test_the_command_copies_nothing_that_is_no_model(tmp_path, capsys, source):
  bad = tmp_path / "bad"
  specjax.load(source).save(bad)
  read = safetensors.load_file(bad / "model.safetensors")
  del read["model.norm.weight"]
  safetensors.save_file(read, bad / "model.safetensors")
  flags = [f"--model={bad}", f"--output={tmp_path / 'out'}"]
  assert convert.main(["specjax-convert", *flags]) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert "1 missing: model.norm.weight" in line
  assert not (tmp_path / "out").exists()


# Orbax


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_an_orbax_folder_is_a_model_like_any_other(
  tmp_path, source, scan_layers, dtype
):
  model = specjax.load(source, scan_layers=scan_layers)
  model.save(tmp_path / "new", format="orbax", dtype=dtype)
  assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "orbax",
    "tokenizer.json",
    "tokenizer_config.json",
  ]
  dtype = dtype or "float32"
  assert hf.read_config(tmp_path / "new")["torch_dtype"] == dtype
  how = dict(dtype=dtype, scan_layers=not scan_layers)
  equal(specjax.load(source, **how), specjax.load(tmp_path / "new", **how))


def test_formats_are_turned_into_each_other_by_the_command(
  tmp_path, capsys, source
):
  there, back = tmp_path / "orbax", tmp_path / "back"
  flags = [f"--model={source}", f"--output={there}", "--format=orbax"]
  assert convert.main(["specjax-convert", *flags]) == 0
  out, err = capsys.readouterr()
  assert out == f"wrote {there} (float32)\n"
  equal(specjax.load(source), specjax.load(there))
  # Over a folder that is there, itself included; then back.
  assert convert.main(["specjax-convert", *flags]) == 1
  assert "--overwrite" in capsys.readouterr().err
  flags = [f"--model={there}", f"--output={there}", "--format=orbax"]
  assert convert.main(["specjax-convert", *flags, "--overwrite"]) == 0
  for folder in (back, there):
    flags = [f"--model={there}", f"--output={folder}", "--overwrite"]
    assert convert.main(["specjax-convert", *flags]) == 0
    assert not (folder / "orbax").exists()
    equal(specjax.load(source), specjax.load(folder))


def test_a_folder_with_both_forms_is_refused(tmp_path, source):
  specjax.load(source).save(tmp_path / "both", format="orbax")
  shutil.copy(source / "model.safetensors", tmp_path / "both")
  with pytest.raises(ValueError, match="both orbax/ and model.safetensors"):
    _ = specjax.load(tmp_path / "both").params


def test_an_orbax_save_that_fails_keeps_the_model_that_was_there(
  tmp_path, source, monkeypatch
):
  specjax.load(source).save(tmp_path / "old")
  before = sorted((tmp_path / "old").iterdir())
  model = specjax.load(source)
  fail = mock.Mock(side_effect=OSError("disk full"))
  monkeypatch.setattr(orbax_checkpoint.Checkpointer, "save", fail)
  with pytest.raises(OSError, match="disk full"):
    model.save(tmp_path / "old", format="orbax", overwrite=True)
  with pytest.raises(OSError, match="disk full"):
    model.save(tmp_path / "new", format="orbax")
  assert sorted((tmp_path / "old").iterdir()) == before
  assert not (tmp_path / "new").exists()
  equal(model, specjax.load(tmp_path / "old"))


@pytest.mark.parametrize(
  "settings, message",
  [
    (dict(format="zip"), "format is 'zip'; give one of safetensors, orbax"),
    (dict(format="orbax", dtype="float16"), "no model runs in"),
    (dict(format="orbax", max_shard_bytes=9), "max_shard_bytes is 9, but"),
  ],
)
def test_what_orbax_cannot_do_is_refused(tmp_path, source, settings, message):
  with pytest.raises(ValueError, match=message):
    specjax.load(source).save(tmp_path / "new", **settings)
  assert not (tmp_path / "new").exists()
