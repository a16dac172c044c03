"""A chain of Medusa's heads keeps the target's law.

RULES are the project's list of what a correct speculative decoder satisfies.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.heads import medusa as heads
from specjax.proposers.medusa import Medusa
from tests import decoder_laws
from tests.decoder_laws import LOOKAHEAD, PARAMS, TARGET, VOCAB

KEPT = (0, 2)
# As published; and one table, the target's, of which some rows are kept.
CASES = ("own", "shared, reduced")
# The other's engine is another one to compile.
BOTH = pytest.mark.parametrize(
  "case", (pytest.param("own", marks=pytest.mark.long), "shared, reduced")
)


@functools.cache
def made(case):
  """(model, params, the ids that it drafts)."""
  shares = case.startswith("shared")
  config = heads.MedusaConfig(
    d_model=TARGET.config.d_model,
    vocab_size=VOCAB,
    heads=LOOKAHEAD + 1,
    shares=shares,
    draft_vocab=len(KEPT) if shares else None,
  )
  model = heads.build(config, TARGET)
  draws = np.random.default_rng(4)
  own = tuple(
    value + jnp.asarray(draws.normal(0, 0.5, value.shape), value.dtype)
    for value in model.begin(PARAMS, KEPT if shares else None)
  )
  kept = KEPT if shares else None
  return model, model.complete(own, PARAMS, kept), kept or range(VOCAB)


@functools.cache
def engine(case):
  model, params, _ = made(case)
  return decoder_laws.engine(Medusa(model=model, lookahead=LOOKAHEAD), params)


def chains(case):
  """Proposals, of settings: every draft's law from the one state alone."""
  model, params, kept = made(case)

  def logits(head):
    @jax.jit
    def run(texts):
      last = TARGET.config.layers
      out = TARGET(PARAMS, texts, None, (last,))
      hidden = model.fuse(params, PARAMS, out.features)
      found = model(params, PARAMS, hidden)[:, :, head]
      whole = jnp.full((*texts.shape, VOCAB), -jnp.inf)
      return whole.at[:, :, jnp.asarray(kept)].set(found)

    return run

  def of(settings):
    laws = [
      decoder_laws.Laws(logits(head), settings) for head in range(LOOKAHEAD)
    ]

    def propose(history, count):
      # The state that predicted the last token has not seen it.
      before = history[:-1]
      qs = [laws[head].law(before) for head in range(count)]
      for tokens in np.ndindex(*[VOCAB] * count):
        chance = np.prod([q[v] for q, v in zip(qs, tokens, strict=True)])
        if chance > 0:
          yield chance, tuple(map(int, tokens)), qs

    return propose

  return of


@BOTH
def test_rules_11_16_25_27_rows_are_as_they_are_alone_and_plainly(case):
  decoder_laws.check_rows(engine(case))


@BOTH
def test_rules_1_2_the_engine_keeps_the_law(case):
  """The blocks' law too: each draft is the head's of its own place."""
  settings = {"temperature": 1.3, "top_p": 0.9}
  p = decoder_laws.p_values(engine(case), chains(case), settings, 2500)
  assert min(p) > 0.01


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_the_engine_keeps_the_law_at_every_setting(case):
  decoder_laws.check_laws(engine(case), chains(case))


@pytest.mark.parametrize("lookahead", (0, LOOKAHEAD + 2))
def test_more_drafts_than_heads_are_refused(lookahead):
  model, _, _ = made("own")
  with pytest.raises(ValueError, match=f"lookahead is {lookahead}, and there"):
    Medusa(model=model, lookahead=lookahead)
