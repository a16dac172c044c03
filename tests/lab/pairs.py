"""A pair that compiles in seconds, of sizes that tiles divide."""

import dataclasses

import pytest

from specjax.lab import lower, strategy, topology
from specjax.models import config


def sizes(d_model, layers, heads):
  return config.from_hugging_face(
    {
      "architectures": ["LlamaForCausalLM"],
      "model_type": "llama",
      "vocab_size": 4096,
      "hidden_size": d_model,
      "intermediate_size": 4 * d_model,
      "num_hidden_layers": layers,
      "num_attention_heads": heads,
      "num_key_value_heads": heads,
      "head_dim": 128,
      "hidden_act": "silu",
      "rms_norm_eps": 1e-5,
      "rope_theta": 10_000.0,
      "max_position_embeddings": 2048,
      "tie_word_embeddings": True,
    }
  )


PAIR = lower.Pair(target=sizes(2048, 6, 16), draft=sizes(1024, 2, 8))


def case(where="v5e:2x2", how="tensor", **others):
  made = lower.Case(
    topology=topology.parse(where),
    strategy=strategy.parse(how),
    proposer="draft_model",
    batch=2,
    lookahead=4,
    context=512,
    live=512,
  )
  return dataclasses.replace(made, **others)


needs_compiler = pytest.mark.skipif(
  not topology.is_installed(),
  reason="the TPU compiler is not installed: pip install 'specjax[lab]'",
)
