"""Llama 3.1 70B Instruct with Llama 3.2 1B as its draft, eight rows at once.

Command:   specjax-generate --config=configs/llama3_70b.py \\
             --prompts=gs://bucket/prompts.jsonl \\
             --output=gs://bucket/answers.jsonl
           on every worker, which `launch/tpu_vm.sh run` does
Models:    of the hub, with HF_TOKEN; --model and --draft_model name others,
           such as copies in a bucket. Llama 3.1 8B guesses better and costs
           more: 0.68 ms a pass
Hardware:  TPU v5p-16: 8 chips
Expected:  computed, not measured: weights in bfloat16, all read once but for
           an embedding beside a head, at 2765 GB/s a chip. A target's pass
           takes at least 6.28 ms, a draft's 0.11 ms; caches, sampling and the
           links come on top.
"""

import ml_collections

# The sizes of target and draft, for specjax-lab.
PRESETS = ("llama3_70b", "llama3_1b")


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-generate's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = "meta-llama/Llama-3.1-70B-Instruct"
  config.draft_model = "meta-llama/Llama-3.2-1B-Instruct"
  config.dtype = "bfloat16"
  config.scan_layers = True
  config.mesh = "model:8"
  config.strategy = "tensor"
  config.proposer = "draft_model"
  config.lookahead = 5
  config.slots = 8
  config.capacity = 4096
  config.chat = True
  config.max_new_tokens = 512
  return config
