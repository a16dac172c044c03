"""EAGLE's heads against the papers, written down again in numpy.

RULES are the project's list of what a correct speculative decoder satisfies.
"""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.heads import eagle
from tests.models import golden
from tests.models.heads import eagle_numpy, tiny

ROWS, WIDTH = 2, 9
KIND = pytest.mark.parametrize("fuses", (False, True))


def texts(rows=ROWS, width=WIDTH, seed=0):
  draws = np.random.default_rng(seed)
  return jnp.asarray(draws.integers(0, tiny.VOCAB, (rows, width)), jnp.int32)


def seen(model, tokens):
  """The target's states after each token: [B, T, n, D]."""
  target, params = tiny.target()
  return target(params, tokens, None, model.config.features).features


def reference(model, params, kept):
  """The same head in numpy."""
  target, target_params = tiny.target()
  short = lambda path: path.removesuffix(".weight")
  named = lambda paths, values: {
    short(path): np.asarray(value, np.float64)
    for path, value in zip(paths, values, strict=False)
  }
  theirs = named(target.paths, target_params)
  config = target.config
  return eagle_numpy.Eagle(
    named(model.head.paths, params),
    {name: theirs[name] for name in ("embed", "norm", "head")},
    config.rope_theta,
    config.norm_eps,
    kept,
  )


def pairs(model, params, tokens):
  """(tokens, hidden) of a text's pairs."""
  _, target_params = tiny.target()
  states = seen(model, tokens)[:, :-1]
  return tokens[:, 1:], model.fuse(params, target_params, states)


@functools.cache
def jitted(*kind):
  """A head's passes, compiled once for each shape."""
  model, params, _ = tiny.head(*kind)
  _, target_params = tiny.target()

  @jax.jit
  def read(tokens, hidden, cache=None, positions=None):
    hidden, cache = model.read(
      params, target_params, tokens, hidden, cache, positions
    )
    if cache is not None:
      cache = cache.commit(jnp.full((len(tokens),), tokens.shape[1]))
    return hidden, cache, model.logits(params, target_params, hidden)

  @jax.jit
  def unroll(tokens, hidden, keys=(), positions=None):
    return model.unroll(params, target_params, tokens, hidden, keys, positions)

  pair = jax.jit(functools.partial(pairs, model, params))
  return types.SimpleNamespace(read=read, unroll=unroll, pairs=pair)


def near(ours, theirs, tolerance=2e-5):
  np.testing.assert_allclose(
    np.asarray(ours), np.asarray(theirs), rtol=tolerance, atol=tolerance
  )


@pytest.mark.parametrize(
  "fuses, reduced, bias", [(0, 1, 0), (0, 0, 1), (1, 1, 0)]
)
def test_a_head_computes_what_the_papers_describe(fuses, reduced, bias):
  """A whole text; then two drafts that read the head's own states."""
  kind = bool(fuses), bool(reduced), bool(bias)
  (model, params, kept), run = tiny.head(*kind), jitted(*kind)
  tokens = texts()
  states = np.asarray(seen(model, tokens), np.float64)
  read, hidden = run.pairs(tokens)
  out, none, logits = run.read(read, hidden)
  assert none is None
  last, cache, _ = run.read(read, hidden, model.init_cache(ROWS, 32))
  drafts = jnp.asarray([[3, 11], [5, 0]], jnp.int32)
  one, cache, first = run.read(drafts[:, :1], last[:, -1:], cache)
  two, cache, second = run.read(drafts[:, 1:], one, cache)
  ends = ((one, first), (two, second))
  for row in range(ROWS):
    theirs = reference(model, params, kept)
    for i in range(WIDTH - 1):
      fused = theirs.fused(states[row, i])
      near(hidden[row, i], fused)
      own, guess = theirs.step(int(read[row, i]), fused)
      near(out[row, i], own)
      near(logits[row, i], guess)
    for token, (state, ours) in zip(drafts[row], ends, strict=True):
      own, guess = theirs.step(int(token), own)
      near(state[row, 0], own)
      near(ours[row, 0], guess)


@KIND
def test_rules_17_22_a_wide_pass_equals_single_ones(fuses):
  """And both equal the pass without a cache."""
  (model, _, _), run = tiny.head(fuses, True, False), jitted(fuses, True, False)
  read, hidden = run.pairs(texts())
  whole, _, _ = run.read(read, hidden)
  for width in (1, 3):
    cache, found = model.init_cache(ROWS, 32), []
    for at in range(0, 6, width):
      part = slice(at, at + width)
      out, cache, _ = run.read(read[:, part], hidden[:, part], cache)
      found.append(out)
    near(jnp.concatenate(found, axis=1), whole[:, :6])


@KIND
def test_unrolled_steps_are_what_drafting_does(fuses):
  """From every position at once, as from each one alone."""
  (model, _, _), run = tiny.head(fuses, True, False), jitted(fuses, True, False)
  steps = 3
  read, hidden = run.pairs(texts())
  size = read.shape[1] - steps + 1
  keys, state, found = (), hidden[:, :size], []
  for step in range(steps):
    state, keys = run.unroll(read[:, step : step + size], state, keys)
    found.append(state)
  text = model.init_cache(ROWS, 32)
  for i in range(size):
    last, text, _ = run.read(read[:, i : i + 1], hidden[:, i : i + 1], text)
    near(found[0][:, i], last[:, 0])
    cache = text
    for step in range(1, steps):
      at = i + step
      last, cache, _ = run.read(read[:, at : at + 1], last, cache)
      near(found[step][:, i], last[:, 0])


@KIND
def test_texts_packed_into_a_row_do_not_see_each_other(fuses):
  run = jitted(fuses, True, False)
  read, hidden = run.pairs(texts())
  size = read.shape[1]
  packed = lambda x: x.reshape(1, ROWS * size, *x.shape[2:])
  at = jnp.arange(size, dtype=jnp.int32)[None]
  positions = packed(jnp.tile(at, (ROWS, 1)))
  _, _, apart = run.read(read, hidden)
  _, _, close = run.read(packed(read), packed(hidden), None, positions)
  near(close, packed(apart))
  state, keys = hidden, ()
  close, close_keys = packed(hidden), ()
  for _ in range(2):
    state, keys = run.unroll(read, state, keys)
    close, close_keys = run.unroll(packed(read), close, close_keys, positions)
    near(close, packed(state))


@KIND
def test_it_has_a_gradient_in_everything_that_is_trained(fuses):
  model, params, _ = tiny.head(fuses, True)
  _, target_params = tiny.target()
  tokens = texts()
  states, own = seen(model, tokens)[:, :-1], len(model.head.paths)

  @jax.jit
  @jax.grad
  def slope(trained):
    every = (*trained, *params[own:])
    hidden = model.fuse(every, target_params, states)
    state, keys = model.unroll(every, target_params, tokens[:, 1:], hidden)
    state, _ = model.unroll(every, target_params, tokens[:, 1:], state, keys)
    return jnp.mean(jnp.square(model.logits(every, target_params, state)))

  for path, value in zip(model.head.paths, slope(params[:own]), strict=True):
    assert np.isfinite(value).all() and np.abs(value).max() > 0, path


def test_a_reduced_vocabulary_of_eagle_1_is_rows_of_the_targets_head():
  model, params, kept = tiny.head(False, True)
  full, full_params, _ = tiny.head(False, False)
  _, target_params = tiny.target()
  hidden = pairs(model, params, texts())[1]
  some = model.logits(params, target_params, hidden)
  near(some, full.logits(full_params, target_params, hidden)[..., kept])
  assert list(np.asarray(model.kept(params))) == list(kept)
  assert [spec.shape for spec in model.shapes] == [p.shape for p in params]


def test_a_tied_target_with_scaled_embeddings_and_capped_logits():
  """Gemma 2's ends: what the target's own head makes of its own states."""
  made = golden.load("gemma2")
  model, params = made.model, made.params
  head = eagle.build(eagle.small(model.config, fuses=False), model)
  tokens = texts() % model.vocab_size
  layers = (0, model.config.layers)
  out = model(params, tokens, None, layers)
  near(head.ends.embed(params, tokens), out.features[:, :, 0])
  normed = head.fuse((), params, out.features[:, :, 1:])
  near(head.logits((), params, normed), out.logits)


def test_published_layers():
  assert eagle.published_features(32) == (2, 16, 29)
  assert eagle.published_features(30) == (2, 15, 27)
  assert eagle.published_features(1) == (1, 0, 0)


@pytest.mark.parametrize(
  "changes, said",
  [
    (dict(d_model=32), "d_model 32, and this one's is 16"),
    (dict(vocab_size=9), "vocab_size 9, and this one's is 24"),
  ],
)
def test_a_head_of_another_target_is_refused(changes, said):
  target, _ = tiny.target()
  config = eagle.small(target.config, fuses=False)
  layer = dataclasses.replace(config.layer, **changes)
  with pytest.raises(ValueError, match=said):
    eagle.build(dataclasses.replace(config, layer=layer), target)


def test_layers_that_the_target_lacks_are_refused():
  target, _ = tiny.target()
  config = eagle.small(target.config, fuses=True)
  deep = dataclasses.replace(config, features=(2, 15, 27))
  with pytest.raises(ValueError, match="layer 15, and it has 2"):
    eagle.build(deep, target)
  with pytest.raises(ValueError, match="1 or 3"):
    dataclasses.replace(config, features=(1, 2))


def test_learned_positions_are_refused_by_name():
  model = golden.load("gpt2").model
  with pytest.raises(ValueError, match="GPT2LMHeadModel adds learned"):
    eagle.build(eagle.small(model.config, fuses=False), model)
