"""Gemma 3 27B with Gemma 3 1B as its draft, four rows at once.

Command:   specjax-generate --config=configs/gemma3_27b.py \\
             --prompts=prompts.jsonl --output=answers.jsonl
Models:    of the hub, with HF_TOKEN; --model and --draft_model name others,
           such as copies in a bucket
Hardware:  TPU v5litepod-8: 8 chips of one host. The draft's one key head stands
           on each of them, its four query heads become eight (pad_heads)
Expected:  computed, not measured: weights in bfloat16, all read once, at
           819 GB/s a chip. A target's pass takes at least 8.24 ms, a draft's
           0.36 ms; caches, sampling and the links come on top.
"""

import ml_collections

# The sizes of target and draft, for specjax-lab.
PRESETS = ("gemma3_27b", "gemma3_1b")


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-generate's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = "google/gemma-3-27b-it"
  config.draft_model = "google/gemma-3-1b-it"
  config.dtype = "bfloat16"
  config.scan_layers = True
  config.mesh = "model:8"
  config.strategy = "tensor"
  config.pad_heads = True
  config.proposer = "draft_model"
  config.lookahead = 4
  config.slots = 4
  config.capacity = 4096
  config.chat = True
  config.max_new_tokens = 512
  return config
