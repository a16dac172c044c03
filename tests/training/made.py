"""A tiny target, data of its own, and a trainer of a draft for it."""

import functools
import pathlib
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from specjax import pretrained
from specjax.checkpoints import random_folder
from specjax.models import presets
from specjax.training import (
  data,
  objective,
  optimizer,
  recipes,
  shard_writer,
  shards,
  trainer,
)

V, LAYERS, WIDTH = 264, 2, 64
LENGTH = 32
LLAMA = {
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": V,
  "hidden_size": WIDTH,
  "intermediate_size": 128,
  "num_hidden_layers": LAYERS,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "rms_norm_eps": 1e-5,
  "rope_theta": 10_000.0,
  "max_position_embeddings": 256,
  "tie_word_embeddings": True,
}


@functools.cache
def target(dtype="float32"):
  folder = pathlib.Path(tempfile.mkdtemp(prefix="specjax-target-"))
  with mock.patch.dict(presets.PRESETS, {"tiny": LLAMA}):
    random_folder.write(folder, "tiny", seed=1)
  return pretrained.load(folder, dtype=dtype)


def corpus(texts=24, length=40, answer=0, seed=0):
  """Texts in which the next token is known: v, v + 1, v + 2, …"""
  draws = np.random.default_rng(seed)
  first = draws.integers(0, 60, texts)
  tokens = (first[:, None] + np.arange(length)) % 100
  return data.Corpus(
    tokens=tokens.reshape(-1).astype(np.int32),
    starts=np.arange(texts + 1, dtype=np.int64) * length,
    answer=np.full((texts,), answer, np.int32),
    name="made",
  )


def states(made, layers):
  """What the target's layers are after each token: a list, a text each."""
  own = target()
  tokens = jnp.asarray(made.tokens.reshape(len(made), -1))
  return np.asarray(_states(own.params, tokens, layers))


@functools.partial(jax.jit, static_argnums=2)
def _states(params, tokens, layers):
  return target().model(params, tokens, None, layers).features


@jax.jit
def logits(params, tokens, positions):
  """What the target says of packed rows."""
  return target().model(params, tokens, None, positions=positions).logits


def distilled(folder, made, layers):
  """The corpus as a folder of shards with the target's states."""
  own = target()
  about = {
    "target": {
      "tokenizer": own.tokenizer.fingerprint(),
      "vocab_size": V,
      "layers": LAYERS,
      "d_model": WIDTH,
    },
    "hidden": list(layers),
  }
  hidden = states(made, layers)
  with shard_writer.Writer(folder, about, shard_bytes=30_000) as writer:
    for n, tokens in enumerate(made.tokens.reshape(len(made), -1)):
      writer.append(
        shards.Row(
          id=str(n),
          tokens=tokens,
          answer=int(made.answer[n]),
          temperature=0.0,
          hidden=hidden[n],
        )
      )
    writer.finish()


def law(kept=None, layers=(LAYERS,), stored=(), dtype="float32"):
  return objective.Law(
    target=target(dtype).model, kept=kept, layers=layers, stored=stored
  )


def draft(weights=None, kept=None, stored=(), dtype="float32", **how):
  how = how or dict(layers=(0,))
  return recipes.draft(
    target(dtype),
    law(kept, stored=stored, dtype=dtype),
    weights or {"next_token": 1.0},
    placement=None,
    **how,
  )


def options(steps=8, **how):
  rates = dict(learning_rate=3e-3, steps=steps, warmup=1)
  how = dict(batch=4, log_every=2, evaluate_every=4, save_every=3) | how
  return trainer.Options(optimizer=optimizer.Options(**rates), **how)
