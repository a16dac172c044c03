"""The ten-line path, on tiny checkpoints made here (RULES 26, 28)."""

import dataclasses
import re
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import pre_tokenizers

import specjax
from specjax import api
from specjax.checkpoints import folders as folders_lib
from specjax.checkpoints import hf
from specjax.engine.request import Completion
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.proposers.ngram import Ngram
from tests.text import tokenizers_made

# The tokenizer has 262 ids: both models pad it, each to its own size.
VOCAB, DRAFT_VOCAB = 264, 272
CONTEXT = 96
TEMPLATE = (
  "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
  "{% if add_generation_prompt %}assistant: {% endif %}"
)
SETTINGS = dict(prefill_widths=(16,), slots=2)
PROMPTS = ["the cat", "he", "a longer prompt than the others", "cat, cat, c"]


def checkpoint(path, backend, vocab, *, seed=0, weights=True):
  """A model folder; without weights, whoever loads them raises."""
  config = dict(
    architectures=["LlamaForCausalLM"],
    vocab_size=vocab,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=CONTEXT,
    tie_word_embeddings=False,
  )
  model = decoder.build(config_lib.from_hugging_face(config))
  if weights:
    params = model.init(seed)
    # Padding of the vocabulary is never said.
    head = model.paths.index("head.weight")
    params = (*params[:head], params[head].at[260:].set(0), *params[head + 1 :])
    hf.save_params(path, model, params, config=config)
  else:
    path.mkdir()
    folders_lib.write_json(path / "config.json", config)
  return tokenizers_made.folder(
    path,
    backend,
    tokenizer_config__json={
      "eos_token": tokenizers_made.EOS,
      "chat_template": TEMPLATE,
    },
  )


def other_tokenizer():
  backend = tokenizers_made.byte_level()
  backend.add_tokens(["cat"])
  return backend


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  root = tmp_path_factory.mktemp("checkpoints")
  same = tokenizers_made.byte_level
  return {
    "target": checkpoint(root / "target", same(), VOCAB),
    "draft": checkpoint(root / "draft", same(), DRAFT_VOCAB),
    "bare": checkpoint(root / "bare", same(), VOCAB, weights=False),
    "other": checkpoint(
      root / "other", other_tokenizer(), VOCAB, weights=False
    ),
  }


@pytest.fixture(scope="module")
def target(folders):
  return specjax.load(folders["target"])


@pytest.fixture(scope="module")
def draft(folders):
  return specjax.load(folders["draft"])


@pytest.fixture(scope="module")
def engine(target, draft):
  return specjax.Engine(
    target, proposer="draft_model", draft=draft, lookahead=3, **SETTINGS
  )


def test_rule_26_another_tokenizer_is_refused_before_weights_are_read(
  folders,
):
  """By both names; neither folder has any weights to read."""
  bare, other = specjax.load(folders["bare"]), specjax.load(folders["other"])
  with pytest.raises(ValueError, match="different tokenizers") as caught:
    specjax.Engine(bare, proposer="draft_model", draft=other)
  assert str(folders["bare"]) in str(caught.value)
  assert str(folders["other"]) in str(caught.value)
  # Whatever passes the check does read them.
  with pytest.raises(FileNotFoundError):
    specjax.Engine(bare, proposer="draft_model", draft=bare)


def test_rule_26_vocabularies_padded_to_different_sizes_work(engine):
  """The plain path of the same engine says the same."""
  assert engine.target.model.vocab_size == VOCAB
  drafting = engine.generate(PROMPTS, max_new_tokens=12)
  plain = engine.generate(PROMPTS, max_new_tokens=12, lookahead=0)
  assert [row.token_ids for row in drafting] == [row.token_ids for row in plain]
  assert all(row.drafted for row in drafting)
  assert not any(row.drafted for row in plain)


def test_siblings_change_no_answer_and_shorten_it(engine, target, draft):
  """Of two models with one tokenizer, the draft's vocabulary padded.

  With every id beside every draft, whatever the target says was guessed.
  """
  made = specjax.Engine(
    target,
    proposer="draft_model",
    draft=draft,
    lookahead=3,
    siblings=3 * VOCAB,
    **SETTINGS,
  )
  assert made.loop.proposer.siblings == 3 * VOCAB
  rows = [
    one.generate(PROMPTS, max_new_tokens=12, logprobs=0)
    for one in (engine, made)
  ]
  for plain, more in zip(*rows, strict=True):
    assert more.token_ids == plain.token_ids
    np.testing.assert_allclose(more.logprobs, plain.logprobs, atol=1e-5)
  assert all(row.steps <= 12 / 2 for row in rows[1])


@pytest.mark.parametrize(
  "options, message",
  (
    (dict(proposer="beagle"), "proposer is 'beagle'; give one of none"),
    (dict(proposer="draft_model"), "'draft_model' needs a draft"),
    (dict(proposer="ngram", draft=True), "'ngram' takes no draft"),
    (dict(draft=True), "'none' takes no draft"),
    (dict(lookahead=8), "proposer 'none' drafts nothing"),
    (dict(verifier="best"), "verifier is 'best'; give one of token, block"),
    (dict(ngram_min=2), "'none' takes no n-gram sizes"),
    (
      dict(proposer="draft_model", draft=True, ngram_max=3),
      "'draft_model' takes no n-gram sizes",
    ),
    (dict(proposer="ngram", ngram_min=0), r"0\.\.4"),
    (dict(proposer="ngram", ngram_min=5), r"5\.\.4"),
    (dict(proposer="ngram", lookahead=0), "lookahead is 0"),
    (dict(proposer="ngram", lookahead=-1), "lookahead is -1"),
    (dict(siblings=2), "siblings is 2, but proposer 'none' has no second"),
    (dict(proposer="ngram", siblings=1), "proposer 'ngram' has no second"),
    (
      dict(proposer="draft_model", draft=True, siblings=-1),
      "siblings is -1; give 0 to 1024",
    ),
    (dict(proposer=Ngram(lookahead=2), siblings=1), "lookahead, siblings"),
    (dict(proposer=Ngram(lookahead=2), draft=True), "takes no draft"),
    (dict(proposer=Ngram(lookahead=2), ngram_max=3), "or n-gram sizes"),
    (dict(capacity=CONTEXT + 1), f"capacity is {CONTEXT + 1}"),
    (dict(capacity=0), "capacity is 0"),
    (dict(capacity=1), "capacity is 1"),
    (dict(slots=0), "slots is 0"),
    (dict(slots=1.5), "slots is 1.5"),
    (dict(slots=2**70), "slots is"),
    (dict(prefill_widths=()), "prefill_widths is"),
    (dict(proposer=None), "proposer is None"),
    (dict(proposer="ngram", ngram_max=10**6), "give at most 64"),
  ),
)
def test_rule_28_an_engine_refuses_what_would_do_nothing(
  target, draft, options, message
):
  if options.get("draft"):
    options = {**options, "draft": draft}
  with pytest.raises(ValueError, match=message):
    specjax.Engine(target, **options)


def test_rule_28_unknown_options_are_refused(target):
  with pytest.raises(TypeError, match="temperature"):
    specjax.Engine(target, temperature=1.0)


def test_rule_28_unknown_settings_are_refused_by_name(engine):
  with pytest.raises(ValueError) as caught:
    engine.generate("the", temprature=1.0, max_tokens=3)
  assert "max_tokens, temprature" in str(caught.value)
  assert "max_new_tokens" in str(caught.value)  # what there is instead
  for settings, name in (
    (dict(temperature=-1), "temperature"),
    (dict(top_p=0), "top_p"),
    (dict(top_k=1.5), "top_k"),
    (dict(min_p=2), "min_p"),
    (dict(seed="x"), "seed"),
    (dict(max_new_tokens=0), "max_new_tokens"),
    (dict(lookahead=-1), "lookahead"),
    (dict(stop=("",)), "stop"),
    (dict(stop=3), "stop"),
  ):
    with pytest.raises(ValueError, match=f"{name} is "):
      engine.generate("the", **settings)
  for name in ("prompt", "id", "sampling"):  # fields of a request, not of all
    with pytest.raises(ValueError, match=f"unknown settings {name}"):
      engine.generate("the", **{name: 1})


def test_rule_28_unsupported_dtypes_are_refused(folders):
  with pytest.raises(ValueError, match="dtype is 'int8'; give one of float32"):
    specjax.load(folders["target"], dtype="int8")


def test_loading_reads_no_weights_until_they_are_asked_for(folders):
  bare = specjax.load(folders["bare"])
  assert bare.name == bare.folder == str(folders["bare"])
  assert bare.model.vocab_size == VOCAB
  assert bare.tokenizer.encode("he")
  with pytest.raises(FileNotFoundError):
    _ = bare.params


def test_a_text_gives_one_completion_and_a_list_gives_a_list(engine):
  one = engine.generate("the cat", max_new_tokens=5)
  assert isinstance(one, Completion)
  (same,) = engine.generate(["the cat"], max_new_tokens=5)
  assert same.token_ids == one.token_ids
  assert engine.generate([]) == []


def test_generate_keeps_the_order_of_its_prompts(engine):
  """Rows end in another order than they came, on fewer slots."""
  prompts = PROMPTS * 3
  done = engine.generate(prompts, max_new_tokens=9)
  assert [row.id for row in done] == [str(n) for n in range(12)]
  sizes = [len(engine.encode(prompt)) for prompt in prompts]
  assert [row.prompt_tokens for row in done] == sizes
  for prompt, row in zip(prompts, done, strict=True):
    alone = engine.generate(prompt, max_new_tokens=9)
    assert alone.token_ids == row.token_ids
    shown = [
      i for i in row.token_ids if i not in engine.target.tokenizer.eos_ids
    ]
    assert row.text == engine.target.tokenizer.decode(shown)


def test_a_prompt_is_a_text_a_chat_or_ids(engine):
  tokenizer = engine.target.tokenizer
  chat = [{"role": "user", "content": "he"}]
  ids = tokenizer.encode("user: he\nassistant: ")
  found = engine.generate(
    [chat, ids, tuple(ids), "user: he\nassistant: "], max_new_tokens=6
  )
  assert len({row.token_ids for row in found}) == 1
  assert found[0].prompt_tokens == len(ids)
  for one in (chat, ids):  # alone, as `stream` takes them
    got = engine.generate(one, max_new_tokens=6)
    assert got.token_ids == found[0].token_ids
    assert "".join(engine.stream(one, max_new_tokens=6)) == got.text


def test_a_stream_joins_to_the_text_of_the_completion(engine):
  for prompt in PROMPTS:
    done = engine.generate(prompt, max_new_tokens=20, temperature=0.7, seed=3)
    pieces = list(
      engine.stream(prompt, max_new_tokens=20, temperature=0.7, seed=3)
    )
    assert "".join(pieces) == done.text
    assert all(pieces)


def test_a_stream_may_be_left_early(engine):
  for _ in range(3):
    for _ in engine.stream("the cat", max_new_tokens=30):
      break
  assert engine.generate("he", max_new_tokens=2).finish_reason


def test_a_stop_string_may_be_given_bare(engine):
  text = engine.generate("the cat", max_new_tokens=20).text
  stop = text[len(text) // 2 :][:1]
  bare = engine.generate("the cat", max_new_tokens=20, stop=stop)
  assert bare.finish_reason == "stop"
  assert bare.text == text[: text.index(stop)]
  listed = engine.generate("the cat", max_new_tokens=20, stop=[stop])
  assert listed.token_ids == bare.token_ids


def test_a_prompt_that_cannot_run_is_an_error_completion(engine):
  done = engine.generate(["he", [VOCAB], "a" * 200, [], "he"], max_new_tokens=3)
  reasons = [row.finish_reason for row in done]
  assert reasons == ["length", "error", "error", "error", "length"]
  assert f"token id {VOCAB}" in done[1].error
  assert "shorten it" in done[2].error
  assert "empty" in done[3].error
  with pytest.raises(ValueError, match=re.escape(done[1].error)):
    list(engine.stream([VOCAB], max_new_tokens=3))


def test_the_context_is_the_models_unless_given(engine, target):
  assert engine.capacity == CONTEXT
  assert engine.lookahead == 3
  long = dataclasses.replace(target.model.config, max_position=10**6)
  model = dataclasses.replace(target.model, config=long)
  longer = dataclasses.replace(target, model=model)
  assert specjax.Engine(longer).capacity == api.DEFAULT_CAPACITY


def test_ngram_sizes_reach_the_proposer(target):
  with mock.patch.object(api.loop, "Engine") as made:
    specjax.Engine(
      target, proposer="ngram", lookahead=2, ngram_min=1, ngram_max=3
    )
  assert made.call_args.args[2] == Ngram(lookahead=2, shortest=1, longest=3)


def test_the_same_tokenizer_spelt_otherwise_is_the_same(folders, tmp_path):
  """What must match is what ids mean, not how the file was written."""
  backend = tokenizers.Tokenizer.from_str(
    (folders["target"] / "tokenizer.json").read_text()
  )
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
  folder = checkpoint(tmp_path / "again", backend, VOCAB, weights=False)
  again = specjax.load(folder)
  bare = specjax.load(folders["bare"])
  # So it gets as far as the weights that are not there.
  with pytest.raises(FileNotFoundError):
    specjax.Engine(bare, proposer="draft_model", draft=again)


def test_a_path_in_the_place_of_a_model_says_what_to_give(target):
  with pytest.raises(ValueError, match=r"specjax\.load"):
    specjax.Engine("a/folder")
  with pytest.raises(ValueError, match=r"specjax\.load"):
    specjax.Engine(target, proposer="draft_model", draft="a/folder")


def test_arrays_of_ids_are_prompts(engine):
  ids = list(engine.encode("the cat"))
  expected = engine.generate(ids, max_new_tokens=4).token_ids
  array = np.array(ids)
  for prompt in (array, jnp.asarray(array), list(array), tuple(array)):
    assert engine.generate(prompt, max_new_tokens=4).token_ids == expected
  several = engine.generate([array, ids], max_new_tokens=np.int64(4))
  assert [row.token_ids for row in several] == [expected] * 2
  assert "".join(engine.stream(array, temperature=np.float32(0)))


@pytest.mark.parametrize(
  "prompt", (b"hello", {"role": "user", "content": "hi"}, 3, [[1.5]])
)
def test_what_is_no_prompt_is_refused(engine, prompt):
  with pytest.raises(ValueError, match="prompt"):
    engine.generate(prompt)


def test_models_and_engines_print_short(engine):
  assert len(repr(engine)) < 300 and "lookahead=" in repr(engine)


@pytest.mark.parametrize(
  "setting", (dict(top_k=5), dict(top_p=0.5), dict(min_p=0.1), dict(seed=0))
)
def test_rule_28_what_shapes_no_draw_at_temperature_0_is_an_error(
  engine, setting
):
  (name,) = setting
  for settings in (setting, {**setting, "temperature": 0.0}):
    with pytest.raises(ValueError, match=f"{name} does nothing at temperature"):
      engine.generate("he", **settings)
    with pytest.raises(ValueError, match=f"{name} does nothing at temperature"):
      next(engine.stream("he", **settings))
  engine.generate("he", max_new_tokens=1, temperature=1.0, **setting)
  # Switched off, it asks for what temperature 0 does anyway.
  engine.generate("he", max_new_tokens=1, top_k=0, top_p=1.0, seed=None)


def test_n_samples_are_a_list_in_each_prompts_place(engine):
  settings = dict(temperature=1.5, seed=4, max_new_tokens=8)
  one = engine.generate("the cat", **settings)
  three = engine.generate("the cat", n=3, **settings)
  assert [row.sample for row in three] == [0, 1, 2]
  assert three[0].token_ids == one.token_ids
  assert len({row.token_ids for row in three}) == 3
  both = engine.generate(["the cat", "he"], n=2, **settings)
  assert [[row.id for row in rows] for rows in both] == [["0"] * 2, ["1"] * 2]
  assert [row.token_ids for row in both[0]] == [
    row.token_ids for row in three[:2]
  ]
  with pytest.raises(ValueError, match="a stream is of one sample"):
    next(engine.stream("he", n=2, temperature=1.0))
  with pytest.raises(ValueError, match="n is 2; at temperature 0"):
    engine.generate("he", n=2)


def test_penalties_and_log_probabilities_pass_through(engine):
  plain = engine.generate("the cat", max_new_tokens=6, logprobs=0)
  banned = plain.token_ids[0]
  other = engine.generate(
    "the cat", max_new_tokens=6, logit_bias={banned: -100}, logprobs=0
  )
  assert banned not in other.token_ids
  assert len(other.logprobs) == len(other.token_ids)
  # The raw target's own, whatever the bias.
  assert other.logprobs[0] < plain.logprobs[0]
  assert "top_logprobs" in engine.generate("the cat", logprobs=2).error
