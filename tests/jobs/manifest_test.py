"""A digest of a model: other weights are another job."""

import pytest

from specjax.checkpoints import folders
from specjax.jobs import manifest


@pytest.fixture
def model(tmp_path):
  for name in ("config.json", "model.safetensors", "orbax/d/0.bin", "note.md"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
  return tmp_path


@pytest.mark.parametrize(
  "name", ["config.json", "model.safetensors", "orbax/d/0.bin"]
)
def test_another_file_of_the_model_is_another_digest(model, name):
  before = manifest.digest_of_folder(model)
  assert manifest.digest_of_folder(model) == before
  (model / name).write_text(name.upper())
  assert manifest.digest_of_folder(model) != before


def test_what_is_no_part_of_the_model_changes_nothing(model):
  before = manifest.digest_of_folder(model)
  (model / "note.md").write_text("another")
  assert manifest.digest_of_folder(model) == before


def test_of_a_model_behind_a_url_its_listing_counts(model):
  assert manifest.LISTING == folders.LISTING
  (model / manifest.LISTING).write_text("[]")
  before = manifest.digest_of_folder(model)
  (model / "model.safetensors").unlink()  # It may not have been fetched.
  assert manifest.digest_of_folder(model) == before
  (model / manifest.LISTING).write_text("[1]")
  assert manifest.digest_of_folder(model) != before
