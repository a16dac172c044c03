"""EAGLE-1's first product is the least-squares one of the data's pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.training import data, fitting, packing, recipes
from tests.training import made

TEXTS, TOKENS = 24, 30


def pairs(texts):
  """Every pair of the texts, by hand: (what the head reads, what comes)."""
  own = made.target()
  params = dict(zip(own.model.paths, own.params, strict=True))
  table = np.asarray(params["embed.weight"], np.float64)
  states = made.states(texts, (made.LAYERS,))[:, :, 0].astype(np.float64)
  rms = np.sqrt(np.mean(np.square(states), axis=-1, keepdims=True) + 1e-5)
  states = states / rms * np.asarray(params["norm.weight"], np.float64)
  x, y = [], []
  for text, tokens in enumerate(texts.tokens.reshape(len(texts), -1)):
    # The state after the last token predicts a token that is not there.
    for i in range(len(tokens) - 2):
      x.append(np.concatenate([table[tokens[i + 1]], states[text, i]]))
      y.append(states[text, i + 1])
  return np.stack(x), np.stack(y)


def random_texts(seed=0):
  draws = np.random.default_rng(seed)
  texts = made.corpus(TEXTS, TOKENS)
  tokens = draws.integers(0, made.V, texts.tokens.shape).astype(np.int32)
  return data.Corpus(
    tokens=tokens, starts=texts.starts, answer=texts.answer, name="random"
  )


def head(rows=None, **how):
  how = dict(kept=None, stored=(), weights={"kl": 1.0}) | how
  return recipes.head("eagle", made.target(), fitted_to=rows, **how)


def weight(chain):
  return chain.init(0)["fc.weight"]


# Two texts share a row of 64, one is cut in two by a row of 20.
@pytest.mark.parametrize("width", [64, 30, 20])
def test_the_product_is_that_of_the_pairs_of_every_text(width):
  texts = random_texts()
  x, y = pairs(texts)
  found = weight(head(packing.Rows(texts, width)))
  assert found.shape == (made.WIDTH, 2 * made.WIDTH)
  off = lambda w: np.mean(np.square(x @ w.T - y))
  best = np.linalg.lstsq(x, y, rcond=None)[0].T
  if width < TOKENS:
    # To the target a piece is a text that begins there.
    assert off(found) < 1.3 * off(best)
  else:
    assert off(found) < 1.002 * off(best)
  assert off(found) < 0.8 * np.mean(np.square(x[:, made.WIDTH :] - y))


def test_states_of_the_data_and_a_pass_of_the_target_give_one_fit(tmp_path):
  texts = random_texts()
  made.distilled(tmp_path / "data", texts, (made.LAYERS,))
  stored = data.from_shards(tmp_path / "data", target=made.target())
  found = [
    weight(head(packing.Rows(each, 32), stored=each.layers))
    for each in (stored, texts)
  ]
  # Stored states are bfloat16.
  np.testing.assert_allclose(found[0], found[1], atol=0.05)


def test_no_more_rows_are_read_than_are_enough(monkeypatch):
  rows = packing.Rows(random_texts(), 30)
  read = []

  class Counted:
    def __len__(self):
      return len(rows)

    def __getitem__(self, index):
      read.append(index)
      return rows[index]

  monkeypatch.setattr(fitting, "ENOUGH", 100)
  head(Counted(), seed=3)
  assert len(read) == len(set(read)) == 8  # a batch holds 224 pairs
  again, read = read, []
  head(Counted(), seed=3)
  assert read == again
  read.clear()
  head(Counted(), seed=4)
  assert read != again


def test_a_fitted_head_begins_better_than_one_that_passes_the_state_on():
  texts = made.corpus()
  rows = packing.Rows(texts, made.LENGTH)
  held = packing.Rows(made.corpus(seed=1), made.LENGTH)
  batch = {name: jnp.asarray(value)[None] for name, value in held[0].items()}
  loss = {}
  for name, fitted_to in (("passing", None), ("fitted", rows)):
    chain = head(fitted_to)
    params = chain.init(0)
    total, _ = jax.jit(chain.loss)(params, chain.frozen, batch)
    loss[name] = float(total)
  assert loss["fitted"] < 0.7 * loss["passing"], loss
