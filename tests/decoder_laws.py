"""A real decoder, so small that its laws can be enumerated.

For proposers that read a target's own layers or states, which the table model
lacks. The reference is one pass over whole texts, without a cache.
"""

import collections
import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.benchmark import compiles
from specjax.engine.loop import Engine
from specjax.engine.request import Completion, Request, SamplingParams
from specjax.models import config as config_lib
from specjax.models import decoder
from tests import engines, exact
from tests.chi_squared import p_value
from tests.engines import request

VOCAB, LOOKAHEAD, LAYERS = 3, 2, 2
TOKENS = 2 * LOOKAHEAD + 3  # at least three steps
CAPACITY = 24
PROMPT = (0, 1, 2, 0, 1)
TARGET = decoder.build(
  config_lib.from_hugging_face(
    dict(
      architectures=["LlamaForCausalLM"],
      vocab_size=VOCAB,
      hidden_size=8,
      intermediate_size=12,
      num_hidden_layers=LAYERS,
      num_attention_heads=2,
      num_key_value_heads=1,
      max_position_embeddings=64,
      tie_word_embeddings=False,
    )
  )
)
# The head's rows are few: without a factor all laws would be much alike.
PARAMS = tuple(
  value * 2 if path == "head.weight" else value
  for path, value in zip(TARGET.paths, TARGET.init(3), strict=True)
)


def engine(proposer, proposer_params=(), **options) -> Engine:
  return engines.build(
    TARGET,
    PARAMS,
    proposer,
    proposer_params,
    **{"slots": 64, **options},
    stop_ids=(),
    capacity=CAPACITY,
    prefill_widths=(4,),
    whole_batch_prefill=True,
  )


def texts() -> np.ndarray:
  """Every text that PROMPT and TOKENS more ids make: int32 [n, T]."""
  ends = itertools.product(range(VOCAB), repeat=TOKENS)
  return np.asarray([(*PROMPT, *end) for end in ends], np.int32)


class Laws:
  """Laws of whole histories, as `exact.Chain` has them of a table's."""

  def __init__(self, logits, settings):
    """`logits` gives those after each prefix of texts int32 [B, T]."""
    self._known = {}
    every = texts()
    found = np.asarray(logits(jnp.asarray(every)), np.float64)
    for text, row in zip(every.tolist(), found, strict=True):
      for size in range(len(PROMPT) - 1, len(text)):
        key = tuple(text[:size])
        if key not in self._known:
          self._known[key] = exact.filtered(row[size - 1], **settings)

  def law(self, history):
    return self._known[tuple(history)]


def logits_of(model, params=PARAMS):
  return jax.jit(lambda texts: model(params, texts, None).logits)


def sampled(made: Engine, settings, samples, seed=0):
  """A counter of (tokens, sizes of their blocks)."""
  return sampled_of(made, PROMPT, TOKENS, settings, samples, seed)


def sampled_of(made: Engine, prompt, count, settings, samples, seed=0):
  """The same of `count` tokens after any prompt."""
  requests = (
    Request(
      id=str(i),
      prompt=prompt,
      max_new_tokens=count,
      sampling=SamplingParams(**settings, seed=(seed << 32) + i),
    )
    for i in range(samples)
  )
  blocks, sizes = collections.Counter(), collections.defaultdict(tuple)
  for piece in made.run(requests):
    if isinstance(piece, Completion):
      blocks[piece.token_ids, sizes.pop(piece.id)] += 1
    else:
      sizes[piece.id] += (len(piece.token_ids),)
  assert blocks.total() == samples
  return blocks


def p_values(made: Engine, propose, settings, samples, seed=0, beside=None):
  """Of the joint law of the tokens, and of tokens and blocks.

  Args:
    made: an engine of TARGET.
    propose: of settings, proposals as `exact.drafts` gives them.
    settings: of sampling.
    samples, seed: how many, and from where.
    beside: siblings, as `exact.step_law` takes them.
  """
  target = Laws(logits_of(TARGET), settings)
  seen = sampled(made, settings, samples, seed)
  tokens = exact.tokens_law(target, PROMPT, TOKENS)
  blocks = exact.blocks_law(
    target, propose(settings), PROMPT, TOKENS, LOOKAHEAD, beside
  )
  p = (
    p_value(exact.marginal(seen, 0), tokens, samples),
    p_value(seen, blocks, samples),
  )
  print("p-values of tokens and of blocks: {:.3g}, {:.3g}".format(*p))
  return p


def rows():
  """Prompts up to the context's end, greedy beside sampled, all lookaheads."""
  draws = np.random.default_rng(0)
  sizes = (1, 2, 4, 5, 9, *range(CAPACITY - LOOKAHEAD - 2, CAPACITY))
  return [
    request(
      draws.integers(0, VOCAB, size),
      f"row {size}",
      max_new_tokens=1 + 3 * size % 13,
      lookahead=(None, None, 1)[size % 3],
      temperature=size % 2,
      top_p=(1.0, 0.8)[size % 2],
      repetition_penalty=(1.0, 1.3)[size % 3 == 2],
    )
    for size in sizes
  ]


def check_rows(made: Engine, least=20):
  """RULES 11, 16, 25, 27: greedy rows are plain decoding's, each row is the
  same alone, none runs past the context, and no other compiles anything; more
  than `least` tokens are drafted.
  """
  every = rows()
  plain = [dataclasses.replace(row, lookahead=0) for row in every]
  for some in (every, plain):  # warms all but the copying of samples
    engines.complete(made, some[-1:])
  with compiles.counted() as found:
    done = engines.complete(made, every)
    plainly = engines.complete(made, plain)
    for row in every[::2]:
      alone = engines.complete(made, [row])[row.id]
      assert alone.token_ids == done[row.id].token_ids
  assert not found
  for row in every:
    got, size = done[row.id], len(row.prompt)
    assert len(got.token_ids) == min(row.max_new_tokens, CAPACITY - size)
    if not row.sampling.temperature:
      assert got.token_ids == plainly[row.id].token_ids
  assert sum(row.drafted for row in done.values()) > least


def check_laws(made: Engine, propose):
  """`p_values` of many samples at several settings."""
  found = []
  for seed, settings in enumerate(
    ({"temperature": 0.6}, {"temperature": 2.0, "top_k": 2}, {"temperature": 1})
  ):
    found += p_values(made, propose, settings, 40_000, seed)
  assert min(found) * len(found) > 0.01


@functools.cache
def drafts_of(layers):
  """Proposals of some of TARGET's layers, of settings."""
  logits = logits_of(TARGET.only(layers))
  return lambda settings: exact.drafts(Laws(logits, settings))
