"""A draft for the T5 of train_t5_target.py: what that one says, in one layer.

Command:   specjax-distill-data --model=.cache/t5_target \\
             --prompts=.cache/translate/prompts.jsonl --max_prompts=NUMBER \\
             --temperatures=0,1 --max_new_tokens=48 --capacity=64 --slots=32 \\
             --output=.cache/t5_answers
           specjax-train --config=configs/train_t5_draft.py \\
             --output=.cache/t5_draft
Data:      ANSWERS
Model:     PARAMS parameters: one encoder layer, one decoder layer
Hardware:  2 CPU cores, HARDWARE
Expected:  EXPECTED
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-train's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/t5_target"
  config.proposer = "draft_model"
  config.size = (
    "d_model:160",
    "d_ff:512",
    "num_heads:2",
    "num_layers:2",  # Of the encoder, which runs once a request.
    "num_decoder_layers:1",
  )
  config.ends = "own"
  config.loss = "kl:1"
  config.data = (".cache/t5_answers", ".cache/translate/train.jsonl")
  config.steps = 1200
  config.batch = 16
  config.length = 128
  config.warmup = 30
  config.optimizer = "muon"
  config.learning_rate = 4e-3
  config.dtype = "bfloat16"
  config.evaluate_batches = 2
  return config
