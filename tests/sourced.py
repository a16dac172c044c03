"""A tiny encoder-decoder and its drafts, whose laws can be enumerated.

The reference is one pass of each whole output over a source that was encoded
alone: no engine, no blocks, no neighbours.
"""

import functools
import itertools

import jax
import numpy as np

from specjax.engine.loop import Engine
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.models.heads import eagle as eagle_lib
from specjax.models.heads import medusa as medusa_lib
from specjax.proposers.draft_model import DraftModel
from specjax.proposers.eagle import Eagle
from specjax.proposers.layer_skip import LayerSkip
from specjax.proposers.medusa import Medusa
from specjax.proposers.ngram import Ngram
from specjax.proposers.none import NoProposer
from tests import engines, exact

VOCAB, LOOKAHEAD, START = 8, 3, 2
CAPACITY = 24
WIDTHS = (4,)
KINDS = ("none", "draft_model", "itself", "ngram", "layer_skip")
HEADS = ("medusa", "eagle", "eagle3")


def build(vocab=VOCAB, *, layers=2, d_model=8, seed=0, placement=None, heads=2):
  """(model, parameters) of random weights."""
  model = decoder.build(
    config_lib.from_hugging_face(
      dict(
        architectures=["T5ForConditionalGeneration"],
        vocab_size=vocab,
        d_model=d_model,
        d_kv=4,
        d_ff=16,
        num_layers=1,
        num_decoder_layers=layers,
        num_heads=heads,
        relative_attention_num_buckets=4,
        relative_attention_max_distance=9,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=START,
      )
    ),
    placement=placement,
  )
  # Without a factor all laws would be much alike.
  params = tuple(
    value * 2 if path == "head.weight" else value
    for path, value in zip(model.paths, model.init(seed), strict=True)
  )
  return model, params


@functools.cache
def pair(vocab=VOCAB):
  """A target and a draft that half agrees with it."""
  target, params = build(vocab, seed=3)
  draft, draft_params = build(vocab, layers=1, seed=3)
  whole = dict(zip(target.paths, params, strict=True))
  draft_params = tuple(whole[path] for path in draft.paths)
  return (target, params), (draft, draft_params)


def drafter(kind, vocab=VOCAB, lookahead=LOOKAHEAD):
  """(proposer, its parameters) for the target of `pair`."""
  (target, params), (draft, draft_params) = pair(vocab)
  sizes = dict(lookahead=lookahead, vocab_size=vocab)
  if kind in HEADS:
    return head(kind, vocab, lookahead)
  return {
    "none": (NoProposer(), ()),
    "draft_model": (DraftModel(model=draft, **sizes), draft_params),
    "siblings": (DraftModel(model=draft, siblings=3, **sizes), draft_params),
    "itself": (DraftModel(model=target, **sizes), params),
    "ngram": (
      Ngram(lookahead=lookahead, shortest=1, reads_source=True),
      (),
    ),
    "layer_skip": (LayerSkip(model=target, layers=(1,), **sizes), ()),
  }[kind]


def head(kind, vocab=VOCAB, lookahead=LOOKAHEAD):
  """(proposer, its parameters) of random heads on the target of `pair`."""
  (target, params), _ = pair(vocab)
  if kind == "medusa":
    model = medusa_lib.build(
      medusa_lib.MedusaConfig(
        d_model=target.config.d_model, vocab_size=vocab, heads=lookahead
      ),
      target,
    )
    proposer = Medusa(model=model, lookahead=lookahead)
  else:
    fuses = kind == "eagle3"
    model = eagle_lib.build(eagle_lib.small(target.config, fuses=fuses), target)
    proposer = Eagle(model=model, lookahead=lookahead)
  own = model.begin(params) if kind == "medusa" else model.head.init(7)
  return proposer, model.complete(own, params)


def engine(kind, vocab=VOCAB, lookahead=LOOKAHEAD, **options) -> Engine:
  (target, params), _ = pair(vocab)
  options = {"capacity": CAPACITY, "prefill_widths": WIDTHS, **options}
  return engines.build(
    target, params, *drafter(kind, vocab, lookahead), **options
  )


@functools.cache
def _passes(model):
  def run(params, source, size, outputs):
    cache = model.init_cache(1, CAPACITY)
    cache = model.encode(params, source, size, cache)
    one = lambda text: model(params, text[None], cache).logits[0]
    return jax.lax.map(one, outputs)

  return jax.jit(run)


def logits(model, params, source, outputs) -> np.ndarray:
  """Of whole outputs [n, T], which begin with START: [n, T, V]."""
  padded = np.zeros((1, CAPACITY), np.int32)
  padded[0, : len(source)] = source
  size = np.asarray([len(source)], np.int32)
  return np.asarray(_passes(model)(params, padded, size, outputs))


def greedy(source, count, vocab=VOCAB) -> tuple[int, ...]:
  """The target's own output."""
  (target, params), _ = pair(vocab)
  output = np.zeros((1, CAPACITY), np.int32)
  output[0, 0] = START
  for at in range(count):
    output[0, at + 1] = logits(target, params, source, output)[0, at].argmax()
  return tuple(output[0, 1 : count + 1].tolist())


class Laws:
  """Laws of what follows each output, as `exact.Chain` has them of a table."""

  def __init__(self, model, params, source, settings, count):
    vocab = model.vocab_size
    outputs = [
      (START, *end) for end in itertools.product(range(vocab), repeat=count)
    ]
    self._known = {}
    found = logits(model, params, source, np.asarray(outputs, np.int32))
    for output, row in zip(outputs, found.astype(np.float64), strict=True):
      for size in range(1, len(output) + 1):
        if output[:size] not in self._known:
          law = exact.filtered(row[size - 1], **settings)
          self._known[output[:size]] = law

  def law(self, history):
    return self._known[tuple(history)]
