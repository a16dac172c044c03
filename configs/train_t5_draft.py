"""A draft for the T5 of train_t5_target.py: what that one says, in one layer.

Command:   specjax-distill-data --model=.cache/t5_target \\
             --prompts=.cache/translate/prompts.jsonl --max_prompts=8000 \\
             --temperatures=0,1 --max_new_tokens=48 --capacity=64 --slots=32 \\
             --output=.cache/t5_answers
           specjax-train --config=configs/train_t5_draft.py \\
             --output=.cache/t5_draft
Data:      16,000 answers of the target to 8000 of the sentences it learned,
           and all pairs that it learned from
Model:     2.4M parameters; a step of its decoder reads 4.3 MB, the target's 53
Hardware:  2 CPU cores, shared with other work: 0.8 s a step, 1100 s (and 6
           minutes for the answers)
Expected:  of held-out sentences, acceptance rises from 0.098 to 0.618 (0.501
           after 200 steps, 0.594 after 800) and agreement to 0.516; README,
           "Measuring", has what it gains
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
