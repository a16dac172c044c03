"""Modules of multi-token prediction keep the target's law.

RULES are the project's list of what a correct speculative decoder satisfies.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.heads import mtp as heads
from specjax.proposers.mtp import Mtp
from tests import decoder_laws, engines
from tests.decoder_laws import LOOKAHEAD, PARAMS, TARGET, VOCAB

KEPT = (0, 2)
# One module, which goes on with its own states; one for each draft; one more.
CASES = ("one", "two", "reduced", "three")
DEAR = [pytest.param(c, marks=pytest.mark.long) for c in ("reduced", "three")]


@functools.cache
def made(case):
  """(model, params, the ids that it drafts)."""
  kept = KEPT if case == "reduced" else None
  depths = {"one": 1, "two": 2, "reduced": 1, "three": 3}[case]
  config = heads.small(
    TARGET.config, depths=depths, draft_vocab=kept and len(kept)
  )
  model = heads.build(config, TARGET)
  # Larger than they begin, so that drafts differ and so do their laws.
  own = tuple(2 * value for value in model.head.init(5))
  return model, model.complete(own, PARAMS, kept), kept or range(VOCAB)


@functools.cache
def engine(case):
  model, params, _ = made(case)
  return decoder_laws.engine(Mtp(model=model, lookahead=LOOKAHEAD), params)


def chains(case):
  """Proposals, of settings, as training sees them: whole texts, no cache."""
  model, params, kept = made(case)
  assert LOOKAHEAD == 2

  def spread(logits, shift):
    """Over all ids, at the places of `Laws`: after each prefix."""
    whole = jnp.full((*logits.shape[:2], VOCAB), -jnp.inf)
    whole = whole.at[:, :, jnp.asarray(kept)].set(logits)
    return jnp.pad(whole, ((0, 0), (shift, 0), (0, 0)))

  def first(texts):
    features = TARGET(PARAMS, texts, None, (TARGET.config.layers,)).features
    fused = model.fuse(params, PARAMS, features)
    hidden, _ = model.read(params, PARAMS, texts[:, 1:], fused[:, :-1])
    return fused, hidden

  @jax.jit
  def one(texts):
    _, hidden = first(texts)
    return spread(model.logits(params, PARAMS, hidden), 1)

  @jax.jit
  def by_its_own(texts, size):
    """Of prefixes of `size` tokens whose last one is a draft."""
    fused, hidden = first(texts)
    at = size - 2
    states = fused.at[:, at].set(hidden[:, at - 1])[:, :-1]
    out, _ = model.read(params, PARAMS, texts[:, 1:], states)
    return model.logits(params, PARAMS, out)[:, at]

  @jax.jit
  def by_the_next(texts):
    _, hidden = first(texts)
    out, _ = model.read(params, PARAMS, texts[:, 2:], hidden[:, :-1], depth=1)
    return spread(model.logits(params, PARAMS, out, depth=1), 2)

  def two(texts):
    if model.config.depths > 1:
      return by_the_next(texts)
    sizes = range(3, texts.shape[1] + 1)
    each = [by_its_own(texts, jnp.int32(size)) for size in sizes]
    return spread(jnp.stack(each, axis=1), 2)

  def of(settings):
    laws = [decoder_laws.Laws(logits, settings) for logits in (one, two)]

    def propose(history, count, drafted=(), qs=(), chance=1.0):
      if len(drafted) == count:
        yield chance, drafted, list(qs)
        return
      q = laws[len(drafted)].law((*history, *drafted))
      for token in np.flatnonzero(q):
        more = (*drafted, int(token))
        yield from propose(
          history, count, more, (*qs, q), chance * float(q[token])
        )

    return propose

  return of


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_rules_11_16_25_27_rows_are_as_they_are_alone_and_plainly(case):
  decoder_laws.check_rows(engine(case))


@pytest.mark.parametrize("case", ["one", "two", *DEAR])
def test_rules_1_2_17_the_engine_keeps_the_law(case):
  """The blocks' law too: drafts are what training sees, whatever the steps."""
  settings = {"temperature": 1.3, "top_p": 0.9}
  p = decoder_laws.p_values(engine(case), chains(case), settings, 2500)
  assert min(p) > 0.01


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_the_engine_keeps_the_law_at_every_setting(case):
  decoder_laws.check_laws(engine(case), chains(case))


def test_a_module_that_is_no_number_drafts_nothing():
  model, params, _ = made("two")
  broken = tuple(jnp.full_like(value, jnp.nan) for value in params)
  made_engine = decoder_laws.engine(
    Mtp(model=model, lookahead=LOOKAHEAD), broken
  )
  prompt = decoder_laws.PROMPT
  request = engines.request(prompt, max_new_tokens=6)
  done = engines.complete(made_engine, [request])["0"]
  plain = engines.complete(engine("two"), [request])["0"]
  assert done.drafted == 0 and done.token_ids == plain.token_ids
