"""Tiny targets with heads of every kind, made of random numbers."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.models.heads import eagle

VOCAB, KEPT = 24, 13
CONFIG = dict(
  architectures=["LlamaForCausalLM"],
  vocab_size=VOCAB,
  hidden_size=16,
  intermediate_size=20,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  max_position_embeddings=256,
  rms_norm_eps=1e-3,
  tie_word_embeddings=False,
)
# (whether it fuses, whether the vocabulary is reduced).
KINDS = ((False, False), (False, True), (True, False), (True, True))


@functools.cache
def target(**changes):
  """(model, params); the norms' weights are not ones."""
  model = decoder.build(config_lib.from_hugging_face({**CONFIG, **changes}))
  return model, varied(model.paths, model.init(5))


def varied(paths, params, seed=0):
  """Parameters of which nothing is at its beginning's ones or zeros."""
  draws = np.random.default_rng(seed)
  return tuple(
    value + jnp.asarray(draws.normal(0, 0.3, value.shape), value.dtype)
    if path.endswith(("norm.weight", ".bias"))
    else value
    for path, value in zip(paths, params, strict=True)
  )


def kept_ids():
  """int64 [KEPT], ascending."""
  return np.sort(np.random.default_rng(2).permutation(VOCAB)[:KEPT])


@functools.cache
def head(fuses, reduced, bias=False, **changes):
  """(model, params, kept or None) of an EAGLE head on `target`."""
  own, params = target(**changes)
  config = eagle.small(
    own.config, fuses=fuses, draft_vocab=KEPT if reduced else None
  )
  config = dataclasses.replace(config, fc_bias=bias)
  model = eagle.build(config, own)
  kept = kept_ids() if reduced else None
  drawn = varied(model.head.paths, model.head.init(7), seed=1)
  # Its guesses are to differ from each other more than random ones do.
  louder = tuple(
    value * 3 if path == "head.weight" else value
    for path, value in zip(model.head.paths, drawn, strict=True)
  )
  return model, model.complete(louder, params, kept), kept
