"""Some of the target's layers draft, and leave nothing else behind.

RULES are the project's list of what a correct speculative decoder satisfies.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.penalties import Penalties
from specjax.proposers.base import Context
from specjax.proposers.layer_skip import LayerSkip
from specjax.types import Block
from tests import decoder_laws, engines
from tests.models import golden

PREFIX, SUBSET = (0,), (1,)
# The subset's engine is another one to compile.
BOTH = pytest.mark.parametrize(
  "layers", (PREFIX, pytest.param(SUBSET, marks=pytest.mark.long))
)
LOOKAHEAD = decoder_laws.LOOKAHEAD


def proposer(model, layers, kind=LayerSkip):
  return kind(
    model=model,
    layers=layers,
    lookahead=LOOKAHEAD,
    vocab_size=model.vocab_size,
  )


@functools.cache
def engine(layers, kind=LayerSkip):
  return decoder_laws.engine(proposer(decoder_laws.TARGET, layers, kind))


@BOTH
def test_rules_11_16_25_27_rows_are_as_they_are_alone_and_plainly(layers):
  decoder_laws.check_rows(engine(layers))


class Traceless(LayerSkip):
  """What it writes into the target's cache is thrown away."""

  def draft(self, params, state, ctx):
    proposal, state, _ = super().draft(params, state, ctx)
    return proposal, state, ctx.cache


def test_rules_17_18_what_a_prefix_writes_leaves_no_trace():
  """Bit for bit the cache of a run that drafted the same somewhere else."""
  runs = []
  for kind in (LayerSkip, Traceless):
    made = engine(PREFIX, kind)
    made.state = made._idle_state()
    done = engines.complete(made, decoder_laws.rows())
    runs.append(({id: row.token_ids for id, row in done.items()}, made.state))
  (tokens, state), (same, clean) = runs
  assert tokens == same
  for name in ("k", "v", "length"):
    ours, theirs = getattr(state.cache, name), getattr(clean.cache, name)
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
  assert np.asarray(state.cache.k).any()


def drafted(made, layers, prompts):
  """What the layers draft greedily after prompts int32 [B, T]."""
  rows, size = prompts.shape
  drafter = proposer(made.model, layers)
  capacity = size + LOOKAHEAD + 1
  greedy = sampling.RowSettings.greedy(rows)

  def run(params, tokens):
    cache = made.model.init_cache(rows, capacity)
    full = jnp.full((rows,), size - 1, jnp.int32)
    cache = made.model(params, tokens, cache).cache.commit(full)
    ctx = Context(
      target_params=params,
      cache=cache,
      last_token=tokens[:, -1],
      length=cache.length,
      history=tokens,
      sampling=greedy,
      penalties=Penalties.none(rows, made.model.vocab_size),
      noise=sampling.Noise(
        seed=greedy.seed, base=full + 1, is_greedy=jnp.asarray(True)
      ),
      lookahead=jnp.full((rows,), LOOKAHEAD, jnp.int32),
    )
    block = Block(tokens=tokens, count=full + 1)
    state = drafter.init(rows, capacity)
    state = drafter.ingest((), state, block, ctx)
    proposal, _, cache = drafter.draft((), state, ctx)
    return proposal.tokens, cache.length

  tokens, length = jax.jit(run)(made.params, jnp.asarray(prompts))
  assert length.tolist() == [size - 1] * rows
  return np.asarray(tokens)


@pytest.mark.parametrize("layers", ((0, 1), (0, 2, 3)))
@pytest.mark.parametrize(
  "scan_layers", (False, pytest.param(True, marks=pytest.mark.long))
)
def test_drafts_are_those_of_the_layers_alone(layers, scan_layers):
  """Gemma 3: windows, a rotation of their own, and norms after."""
  made = golden.load("gemma3", scan_layers=scan_layers)
  prompts = made.tokens[:, :7].astype(np.int32)
  got = drafted(made, layers, prompts)
  text = np.concatenate([prompts, got], axis=1)
  whole = jax.jit(made.model.only(layers))(made.params, text, None).logits
  expected = np.argmax(whole[:, 6:-1], axis=-1)
  np.testing.assert_array_equal(got, expected)
  full = np.argmax(jax.jit(made.model)(made.params, text, None).logits, -1)
  assert (full[:, 6:-1] != expected).any()


@BOTH
def test_rules_1_2_17_the_engine_keeps_the_law(layers):
  """And each draft's: the blocks' law sees a cache that is not the prefix's."""
  settings = {"temperature": 1.3, "top_p": 0.9}
  propose = decoder_laws.drafts_of(layers)
  p = decoder_laws.p_values(engine(layers), propose, settings, 2500)
  assert min(p) > 0.01


@pytest.mark.long
@pytest.mark.parametrize("layers", (PREFIX, SUBSET))
def test_the_engine_keeps_the_law_at_every_setting(layers):
  propose = decoder_laws.drafts_of(layers)
  decoder_laws.check_laws(engine(layers), propose)


@pytest.mark.parametrize(
  "layers, words",
  [
    ((), "are not ascending"),
    ((0, 4), "layer 4 is not one of the model's 4; give 0 to 3"),
    ((-1, 0), "layer -1 is not one"),
    ((2, 1), r"layers \[2, 1\] are not ascending"),
    ((1, 1), "are not ascending"),
    ((0, 1, 2, 3), "all 4 layers of the target would draft"),
  ],
)
def test_layers_that_cannot_draft_are_named(layers, words):
  with pytest.raises(ValueError, match=f"draft_layers: .*{words}"):
    proposer(golden.load("gemma3").model, layers)
