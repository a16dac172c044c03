"""Chinchilla 70B with its 4B draft, as Chen et al. 2023 ran it.

Command:   specjax-generate --config=configs/chinchilla_70b.py \\
             --model=gs://bucket/chinchilla_70b \\
             --draft_model=gs://bucket/chinchilla_4b \\
             --prompts=gs://bucket/prompts.jsonl \\
             --output=gs://bucket/answers.jsonl
           on every worker, which `launch/tpu_vm.sh run` does
Models:    never published; specjax-init writes both sizes with random weights
           (positions rotate, see specjax/models/presets.py)
Hardware:  TPU v4-32: 16 chips
Expected:  computed, not measured: weights in bfloat16, all read once, at
           1200 GB/s a chip. A target's pass takes at least 6.74 ms, a draft's
           0.40 ms; caches, sampling and the links come on top.
Published: 14.1 ms a token plainly, 7.52 with the draft (XSum, top-p 0.8), 7.00
           (XSum, greedy), 5.73 (HumanEval); a draft's token 1.8 ms (Chen et
           al. 2023, Table 1; with relative positions, and another program)
"""

import ml_collections

# The sizes of target and draft, for specjax-lab.
PRESETS = ("chinchilla_70b", "chinchilla_4b")


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-generate's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.dtype = "bfloat16"
  config.scan_layers = True
  config.mesh = "model:16"
  config.strategy = "tensor"
  config.proposer = "draft_model"
  config.lookahead = 4
  config.capacity = 2048
  config.max_new_tokens = 128
  return config
