"""A draft for the T5 of train_t5_deeper.py: what that one says, in one layer.

Command:   specjax-distill-data --model=.cache/t5_target \\
             --prompts=.cache/translate/prompts.jsonl --max_prompts=8000 \\
             --temperatures=0,1 --max_new_tokens=48 --capacity=64 --slots=32 \\
             --output=.cache/t5_answers
           specjax-train --config=configs/train_t5_draft.py \\
             --output=.cache/t5_draft
Data:      16,000 answers of the target to 8000 of the sentences it learned
           (238,466 tokens), and all pairs that it learned from
Model:     3.8M parameters, the target 36.8M
Hardware:  2 CPU cores, shared with other work: 1.7 s a step, 1500 s (and 15
           minutes for the answers)
Expected:  of held-out sentences, acceptance rises from 0.083 to 0.604 (0.475
           after 150 steps, 0.561 after 450) and agreement to 0.539; README,
           "Measuring", has what it gains
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-train's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/t5_target"
  config.proposer = "draft_model"
  config.size = (
    "d_model:192",
    "d_ff:640",
    "num_heads:3",
    "num_layers:3",  # Of the encoder, which runs once a request.
    "num_decoder_layers:1",
  )
  config.ends = "own"
  config.loss = "kl:1"
  config.data = (".cache/t5_answers", ".cache/translate/train.jsonl")
  config.steps = 750
  config.batch = 16
  config.length = 128
  config.warmup = 30
  config.optimizer = "muon"
  config.learning_rate = 4e-3
  config.evaluate_batches = 2
  return config
