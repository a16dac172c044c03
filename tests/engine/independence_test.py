"""A row depends on its prompt, seed and settings only (RULES.md 7, 11, 19)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from tests import engines, table_model
from tests.engines import VOCAB, request

PARAMS = table_model.make_table(VOCAB, seed=7)
KINDS = ("sampled", "ngram", "none")

# Greedy beside sampled, short beside long, drafting beside plain, seeded
# beside unseeded, penalised beside not: name -> (prompt, settings).
ROWS = {
  "greedy": ((1, 2, 3), dict(max_new_tokens=25)),
  "greedy long": (tuple(range(8)) * 4, dict(max_new_tokens=9)),
  "hot": ((5,), dict(temperature=1.3, max_new_tokens=30)),
  "top k": ((6, 0), dict(temperature=1.0, top_k=3, seed=5)),
  "top p": ((4,) * 17, dict(temperature=3.0, top_p=0.7, max_new_tokens=31)),
  "min p": ((2, 2, 7), dict(temperature=0.8, min_p=0.1, seed=2**40)),
  "one draft": ((0, 7), dict(temperature=1.0, lookahead=1)),
  "no drafts": ((3, 1), dict(temperature=1.0, lookahead=0, seed=-1)),
  "greedy two": ((7, 7, 1), dict(lookahead=2, max_new_tokens=40)),
  "repeats": ((1, 2, 3, 1), dict(repetition_penalty=1.4, frequency_penalty=1)),
  "biased": ((0, 5), dict(temperature=1.0, logit_bias={3: 2, 5: -100})),
  "present": (
    (3,) * 9,
    dict(temperature=2.0, presence_penalty=-1.5, top_p=0.9, seed=3),
  ),
  "one token": ((6,), dict(temperature=2.0, max_new_tokens=1)),
}


def rows(kind, names=ROWS):
  made = []
  for name in names:
    prompt, settings = ROWS[name]
    if kind == "none":
      settings = {**settings, "lookahead": None}
    made.append(request(prompt, name, **settings))
  return made


def facts(done):
  """All of a completion that must not depend on anything around it."""
  return {
    name: (
      row.token_ids,
      row.finish_reason,
      row.steps,
      row.drafted_per_position,
      row.accepted_per_position,
    )
    for name, row in done.items()
  }


@functools.cache
def alone(kind):
  """Each row by itself, in the first slot."""
  found = {}
  for row in rows(kind):
    engine = engines.make(kind, PARAMS)
    found |= facts(engines.complete(engine, [row]))
  return found


@pytest.mark.parametrize("kind", KINDS)
def test_rule_7_11_rows_together_in_any_order_equal_each_row_alone(kind):
  engine = engines.make(kind, PARAMS)
  names = list(ROWS)
  orders = [names, names[::-1]]
  orders += [list(np.random.default_rng(n).permutation(names)) for n in (0, 1)]
  for order in orders:
    # One engine, so slots are refilled from run to run as well.
    done = engines.complete(engine, rows(kind, order))
    assert facts(done) == alone(kind)


@pytest.mark.parametrize("slot", (1, 2))
@pytest.mark.parametrize("kind", KINDS)
def test_rule_11_a_row_is_bit_equal_in_any_slot(kind, slot):
  engine = engines.make(kind, PARAMS)
  fill = [request((1,), f"fill {n}", max_new_tokens=60) for n in range(slot)]
  for row in rows(kind):
    done = engines.complete(engine, [*fill, row])
    assert facts({row.id: done[row.id]})[row.id] == alone(kind)[row.id]


@pytest.mark.parametrize("steps", (2, 7))
@pytest.mark.parametrize("kind", KINDS)
def test_rule_11_steps_per_sync_change_no_row(kind, steps):
  engine = engines.make(kind, PARAMS, steps_per_sync=steps)
  assert facts(engines.complete(engine, rows(kind))) == alone(kind)


def test_rule_11_prefilling_all_slots_at_once_changes_no_row():
  engine = engines.make("sampled", PARAMS, whole_batch_prefill=True)
  done = engines.complete(engine, rows("sampled"))
  assert facts(done) == alone("sampled")


@pytest.mark.parametrize("kind", KINDS)
def test_rule_7_greedy_rows_are_the_targets_own_beside_any_neighbours(kind):
  done = engines.complete(engines.make(kind, PARAMS), rows(kind))
  for name, (prompt, settings) in ROWS.items():
    if name.startswith("greedy"):
      count = settings["max_new_tokens"]
      expected = table_model.greedy(PARAMS, prompt, count)
      assert done[name].token_ids == tuple(expected)


def test_rule_19_rows_that_accept_unequally_equal_each_row_alone():
  """The premise of the tests above: these rows do accept unequally."""
  rates = {
    name: sum(accepted) / sum(drafted)
    for name, (_, _, _, drafted, accepted) in alone("sampled").items()
    if sum(drafted)
  }
  assert len(set(rates.values())) > 3
  assert max(rates.values()) > min(rates.values()) + 0.2


def sample(kind="sampled", *, id="row", engine_seed=0, before=0, **settings):
  """40 tokens at T = 1.5, after `before` other rows."""
  engine = engines.make(kind, PARAMS, seed=engine_seed)
  row = request((1, 2), id, temperature=1.5, max_new_tokens=40, **settings)
  others = [request((3,), f"other {n}", temperature=1.0) for n in range(before)]
  return engines.complete(engine, [*others, row])[id].token_ids


@pytest.mark.parametrize("kind", KINDS)
def test_rule_11_a_seed_repeats_and_seeds_differ(kind):
  seeds = (0, 1, 5, 5 + 2**32, -1, 2**32 - 1, 2**63, None)
  found = {}
  for seed in seeds:
    tokens = sample(kind, seed=seed)
    assert sample(kind, seed=seed, before=4) == tokens
    found[seed] = tokens
  assert len(set(found.values())) == len(seeds)
  # A seed overrides the engine's and the id.
  assert sample(kind, seed=5, id="another", engine_seed=3) == found[5]
  # -1 is the 64-bit word of all ones.
  assert sample(kind, seed=2**64 - 1) == found[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_rule_11_an_unseeded_row_depends_on_its_id_and_the_engines_seed(kind):
  base = sample(kind)
  assert sample(kind, before=5) == base
  assert sample(kind, id="another") != base
  assert sample(kind, engine_seed=1) != base
  assert sample(kind, id="another", engine_seed=1) != sample(
    kind, engine_seed=1
  )


def test_rule_7_a_law_is_bit_equal_beside_neighbours_with_filters():
  """Dividing by a sum that rounds to other than 1 must not reach them."""
  logits = np.random.default_rng(0).normal(0, 2, (4, 3, 1000))
  plain = sampling.RowSettings.greedy(4)
  plain = {**vars(plain), "temperature": jnp.asarray([0.0, 0.7, 1.0, 1.3])}
  probs = jax.jit(lambda s: sampling.probs(jnp.float32(logits), s))
  base = np.asarray(probs(sampling.RowSettings(**plain)))
  for name, value in (("top_k", 7), ("top_p", 0.6), ("min_p", 0.05)):
    # Only the last row filters.
    one = plain[name].at[3].set(value)
    law = probs(sampling.RowSettings(**{**plain, name: one}))
    np.testing.assert_array_equal(law[:3], base[:3])
    assert np.count_nonzero(law[3]) < np.count_nonzero(base[3])


def test_rule_7_a_filtered_law_is_bit_equal_beside_other_filters():
  logits = np.random.default_rng(1).normal(0, 2, (2, 3, 1000))
  probs = jax.jit(sampling.probs)

  def law(beside):
    plain = vars(sampling.RowSettings.greedy(2))
    settings = {**plain, "temperature": jnp.asarray([1.1, 0.9])}
    settings["top_p"] = jnp.asarray([0.9, 1.0])
    for name, value in beside.items():
      settings[name] = settings[name].at[1].set(value)
    return probs(jnp.float32(logits), sampling.RowSettings(**settings))[0]

  base = np.asarray(law({}))
  for beside in ({"top_k": 4}, {"min_p": 0.2}, {"top_k": 9, "min_p": 0.3}):
    np.testing.assert_array_equal(law(beside), base)
