"""GGUF files that are damaged, or say what cannot be."""

import shutil

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from specjax.checkpoints import gguf_file
from specjax.cli import convert
from tests.checkpoints import gguf_files
from tests.fuzz import fuzzing


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A folder with a good file and an output that holds another model."""
  root = tmp_path_factory.mktemp("gguf")
  gguf_files.write(root / "good.gguf")
  return root


def check(root, path, *changed_words):
  """Converts over an old folder: it is replaced as a whole or not at all."""
  out = root / "out"
  shutil.rmtree(out, ignore_errors=True)
  out.mkdir()
  for name in ("config.json", "model.safetensors", "chat_template.jinja"):
    (out / name).write_text("old")
  before = fuzzing.content(out)
  code, error = fuzzing.answer(
    convert.main,
    convert.PROGRAM,
    f"--gguf={path}",
    f"--output={out}",
    "--overwrite",
  )
  if code:
    assert str(path) in error
    assert not changed_words or any(word in error for word in changed_words), (
      changed_words,
      error,
    )
    assert fuzzing.content(out) == before
    assert sorted(p.name for p in out.iterdir()) == sorted(before)
  else:
    assert (out / "config.json").read_text() != "old"
    assert not (out / "chat_template.jinja").exists()


def header_size(path):
  return min(t.start for t in gguf_file.read(path).tensors.values())


@fuzzing.settings(250)
@hypothesis.given(data=st.data())
def test_damaged_files(place, data):
  good = place / "good.gguf"
  spoiled = data.draw(fuzzing.damaged(good.read_bytes(), header_size(good)))
  path = place / "bad.gguf"
  path.write_bytes(spoiled)
  check(place, path)


def test_files_cut_at_every_length(place):
  good = (place / "good.gguf").read_bytes()
  header = header_size(place / "good.gguf")
  path = place / "cut.gguf"
  lengths = [*range(0, 64), *range(64, header, 97)]
  lengths += [header, header + 1, len(good) - 1, len(good) // 2]
  for length in lengths:
    path.write_bytes(good[:length])
    code, error = fuzzing.answer(
      convert.main,
      convert.PROGRAM,
      f"--gguf={path}",
      f"--output={place / 'none'}",
    )
    assert code == 1 and str(path) in error, (length, error)
    assert not (place / "none").exists()


KEYS = [key for key in gguf_files.METADATA if key != "general.architecture"]
KEYS += ["llama.vocab_size", "llama.attention.key_length", "split.count"]
KEYS += ["tokenizer.ggml.add_eos_token", "general.alignment"]
VALUES = st.one_of(
  st.booleans(),
  st.integers(0, 2**32 - 1),
  st.integers(0, 40),
  st.floats(width=32),
  st.text(st.characters(codec="utf-8"), max_size=6),
  st.lists(st.integers(0, 300), min_size=1, max_size=4),
  st.lists(
    st.text(st.characters(codec="utf-8"), max_size=4), min_size=1, max_size=4
  ),
)


@fuzzing.settings(150)
@hypothesis.given(
  changed=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2),
  dropped=st.lists(st.sampled_from(KEYS), max_size=2),
)
def test_keys_of_any_value(place, changed, dropped):
  path = place / "keys.gguf"
  metadata = {key: value for key, value in changed.items()}
  gguf_files.write(path, metadata=metadata, drop=tuple(dropped))
  check(place, path)


@fuzzing.settings(60)
@hypothesis.given(
  name=st.sampled_from(sorted(gguf_files.weights())),
  shape=st.one_of(
    st.none(), st.lists(st.integers(1, 40), min_size=1, max_size=4)
  ),
  kind=st.sampled_from([np.float32, np.float16, np.int8, np.int32, np.float64]),
)
def test_tensors_of_any_shape_and_type(place, name, shape, kind):
  tensors = gguf_files.weights()
  if shape is None:
    del tensors[name]
  else:
    tensors[name] = np.ones(shape, kind)
  path = place / "tensors.gguf"
  try:
    gguf_files.write(path, tensors=tensors)
  except (ValueError, IndexError):  # the writer itself cannot permute it
    hypothesis.reject()
  # Too few rows in the embedding are blamed on the tokenizer.
  names = (gguf_files.gguf_name(name), name, "tokenizer.ggml.tokens")
  check(place, path, *names)
