"""EAGLE through the whole engine: lossless, and fed with the right pairs.

RULES are the project's list of what a correct speculative decoder satisfies.
"""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.benchmark import compiles
from specjax.models.heads import eagle as eagle_lib
from specjax.proposers.eagle import Eagle
from specjax.types import Block
from tests import decoder_laws, engines, exact
from tests.engines import LOOKAHEAD, request
from tests.models.heads import tiny

CAPACITY = 40
# One layer compiles sooner; EAGLE-3 reads its input twice then.
SMALL = dict(num_hidden_layers=1)
# EAGLE-1 with some of the ids, EAGLE-3 with all.
KINDS = pytest.mark.parametrize(
  "fuses, reduced", ((False, True), (True, False))
)


@functools.cache
def engine(fuses, reduced):
  target, target_params = tiny.target(**SMALL)
  model, params, _ = tiny.head(fuses, reduced, **SMALL)
  return engines.build(
    target,
    target_params,
    Eagle(model=model, lookahead=LOOKAHEAD),
    params,
    slots=2,
    capacity=CAPACITY,
    prefill_widths=(8,),
  )


def rows():
  """Prompts up to the context's end, greedy beside sampled, all lookaheads."""
  draws = np.random.default_rng(0)
  sizes = (1, 2, 3, 8, 9, 10, *range(CAPACITY - LOOKAHEAD - 2, CAPACITY))
  return [
    request(
      draws.integers(0, tiny.VOCAB, size),
      f"row {size}",
      max_new_tokens=1 + size % 13,
      lookahead=(None, 3, 2, 1)[size % 4],
      temperature=size % 2,
      top_p=(1.0, 0.8)[size % 2],
      repetition_penalty=(1.0, 1.3)[size % 3 == 2],
      logit_bias={5: -100.0} if size % 5 == 0 else {},
    )
    for size in sizes
  ]


@KINDS
def test_rules_9_11_16_25_27_rows_are_as_they_are_alone_and_plainly(
  fuses, reduced
):
  """Greedy rows as plain decoding's, all rows the same in company, at the
  context's end too, and nothing compiles."""
  made, every = engine(fuses, reduced), rows()
  made.warmup()
  with compiles.counted() as found:
    done = engines.complete(made, every)
    plain = [dataclasses.replace(row, lookahead=0) for row in every]
    plainly = engines.complete(made, plain)
    for row in every[::2]:
      alone = engines.complete(made, [row])[row.id]
      assert alone.token_ids == done[row.id].token_ids
      assert alone.drafted == done[row.id].drafted
  assert not found
  for row in every:
    got, size = done[row.id], len(row.prompt)
    assert len(got.token_ids) == min(row.max_new_tokens, CAPACITY - size)
    if not row.sampling.temperature:
      assert got.token_ids == plainly[row.id].token_ids
  assert sum(row.drafted for row in done.values()) > 30


def test_after_a_prompt_of_one_token_the_first_step_proposes_nothing():
  """There is no state that predicted it."""
  made = engine(False, True)
  for size, drafted in ((1, 0), (2, 1)):
    row = request(range(size), max_new_tokens=2)
    assert engines.complete(made, [row])["0"].drafted == drafted


def ingested(proposer, params, tokens, sizes, widths):
  """The state after prompts, int32 [B, T], read by chunks of these widths."""
  target, target_params = tiny.target(**SMALL)
  features = target(target_params, tokens, None, proposer.features).features
  # What predicted each: zeros for the first.
  features = jnp.pad(features[:, :-1], ((0, 0), (1, 0), (0, 0), (0, 0)))
  ctx = types.SimpleNamespace(target_params=target_params)
  state, at = proposer.init(len(tokens), 64), 0
  run = jax.jit(lambda state, block: proposer.ingest(params, state, block, ctx))
  for width in widths:
    part = slice(at, at + width)
    block = Block(
      tokens=tokens[:, part],
      count=jnp.clip(sizes - at, 0, width),
      features=features[:, part],
    )
    state, at = run(state, block), at + width
  return state


@KINDS
def test_rules_17_22_a_prompt_in_chunks_equals_one_at_once(fuses, reduced):
  """The first token has no pair, whatever block it comes in."""
  model, params, _ = tiny.head(fuses, reduced, **SMALL)
  proposer = Eagle(model=model, lookahead=LOOKAHEAD)
  sizes = jnp.asarray([0, 1, 2, 5, 9, 12], jnp.int32)
  draws = np.random.default_rng(1)
  tokens = draws.integers(0, tiny.VOCAB, (len(sizes), 12))
  read = functools.partial(
    ingested, proposer, params, jnp.asarray(tokens, jnp.int32), sizes
  )
  whole = read((12,))
  assert list(whole.cache.length) == [0, 0, 1, 4, 8, 11]
  assert list(whole.begun) == [False] + [True] * 5
  for widths in ((1,) * 12, (1, 4, 7), (5, 5, 2)):
    parts = read(widths)
    assert list(parts.cache.length) == list(whole.cache.length)
    assert list(parts.begun) == list(whole.begun)
    for row, size in enumerate(np.asarray(whole.cache.length)):
      for ours, theirs in (
        (parts.cache.k[:, row, :, :size], whole.cache.k[:, row, :, :size]),
        (parts.cache.v[:, row, :, :size], whole.cache.v[:, row, :, :size]),
        (parts.hidden[row], whole.hidden[row]),
        (parts.logits[row], whole.logits[row]),
      ):
        np.testing.assert_allclose(
          np.asarray(ours), np.asarray(theirs), atol=2e-5
        )


class Laws:
  """Of every history, and of drafts behind it, what is proposed next."""

  def __init__(self, model, params, settings):
    target, kept = decoder_laws, np.arange(decoder_laws.VOCAB)
    if model.is_reduced:
      kept = np.asarray(model.kept(params))
    self._known = {}
    texts = decoder_laws.texts()

    def logits(texts):
      features = target.TARGET(
        target.PARAMS, texts, None, model.config.features
      ).features
      hidden = model.fuse(params, target.PARAMS, features[:, :-2])
      found, keys = [], ()
      for step in range(2):
        read = texts[:, 1 + step : texts.shape[1] - 1 + step]
        hidden, keys = model.unroll(params, target.PARAMS, read, hidden, keys)
        found.append(model.logits(params, target.PARAMS, hidden))
      return found

    first, second = jax.jit(logits)(jnp.asarray(texts))
    for text, *rows in zip(
      texts.tolist(), np.asarray(first), np.asarray(second), strict=True
    ):
      for i in range(len(text) - 2):
        history, draft = tuple(text[: i + 2]), tuple(text[i + 2 : i + 3])
        for drafts, row in zip(((), draft), rows, strict=True):
          if (history, drafts) not in self._known:
            law = np.zeros(decoder_laws.VOCAB)
            law[kept] = exact.filtered(row[i], **settings)
            self._known[history, drafts] = law

  def propose(self, history, count):
    """As `exact.drafts`."""
    going = [(1.0, (), [])]
    for _ in range(count):
      going = [
        (chance * law[v], (*tokens, int(v)), [*laws, law])
        for chance, tokens, laws in going
        for law in (self._known[tuple(history), tokens],)
        for v in np.flatnonzero(law)
      ]
    return going


@functools.cache
def of_laws(fuses, reduced):
  """An engine of a target whose laws can be enumerated, and its proposals."""
  target = decoder_laws
  config = eagle_lib.small(
    target.TARGET.config,
    fuses=fuses,
    draft_vocab=2 if reduced else None,
  )
  model = eagle_lib.build(config, target.TARGET)
  kept = np.asarray([0, 2]) if reduced else None
  params = model.complete(model.head.init(4), target.PARAMS, kept)
  proposer = Eagle(model=model, lookahead=target.LOOKAHEAD)
  made = target.engine(proposer, params)
  return made, lambda settings: Laws(model, params, settings).propose


def test_rules_1_2_4_8_17_the_laws_of_tokens_and_of_blocks_are_kept():
  """Of EAGLE-1 with two of three ids."""
  made, propose = of_laws(False, True)
  settings = {"temperature": 1.0, "top_p": 0.8}
  assert min(decoder_laws.p_values(made, propose, settings, 4000)) > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("fuses, reduced", tiny.KINDS)
def test_the_laws_are_kept_everywhere(fuses, reduced):
  made, propose = of_laws(fuses, reduced)
  for settings in (
    {"temperature": 0.5, "top_k": 2},
    {"temperature": 1.0},
    {"temperature": 3.0, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.3},
  ):
    for seed in (0, 1):
      p = decoder_laws.p_values(made, propose, settings, 30_000, seed)
      assert min(p) > 1e-3, (settings, seed)


class Stale(Eagle):
  """A planted fault: the pair of every block's first token is left out."""

  def ingest(self, params, state, block, ctx):
    state = dataclasses.replace(state, begun=jnp.zeros_like(state.begun))
    return super().ingest(params, state, block, ctx)


@pytest.mark.long
def test_the_law_of_blocks_sees_a_pair_that_is_left_out():
  """And the law of tokens does not change."""
  made, propose = of_laws(False, False)
  proposer = Stale(model=made.proposer.model, lookahead=decoder_laws.LOOKAHEAD)
  faulty = decoder_laws.engine(proposer, made.params.proposer)
  tokens, blocks = decoder_laws.p_values(
    faulty, propose, {"temperature": 1.0}, 20_000
  )
  assert tokens > 1e-3 and blocks < 1e-6
