"""Nothing compiles after warm-up (RULES.md 27), by JAX's own events."""

import contextlib
import dataclasses
import functools

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.engine.loop import Engine
from specjax.verifiers.rejection import Rejection
from tests import engines, table_model
from tests.engines import CAPACITY, LOOKAHEAD, VOCAB, WIDTHS, request

# Every compilation of any program ends in this one.
COMPILED = "/jax/core/compile/backend_compile_duration"
PARAMS = table_model.make_table(VOCAB, seed=2)


@contextlib.contextmanager
def compilations():
  """A list that fills with the functions compiled inside the block."""
  found = []
  listening = True

  def listen(event, duration, **about):
    del duration
    if listening and event == COMPILED:
      found.append(about.get("fun_name", event))

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield found
  finally:
    # Listeners are removed for good or not at all: this one falls silent.
    listening = False


def test_a_compilation_is_counted():
  with compilations() as found:
    jax.jit(lambda x: x * 3 + 1)(jnp.zeros((7,)))
  assert found


def mixed(count):
  """Requests that differ in everything a request can differ in."""
  draws = np.random.default_rng(0)

  def pick(*values):
    return values[draws.integers(len(values))]

  for index in range(count):
    size = int(draws.integers(1, 40))
    temperature = pick(0.0, 0, 0.3, 1.0, 3)
    yield request(
      draws.integers(0, VOCAB, size),
      index,
      max_new_tokens=int(draws.integers(1, 30)),
      lookahead=pick(None, *range(LOOKAHEAD + 1)),
      temperature=temperature,
      top_k=pick(0, 1, 3, 2**31 - 1),
      top_p=pick(1.0, 1, 0.5, 1e-6),
      min_p=pick(0.0, 0.2, 1),
      seed=pick(None, 0, -1, 2**63, index),
      stop=pick((), ("a",), ("bcd", "ef")),
      repetition_penalty=pick(1.0, 1, 1.3, 0.5),
      presence_penalty=pick(0.0, 0, 2, -0.5),
      frequency_penalty=pick(0.0, 0.1, -2),
      logit_bias=pick({}, {1: -100}, dict.fromkeys(range(VOCAB), 0.5)),
      logprobs=pick(None, 0, 1, 3),
    )


def bad():
  """Requests that are refused."""
  yield request((), "empty")
  yield request((1,) * 500, "long")
  yield request((VOCAB,), "range")


@pytest.mark.parametrize("whole", (False, True))
def test_rule_27_no_request_compiles_anything_after_warm_up(whole):
  """200 mixed requests, failing ones, and a run that is broken off."""
  proposer, proposer_params = engines.drafter("sampled", PARAMS)
  # The first engine's programs are its own: no other test has warmed them.
  make = functools.partial(Engine, verifier=Rejection())
  if whole:
    make = functools.partial(engines.build, whole_batch_prefill=True)
  engine = make(
    table_model.TableModel(VOCAB),
    PARAMS,
    proposer,
    proposer_params,
    slots=3,
    capacity=CAPACITY,
    prefill_widths=WIDTHS,
    tokenizer=engines.Letters(),
    stop_ids=(0, 6),
    top_logprobs=3,
  )
  nan = (jnp.full_like(PARAMS[0], jnp.nan),)
  engine.warmup()
  with compilations() as found:
    done = engines.complete(engine, [*mixed(200), *bad()])
    assert len(done) == 203
    for event in engine.run([request((1,), "many", temperature=1, n=7)]):
      assert event.sample in range(7)
    events = engine.run(mixed(20))
    for _ in range(15):
      next(events)
    events.close()
    engines.complete(engine, mixed(5))
    engine.warmup()
    # Also where every row fails.
    engine.params = dataclasses.replace(engine.params, target=nan)
    failed = engines.complete(engine, mixed(8))
  assert not found
  reasons = {row.finish_reason for row in done.values()}
  assert reasons == {"stop", "length", "error"}
  assert sum(row.accepted for row in done.values()) > 100
  assert all("not finite" in row.error for row in failed.values())
