"""The search finds the layers that a target could do without."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.training import layer_search
from specjax.training.layer_search import Text

LAYERS = 4
MODEL = decoder.build(
  config_lib.from_hugging_face(
    dict(
      architectures=["LlamaForCausalLM"],
      vocab_size=32,
      hidden_size=16,
      intermediate_size=24,
      num_hidden_layers=LAYERS,
      num_attention_heads=2,
      max_position_embeddings=64,
      tie_word_embeddings=True,
    )
  )
)


def params(idle=()):
  """Random ones, of which these layers add nothing to what they read."""
  ends = tuple(f"layers.{n}.{end}.weight" for n in idle for end in ENDS)
  return tuple(
    jnp.zeros_like(value) if path in ends else value
    for path, value in zip(MODEL.paths, MODEL.init(0), strict=True)
  )


ENDS = ("attention.o", "mlp.down")


def texts(count=3, size=12):
  draws = np.random.default_rng(1)
  rows = draws.integers(0, MODEL.vocab_size, (count, size)).tolist()
  return [Text(tokens=tuple(row[row[0] % 3 :]), answer=4) for row in rows]


@pytest.mark.parametrize(
  "temperature", (0.0, pytest.param(0.8, marks=pytest.mark.long))
)
def test_layers_that_do_nothing_are_left_out(temperature):
  found = layer_search.search(
    MODEL, params(idle=(1,)), texts(), lookahead=4, temperature=temperature
  )
  by_layers = {one.layers: one for one in found}
  assert by_layers[0, 2, 3].acceptance == pytest.approx(1, abs=1e-5)
  assert by_layers[0, 2, 3].speed_up > 1
  assert by_layers[0, 1, 2].acceptance < 0.99
  assert found == sorted(found, key=lambda one: -one.speed_up)
  assert sum(one.is_prefix for one in found) >= LAYERS - 1


def test_acceptance_is_the_overlap_of_both_laws_at_the_answers_positions():
  made, rows = params(), texts()
  found = layer_search.search(MODEL, made, rows, lookahead=2, temperature=1.0)
  one = next(one for one in found if one.layers == (0, 1))

  def laws(model):
    whole = []
    for text in rows:
      out = model(made, jnp.asarray([text.tokens], jnp.int32), None)
      logits = np.asarray(out.logits[0, text.answer - 1 : -1], np.float64)
      weights = np.exp(logits - logits.max(-1, keepdims=True))
      whole.append(weights / weights.sum(-1, keepdims=True))
    return np.concatenate(whole)

  both = np.minimum(laws(MODEL), laws(MODEL.only((0, 1))))
  assert one.acceptance == pytest.approx(both.sum(-1).mean(), abs=1e-5)


def test_the_same_search_finds_the_same_and_ends_with_its_budget():
  heard = []
  how = dict(lookahead=4, temperature=0.5, told=heard.append)
  first = layer_search.search(MODEL, params(), texts(), budget=7, **how)
  assert 4 < len(heard) <= 7  # one may be a prefix, too, which counts twice
  assert first == layer_search.search(MODEL, params(), texts(), budget=7, **how)


def test_a_draft_costs_what_it_reads():
  whole = 32 * 16 + 16 + LAYERS * (4 * 16 * 16 + 3 * 16 * 24 + 2 * 16)
  cost = layer_search.cost_of(MODEL, (0, 3))
  assert cost == pytest.approx(
    (32 * 16 + 16 + 2 * (4 * 16 * 16 + 3 * 16 * 24 + 2 * 16)) / whole
  )
  # Leviathan et al. 2023, theorem 3.8.
  assert layer_search.predicted(0.8, 0.1, 5) == pytest.approx(
    (1 - 0.8**6) / ((1 - 0.8) * (5 * 0.1 + 1))
  )


def test_what_cannot_be_searched_is_named():
  how = dict(lookahead=4)
  scanned = decoder.build(MODEL.config, scan_layers=True)
  with pytest.raises(ValueError, match="scan_layers"):
    layer_search.search(scanned, scanned.init(0), texts(), **how)
  short = decoder.build(dataclasses.replace(MODEL.config, layers=1))
  with pytest.raises(ValueError, match="one layer"):
    layer_search.search(short, short.init(0), texts(), **how)
  with pytest.raises(ValueError, match="no text with a prompt"):
    layer_search.search(MODEL, params(), [], **how)
