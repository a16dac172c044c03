"""The target's law, and what stands before and behind in packed rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.training import data, objective, packing
from tests.training import made

POSITIONS = jnp.asarray([[0, 1, 2, 0, 1, 0]])
X = jnp.arange(1, 7)[None]
KEPT = np.arange(10, 90, dtype=np.int32)


def test_ahead_stays_in_its_text():
  for steps, moved, same in (
    (0, [1, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, 1]),
    (1, [2, 3, 4, 5, 6, 0], [1, 1, 0, 1, 0, 0]),
    (2, [3, 4, 5, 6, 0, 0], [1, 0, 0, 0, 0, 0]),
  ):
    found, valid = objective.ahead(X, POSITIONS, steps)
    assert found.tolist() == [moved] and valid.tolist() == [same]


def test_metrics_add_up_to_a_mean_over_positions():
  one = objective.metric(jnp.asarray([1.0, 5.0]), jnp.asarray([1.0, 0.0]))
  two = objective.metric(jnp.asarray([2.0, 3.0]), jnp.asarray([1.0, 1.0]))
  assert objective.means({"x": one + two}) == {"x": 2.0}
  assert objective.means({"x": one * 0}) == {}


def batch(corpus):
  rows = packing.Rows(corpus, made.LENGTH)
  found = next(packing.in_order(rows, 4, 1))
  return {name: jnp.asarray(value) for name, value in found.items()}


def test_the_law_is_the_targets_over_the_kept_ids():
  own, law = made.target(), made.law(KEPT)
  frozen = law.frozen(own.params)
  one = batch(made.corpus())

  @jax.jit
  def run(frozen, one):
    last = law.states(frozen, one)[:, :, -1]
    exact = law.exact(frozen, one)
    kept = law.log_p(frozen, last, exact["normaliser"])
    return law.log_p(frozen, last), kept, exact["top"]

  renormalised, kept, top = run(frozen, one)
  logits = made.logits(own.params, one["tokens"], one["positions"])
  close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5)
  close(renormalised, jax.nn.log_softmax(logits[..., KEPT], axis=-1))
  close(kept, jax.nn.log_softmax(logits, axis=-1)[..., KEPT])
  assert (top == jnp.argmax(logits, axis=-1)).all()
  token, kept = law.token(frozen, jnp.asarray([[9, 10, 89, 90]]))
  assert kept.tolist() == [[0, 1, 1, 0]]
  assert token[0, 1:3].tolist() == [0, 79]


def test_stored_states_are_those_of_a_pass(tmp_path):
  # Rows are not cut: a piece's states know what came before it.
  corpus = made.corpus(length=made.LENGTH)
  made.distilled(tmp_path, corpus, (1, 2))
  stored = data.from_shards(tmp_path, target=made.target())
  assert stored.layers == (1, 2)
  np.testing.assert_array_equal(stored.tokens, corpus.tokens)
  one = batch(stored)
  reads = made.law(layers=(2,), stored=stored.layers)
  passes = made.law(layers=(2,))
  frozen = passes.frozen(made.target().params)
  np.testing.assert_allclose(
    jax.jit(reads.states)(frozen, one)[:, :-1],
    jax.jit(passes.states)(frozen, one)[:, :-1],
    rtol=1e-2,  # They are stored as bfloat16.
    atol=1e-2,
  )
  assert reads.is_stored and not passes.is_stored


def test_a_piece_of_a_stored_text_has_its_own_states(tmp_path):
  corpus = made.corpus(texts=3, length=40)
  made.distilled(tmp_path, corpus, (2,))
  stored = data.from_shards(tmp_path, target=made.target())
  pieces = stored.cut(16)
  hidden = made.states(corpus, (2,))
  for n in range(len(pieces)):
    text, first = int(pieces.rows[n]), int(pieces.skipped[n])
    length = int(pieces.lengths[n])
    np.testing.assert_allclose(
      np.asarray(pieces.hidden(n, 0, length), np.float32),
      hidden[text][first : first + length],
      rtol=1e-2,
      atol=1e-2,
    )


def test_folders_of_states_are_one_corpus(tmp_path):
  parts = [made.corpus(texts=3, length=20, seed=n) for n in range(2)]
  read = []
  for n, part in enumerate(parts):
    made.distilled(tmp_path / str(n), part, (2,))
    read.append(data.from_shards(tmp_path / str(n), target=made.target()))
  both = data.join(read)
  for n in range(6):
    found = np.asarray(both.hidden(n, 0, 20), np.float32)
    wanted = np.asarray(read[n // 3].hidden(n % 3, 0, 20), np.float32)
    np.testing.assert_array_equal(found, wanted)
  with pytest.raises(ValueError, match="made has states of none; give data"):
    data.join([both, parts[0]])


def test_data_of_another_target_are_refused(tmp_path):
  import json

  made.distilled(tmp_path, made.corpus(texts=2), (2,))
  path = tmp_path / "manifest.json"
  fields = json.loads(path.read_text())
  fields["target"]["vocab_size"] = 99
  path.write_text(json.dumps(fields))
  with pytest.raises(ValueError, match="a target with vocab_size 99, and that"):
    data.from_shards(tmp_path, target=made.target())


def test_a_truncated_shard_is_named(tmp_path):
  made.distilled(tmp_path, made.corpus(texts=2), (2,))
  shard = sorted(tmp_path.glob("*.npz"))[0]
  shard.write_bytes(shard.read_bytes()[:-100])
  with pytest.raises(ValueError, match=f"{shard.name} is damaged"):
    data.from_shards(tmp_path, target=made.target())
