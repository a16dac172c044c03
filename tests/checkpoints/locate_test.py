import importlib.util
import json
from unittest import mock

import fsspec
import huggingface_hub
import pytest
from huggingface_hub import errors

from specjax.checkpoints import folders, locate


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path / "cache"))
  return tmp_path / "cache"


@pytest.fixture
def hub(monkeypatch):
  """Stands in for the hub: what snapshot_download returns or raises."""
  download = mock.Mock()
  monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
  return download


# Folders


def test_a_folder_is_itself(tmp_path, monkeypatch, hub):
  folder = tmp_path / "org" / "model"
  folder.mkdir(parents=True)
  assert locate.resolve(folder) == folder
  # Also where its name could be a hub id.
  monkeypatch.chdir(tmp_path)
  assert locate.resolve("org/model").resolve() == folder.resolve()
  hub.assert_not_called()


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  (tmp_path / "model").mkdir()
  assert locate.resolve("~/model") == tmp_path / "model"


@pytest.mark.parametrize("name", ["nowhere", "./a/b", "/a/b", "a/b/c", ""])
def test_what_is_no_folder_and_no_hub_id_is_named(
  tmp_path, monkeypatch, hub, name
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(FileNotFoundError, match=f"'{name}': no such folder"):
    locate.resolve(name)
  hub.assert_not_called()


def test_what_would_be_fetched_is_not_looked_for_here(tmp_path, hub):
  assert locate.find_here("org/model") is None
  assert locate.find_here("gs://bucket/model") is None
  assert locate.find_here(tmp_path) == tmp_path
  hub.assert_not_called()


def test_a_file_is_no_model_folder(tmp_path):
  path = tmp_path / "model.gguf"
  path.touch()
  with pytest.raises(ValueError, match="is a file; .*specjax-convert"):
    locate.resolve(path)


# The hub


def test_a_hub_id_is_downloaded_without_what_we_cannot_read(tmp_path, hub):
  hub.return_value = str(tmp_path / "snapshot")
  assert locate.resolve("org/model-1.5_b") == tmp_path / "snapshot"
  (name,), options = hub.call_args
  assert name == "org/model-1.5_b"
  assert "*.safetensors" in options["allow_patterns"]
  assert not any("bin" in pattern for pattern in options["allow_patterns"])


def http(kind, message="Refused\nmany\nlines"):
  return kind(message, response=mock.Mock(headers={}))


@pytest.mark.parametrize(
  "error, kind, message",
  [
    (
      errors.LocalEntryNotFoundError("No\nconnection"),
      ConnectionError,
      "cannot be reached .offline.*local model folder",
    ),
    (ConnectionError("no"), ConnectionError, "cannot be reached"),
    (
      http(errors.RepositoryNotFoundError),
      FileNotFoundError,
      "no such model on the hub.*HF_TOKEN",
    ),
    (http(errors.GatedRepoError), FileNotFoundError, "accept its.*HF_TOKEN"),
    (http(errors.HfHubHTTPError), ConnectionError, "refused it .Refused"),
  ],
)
def test_the_hubs_errors_become_one_line(hub, error, kind, message):
  hub.side_effect = error
  with pytest.raises(kind, match=message) as raised:
    locate.resolve("org/model")
  assert str(raised.value).startswith("model 'org/model'")
  assert "\n" not in str(raised.value)


# URLs


@pytest.fixture
def bucket():
  """A bucket in memory, with a model and files that do not belong to it."""
  system = fsspec.filesystem("memory")
  for name in ("config.json", "model.safetensors", "x.bin", "sub/a.json"):
    system.pipe(f"/bucket/model/{name}", name.encode())
  yield system
  system.rm("/bucket", recursive=True)


URL = "memory://bucket/model"


def test_a_url_is_copied_into_the_cache_once(bucket, cache, monkeypatch):
  folder = locate.resolve(URL)
  assert folder.parent == cache
  listing = json.loads((folder / folders.LISTING).read_text())
  assert [entry[0] for entry in listing] == [
    "/bucket/model/config.json",
    "/bucket/model/model.safetensors",
  ]
  (folder / folders.LISTING).unlink()
  assert {p.name: p.read_text() for p in folder.iterdir()} == {
    "config.json": "config.json",
    "model.safetensors": "model.safetensors",
  }
  monkeypatch.setattr(type(bucket), "get_file", mock.Mock(side_effect=OSError))
  assert locate.resolve(URL) == folder


@pytest.mark.parametrize("name", ["model.safetensors", "orbax/d/0"])
def test_a_url_says_what_lies_there_whether_all_is_fetched_or_not(bucket, name):
  bucket.pipe("/bucket/model/orbax/d/0", b"weights")

  def listings():
    return [
      (locate.find(URL, ranged=ranged).folder / folders.LISTING).read_text()
      for ranged in (False, True)
    ]

  before = listings()
  assert before[0] == before[1] and "orbax/d/0" in before[0]
  bucket.pipe(f"/bucket/model/{name}", b"others, after more training")
  after = listings()
  assert after[0] == after[1] != before[0]


def test_a_changed_model_is_fetched_again(bucket):
  old = locate.resolve(URL)
  bucket.pipe("/bucket/model/config.json", b"another")
  new = locate.resolve(URL)
  assert new != old
  assert (new / "config.json").read_text() == "another"


def test_a_broken_download_leaves_nothing_behind(bucket, cache, monkeypatch):
  fail = mock.Mock(side_effect=OSError("reset\nby peer"))
  monkeypatch.setattr(type(bucket), "get_file", fail)
  with pytest.raises(ConnectionError, match="fetching failed .reset.$"):
    locate.resolve(URL)
  assert list(cache.iterdir()) == []


def test_a_url_without_a_model_is_named(bucket):
  with pytest.raises(FileNotFoundError, match="nowhere': no such folder"):
    locate.resolve("memory://bucket/nowhere")
  bucket.pipe("/bucket/other/x.bin", b"")
  with pytest.raises(FileNotFoundError, match="no model files"):
    locate.resolve("memory://bucket/other")


def test_an_unknown_kind_of_url_is_named():
  with pytest.raises(ValueError, match="model 'odd://a/b'.*odd"):
    locate.resolve("odd://a/b")


@pytest.mark.skipif(
  importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is installed"
)
def test_a_missing_package_for_gs_is_named():
  with pytest.raises(ImportError, match="pip install gcsfs"):
    locate.resolve("gs://bucket/model")
