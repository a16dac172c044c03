import filecmp

import numpy as np
import pytest
import safetensors.numpy

import specjax
from specjax.checkpoints import random_folder
from specjax.models import decoder, presets


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("made") / "tiny"
  random_folder.write(path, "chinchilla_tiny")
  return path


def test_a_folder_opens_as_any_model(folder):
  made = specjax.load(folder)
  assert made.model.config == presets.get("chinchilla_tiny")
  assert len(made.params) == len(made.model.paths)
  assert made.tokenizer.vocab_size == made.model.vocab_size == 264
  assert made.tokenizer.eos_ids == (263,)


def test_every_byte_has_a_token_and_comes_back(folder):
  tokenizer = specjax.load(folder).tokenizer
  text = "the rain in Spain: 雨, ☂ and\ttabs\n"
  ids = tokenizer.encode(text)
  assert tokenizer.decode(ids) == text
  assert len(ids) < len(text.encode())  # Pairs are used.
  assert all(tokenizer.has_token(i) for i in range(264))


def test_target_and_draft_have_one_tokenizer(folder, tmp_path):
  random_folder.write(tmp_path / "draft", "chinchilla_tiny_draft")
  target, draft = specjax.load(folder), specjax.load(tmp_path / "draft")
  assert target.tokenizer.fingerprint() == draft.tokenizer.fingerprint()
  specjax.Engine(target, proposer="draft_model", draft=draft, capacity=64)


def test_the_seed_decides_the_weights(folder, tmp_path):
  for name, seed in (("same", 0), ("other", 1)):
    random_folder.write(tmp_path / name, "chinchilla_tiny", seed=seed)
  file = "model.safetensors"
  assert filecmp.cmp(folder / file, tmp_path / "same" / file, shallow=False)
  ours, theirs = (
    safetensors.numpy.load_file(path / file)
    for path in (folder, tmp_path / "other")
  )
  for name, value in ours.items():
    assert (value == theirs[name]).all() == name.endswith("norm.weight"), name


def test_weights_have_the_deviation_of_their_input(folder):
  values = safetensors.numpy.load_file(folder / "model.safetensors")
  for name, value in values.items():
    if not name.endswith("norm.weight"):
      wanted = value.shape[-1] ** -0.5
      np.testing.assert_allclose(value.std(), wanted, rtol=0.05, err_msg=name)


@pytest.mark.parametrize("name", ("llama3_1b", "gemma3_1b"))
def test_the_size_is_that_of_the_file(name):
  count = decoder.build(presets.get(name)).parameter_count
  assert random_folder.size(name, np.float32) == 4 * count
