"""Qwen3 32B with Qwen3 0.6B as its draft, four rows at once.

Command:   specjax-generate --config=configs/qwen3_32b.py \\
             --prompts=prompts.jsonl --output=answers.jsonl
Models:    of the hub; --model and --draft_model name others, such as copies in
           a bucket
Hardware:  TPU v5litepod-8: 8 chips of one host
Expected:  computed, not measured: weights in bfloat16, all read once but for
           an embedding beside a head, at 819 GB/s a chip. A target's pass takes
           at least 9.76 ms, a draft's 0.18 ms; caches, sampling and the links
           come on top.
"""

import ml_collections

# The sizes of target and draft, for specjax-lab.
PRESETS = ("qwen3_32b", "qwen3_0_6b")


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-generate's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = "Qwen/Qwen3-32B"
  config.draft_model = "Qwen/Qwen3-0.6B"
  config.dtype = "bfloat16"
  config.scan_layers = True
  config.mesh = "model:8"
  config.strategy = "tensor"
  config.proposer = "draft_model"
  config.lookahead = 5
  config.slots = 4
  config.capacity = 4096
  config.chat = True
  config.max_new_tokens = 1024
  return config
