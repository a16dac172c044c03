"""Llama 2 70B with Llama 2 7B as its draft, one row at a time.

Command:   specjax-generate --config=configs/llama2_70b.py \\
             --prompts=gs://bucket/prompts.jsonl \\
             --output=gs://bucket/answers.jsonl
           on every worker, which `launch/tpu_vm.sh run` does
Models:    of the hub, with HF_TOKEN; --model and --draft_model name others,
           such as copies in a bucket
Hardware:  TPU v4-32: 16 chips. Each of the 8 key heads stands twice (pad_heads)
Expected:  computed, not measured: weights in bfloat16, all read once but for
           the embedding, at 1200 GB/s a chip. A target's pass takes at least
           7.30 ms, a draft's 0.69 ms; caches, sampling and the links come on
           top.
"""

import ml_collections

# The sizes of target and draft, for specjax-lab.
PRESETS = ("llama2_70b", "llama2_7b")


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-generate's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = "meta-llama/Llama-2-70b-hf"
  config.draft_model = "meta-llama/Llama-2-7b-hf"
  config.dtype = "bfloat16"
  config.scan_layers = True
  config.mesh = "model:16"
  config.strategy = "tensor"
  config.pad_heads = True
  config.proposer = "draft_model"
  config.lookahead = 4
  config.capacity = 2048
  config.max_new_tokens = 256
  return config
