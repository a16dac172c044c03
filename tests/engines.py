"""Engines over the table model, one for every kind of drafter.

Compiled programs are shared by all engines of one kind, whatever their
parameters and host settings: a test makes its own engine at no cost.
"""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp

from specjax.engine import programs
from specjax.engine.loop import Engine
from specjax.engine.request import Chunk, Completion, Request, SamplingParams
from specjax.proposers.draft_model import DraftModel
from specjax.proposers.ngram import Ngram
from specjax.proposers.none import NoProposer
from specjax.verifiers.rejection import Rejection
from tests import table_model

VOCAB = 8
LOOKAHEAD = 4
# Narrow chunks, so that short prompts already take several of them.
WIDTHS = (3, 8)
# With the headroom this fills the cache's 128 positions to the last: a pass
# that ran past them would be clamped, and clobber what the table looks up.
CAPACITY = 128 - max(LOOKAHEAD + 1, *WIDTHS)
# Their number is a shape, so engines that need none take two that never come.
NO_STOPS = (1000, 1001)
DRAFTERS = ("oracle", "wrong", "sampled", "itself", "ngram", "none")


def drafter(kind: str, params):
  """(proposer, its parameters) for a table target with `params`."""
  scripted = table_model.Scripted(lookahead=LOOKAHEAD, vocab_size=VOCAB)
  model = DraftModel(
    model=table_model.TableModel(VOCAB), lookahead=LOOKAHEAD, vocab_size=VOCAB
  )
  # Of the best token's neighbour: the first draft is never the greedy one.
  wrong = (jnp.roll(params[0], 1, axis=-1),)
  return {
    "oracle": (scripted, params),
    "wrong": (scripted, wrong),
    "sampled": (model, table_model.make_table(VOCAB, seed=99)),
    "itself": (model, params),
    "ngram": (Ngram(lookahead=LOOKAHEAD, shortest=1), ()),
    "none": (NoProposer(), ()),
  }[kind]


_compile = programs.compile_programs
_admit = jax.jit(programs.admit, donate_argnums=0)
_copy = jax.jit(programs.copy_row, donate_argnums=0)


@functools.cache
def _programs(target, proposer, verifier, *, widths, whole_batch, top_logprobs):
  made = _compile(
    target,
    proposer,
    verifier,
    widths=widths,
    whole_batch=whole_batch,
    top_logprobs=top_logprobs,
  )
  # They know nothing of a proposer but the shape of its state.
  made = dataclasses.replace(made, admit=_admit, copy=_copy)
  if whole_batch:  # Only the prefill is another.
    base = _programs(
      target,
      proposer,
      verifier,
      widths=widths,
      whole_batch=False,
      top_logprobs=top_logprobs,
    )
    made = dataclasses.replace(base, prefill=made.prefill)
  return made


def build(target, params, proposer, proposer_params, **options) -> Engine:
  """An engine whose programs any other of its kind may have compiled."""
  options = {
    "slots": 3,
    "capacity": CAPACITY,
    "prefill_widths": WIDTHS,
    "stop_ids": NO_STOPS,
    **options,
  }
  with mock.patch.object(programs, "compile_programs", _programs):
    return Engine(
      target,
      params,
      proposer,
      proposer_params,
      verifier=Rejection(),
      **options,
    )


def make(kind: str, params, **options) -> Engine:
  """An engine whose target is a table, with one of DRAFTERS."""
  target = table_model.TableModel(VOCAB)
  return build(target, params, *drafter(kind, params), **options)


# Fields of a request; what else a test names are sampling settings.
FIELDS = ("max_new_tokens", "lookahead", "n", "logprobs")


def request(prompt, id="0", *, stop=(), **settings):
  """A request; what is not named here are sampling settings."""
  own = {key: settings.pop(key) for key in FIELDS if key in settings}
  return Request(
    prompt=tuple(int(token) for token in prompt),
    id=str(id),
    stop=tuple(stop),
    sampling=SamplingParams(**settings),
    **{"max_new_tokens": 20, **own},
  )


def complete(engine: Engine, requests) -> dict[str, Completion]:
  """Completions by id; what was streamed must add up to them."""
  done, chunks = {}, {}
  for event in engine.run(requests):
    if isinstance(event, Chunk):
      chunks.setdefault(event.id, []).append(event)
      continue
    assert event.id not in done
    done[event.id] = event
    pieces = chunks.get(event.id, [])
    assert "".join(piece.text for piece in pieces) == event.text
    streamed = [token for piece in pieces for token in piece.token_ids]
    assert tuple(streamed) == event.token_ids
    check_counts(event, engine.lookahead)
  return done


def check_counts(done: Completion, lookahead: int) -> None:
  """RULES 14, 30: counts are of the ids that are there, and add up."""
  assert len(done.token_times_s) == len(done.token_ids)
  if done.logprobs is not None:
    assert len(done.logprobs) == len(done.token_ids)
  assert list(done.token_times_s) == sorted(done.token_times_s)
  assert done.accepted <= done.drafted
  assert done.accepted <= len(done.token_ids) <= done.accepted + done.steps
  if done.error is not None and not done.prompt_tokens:
    return
  if done.steps:
    assert len(done.drafted_per_position) == lookahead
    assert len(done.accepted_per_position) == lookahead
  assert sum(done.drafted_per_position) == done.drafted
  assert sum(done.accepted_per_position) == done.accepted
  # A place is drafted, and accepted, only after the one before it.
  for counts in (done.drafted_per_position, done.accepted_per_position):
    assert list(counts) == sorted(counts, reverse=True)
  pairs = zip(
    done.accepted_per_position, done.drafted_per_position, strict=True
  )
  assert all(accepted <= drafted for accepted, drafted in pairs)


def counting_table(seed: int = 0):
  """A table whose greedy continuation counts: t, t + 1, ..., 0 again."""
  (table,) = table_model.make_table(VOCAB, seed, spread=0.5)
  for token in range(VOCAB):
    table = table.at[:, :, token, (token + 1) % VOCAB].add(20.0)
  return (table,)


class Letters:
  """A tokenizer whose ids are letters: 0 is "a". No id is special."""

  special_ids: frozenset[int] = frozenset()
  byte_ids: frozenset[int] = frozenset()
  streamable = True

  def has_token(self, token_id):
    return True

  def decode(self, ids, skip_special=True):
    del skip_special
    return "".join(chr(ord("a") + token) for token in ids)
