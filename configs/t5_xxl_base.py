"""T5-XXL (v1.1, 11B) with T5-base as its draft, as in Leviathan et al. 2023.

Command:   specjax-generate --config=configs/t5_xxl_base.py \\
             --model=gs://bucket/t5_xxl --draft_model=gs://bucket/t5_base \\
             --prompts=gs://bucket/prompts.jsonl \\
             --output=gs://bucket/answers.jsonl
Models:    google/t5-v1_1-xxl and -base are trained on filling gaps alone; the
           paper's were tuned to translate and to summarize. specjax-init writes
           both sizes with random weights
Hardware:  TPU v4-8: 4 chips
Expected:  computed, not measured: the decoders' weights in bfloat16, all read
           once, at 1200 GB/s a chip. A target's pass takes at least 2.32 ms,
           a draft's 0.05 ms; the encoder once a request, caches, sampling and
           the links come on top.
Published: lookahead/acceptance/speed-up over T5X on one v4, batch 1: English to
           German 7/.80/2.8× greedily and 5/.68/2.4× at temperature 1, CNN/DM
           5/.73/3.0× and 3/.55/2.2× (Leviathan et al. 2023, Table 2)
"""

import ml_collections

# The sizes of target and draft, for specjax-lab.
PRESETS = ("t5_xxl", "t5_base")


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-generate's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.dtype = "bfloat16"
  config.scan_layers = True
  config.mesh = "model:4"
  config.strategy = "tensor"
  config.proposer = "draft_model"
  config.lookahead = 7
  config.capacity = 512  # of a source, and of an output
  config.max_new_tokens = 128
  return config
