"""What drafts for a target, opened and refused (RULES 26, 28)."""

import dataclasses

import fsspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import specjax
from specjax import api, shipped
from specjax.checkpoints import heads, hf
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.models.heads import eagle, mtp
from specjax.proposers.mtp import Mtp
from tests import api_test, heads_made
from tests.text import tokenizers_made


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  root = tmp_path_factory.mktemp("heads")
  one = tokenizers_made.byte_level
  return {
    "target": api_test.checkpoint(root / "target", one(), api_test.VOCAB),
    # Whoever reads its weights raises.
    "bare": api_test.checkpoint(
      root / "bare", one(), api_test.VOCAB, weights=False
    ),
    "wide": api_test.checkpoint(root / "wide", one(), api_test.DRAFT_VOCAB),
  }


@pytest.fixture(scope="module")
def target(folders):
  return specjax.load(folders["target"])


@pytest.mark.parametrize("kind", heads.KINDS)
def test_a_folder_says_which_proposer_drafts_with_it(target, tmp_path, kind):
  heads_made.save(tmp_path, target, kind, reduced=True)
  head = specjax.load_head(tmp_path, target)
  assert (head.kind, head.name) == (kind, str(tmp_path))
  shapes = [value.shape for value in head.params]
  assert shapes == [spec.shape for spec in head.model.shapes]
  assert head.loaded_bytes == sum(value.nbytes for value in head.params)
  with pytest.raises(ValueError, match=f"give proposer '{kind}'"):
    other = "eagle" if kind == "medusa" else "medusa"
    specjax.load_head(tmp_path, target, kind=other)
  with pytest.raises(ValueError, match="drafts for a target and is no model"):
    specjax.load(tmp_path)


@pytest.mark.parametrize("kind", heads.KINDS)
def test_rule_26_what_was_made_for_another_target_is_refused_by_both_names(
  folders, target, tmp_path, kind
):
  """Before any weights are read: this target has none."""
  bare = specjax.load(folders["bare"])
  heads_made.save(tmp_path, target, kind, tokenizer="another")
  for other, words in (
    (bare, "a target with tokenizer 'another'"),
    (specjax.load(folders["wide"]), "a target with vocab_size 264"),
  ):
    with pytest.raises(ValueError, match=words) as caught:
      specjax.load_head(tmp_path, other)
    assert str(tmp_path) in str(caught.value)
    assert other.name in str(caught.value)


def test_rule_28_an_engine_refuses_what_its_proposer_does_not_draft_with(
  folders, target, tmp_path
):
  head = specjax.load_head(heads_made.save(tmp_path, target, "eagle"), target)
  same = specjax.load(folders["target"])
  for asked, words in (
    (dict(proposer="eagle"), "proposer 'eagle' needs a draft: an EAGLE head"),
    (dict(proposer="medusa", draft=head), "give proposer 'eagle', which"),
    (dict(proposer="ngram", draft=head), "'ngram' takes no draft; give prop"),
    (dict(proposer="eagle", draft=target), "a whole model, for 'draft_model'"),
    (dict(proposer="mtp"), "carries no modules of multi-token prediction"),
    (dict(proposer="layer_skip"), "'layer_skip' needs draft_layers: how many"),
    (dict(proposer="ngram", draft_layers=1), "'ngram' takes no draft_layers"),
    (
      dict(proposer="eagle", draft=head, draft_weights="int4"),
      "draft_weights is 'int4'; give int8, or leave it out",
    ),
    (
      dict(proposer="ngram", draft_weights="int8"),
      "proposer 'ngram' has no weights of its own; leave it out",
    ),
    (
      dict(proposer="layer_skip", draft_layers=1),
      "draft_layers: all 1 layers of the target would draft",
    ),
    (dict(proposer="beagle"), "proposer is 'beagle'; give one of none, ngram"),
    (dict(proposer="eagle", draft="folder"), "or specjax.load_head"),
  ):
    with pytest.raises(ValueError, match=words):
      specjax.Engine(target, **asked)
  with pytest.raises(ValueError, match="was opened for the target"):
    specjax.Engine(same, proposer="eagle", draft=head)


@pytest.fixture(scope="module")
def mimo(tmp_path_factory):
  """A whole model that carries a module of multi-token prediction."""
  root = tmp_path_factory.mktemp("mimo")
  config = dict(
    architectures=["MiMoForCausalLM"],
    vocab_size=api_test.VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=api_test.CONTEXT,
    num_nextn_predict_layers=1,
  )
  model = decoder.build(config_lib.from_hugging_face(config))
  hf.save_params(root / "base", model, model.init(0), config=config)
  layer = dataclasses.replace(
    eagle.small(model.config, fuses=False).layer, qkv_bias=True
  )
  within = mtp.MtpConfig(layer=layer, depths=1, features=(1,))
  head = mtp.build(within, model)
  how = dict(target=model.config)
  heads.save_head(root / "own", "mtp", head, head.head.init(1), **how)
  files = [root / name / "model.safetensors" for name in ("base", "own")]
  save_file(load_file(files[0]) | load_file(files[1]), files[0])
  return tokenizers_made.folder(root / "base", tokenizers_made.byte_level())


def test_a_target_that_carries_modules_drafts_with_them(mimo, tmp_path):
  target = specjax.load(mimo)
  engine = specjax.Engine(target, proposer="mtp", **api_test.SETTINGS)
  assert isinstance(engine.loop.proposer, Mtp)
  size = sum(value.nbytes for value in engine.loop.params.proposer)
  assert engine.memory.draft_weights == size > 0
  again = specjax.load_head(mimo, target, kind="mtp")
  for one, other in zip(again.params, engine.loop.params.proposer, strict=True):
    np.testing.assert_array_equal(one, other)
  # Saved, it is a model without them, and says so.
  target.save(tmp_path / "saved")
  with pytest.raises(ValueError, match="num_nextn_predict_layers is 0"):
    specjax.Engine(specjax.load(tmp_path / "saved"), proposer="mtp")


def test_modules_behind_a_url_are_where_their_target_is(
  mimo, tmp_path, monkeypatch
):
  """On a mesh both are read by ranges, and nothing is fetched twice."""
  monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
  system = fsspec.filesystem("memory")
  for path in mimo.iterdir():
    system.pipe(f"/bucket/mimo/{path.name}", path.read_bytes())
  target = specjax.load("memory://bucket/mimo", mesh="model:1")
  head = specjax.load_head("memory://bucket/mimo", target, kind="mtp")
  assert head.folder == target.folder and head.opened.url == target.url
  assert not list(tmp_path.rglob("*.safetensors"))
  local = specjax.load_head(mimo, specjax.load(mimo), kind="mtp")
  for one, other in zip(head.params, local.params, strict=True):
    np.testing.assert_array_equal(one, other)


def test_a_whole_model_is_not_opened_as_a_head(target, folders):
  with pytest.raises(ValueError, match="does not say which proposer|whole mod"):
    specjax.load_head(folders["wide"], target)


def test_whatever_drafts_is_opened_by_its_kind(target, folders, tmp_path):
  whole = api.load_draft("draft_model", folders["target"], target)
  assert isinstance(whole, specjax.Pretrained)
  heads_made.save(tmp_path, target, "draft_model", reduced=True)
  thin_one = api.load_draft("draft_model", tmp_path, target, dtype="float32")
  assert isinstance(thin_one, specjax.Head)
  assert thin_one.model.is_reduced


def test_what_comes_with_specjax_is_found_by_its_name(
  target, tmp_path, monkeypatch
):
  monkeypatch.setattr(shipped, "_ROOT", tmp_path)
  heads_made.save(tmp_path / "tiny-eagle", target, "eagle")
  assert shipped.names() == ("tiny-eagle",)
  assert specjax.load_head("tiny-eagle", target).kind == "eagle"
  with pytest.raises(FileNotFoundError, match="nor one of tiny-eagle"):
    specjax.load_head("tiny-beagle", target)


def test_a_head_follows_its_target_into_another_dtype(target, tmp_path):
  """As the memory estimate looks for what would fit."""
  head = specjax.load_head(heads_made.save(tmp_path, target, "eagle"), target)
  half = head.of(target.retyped("bfloat16"))
  assert half.model.dtype == "bfloat16" and head.of(target) is head


def test_rule_29_rounded_weights_are_counted_beside_those_as_they_are(target):
  """Also of a target that drafts for itself, whose own are counted once."""
  how = dict(proposer="draft_model", draft=target, capacity=32)
  whole = specjax.Engine(target, **how).memory
  rounded = specjax.Engine(target, **how, draft_weights="int8").memory
  assert whole.draft_weights == 0
  least = sum(np.prod(spec.shape) for spec in target.model.shapes)
  assert rounded.draft_weights > least
