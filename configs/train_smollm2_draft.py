"""A draft model for SmolLM2-135M-Instruct: three of its own layers, distilled.

Command:   specjax-train --config=configs/train_smollm2_draft.py \\
             --data=.cache/distilled --output=.cache/smollm2-draft
Model:     `make model` puts it into .cache/smollm2
Data:      the model's own answers, with the states of its last layer
           (specjax-distill-data --config=configs/distill_smollm2.py
           --hidden=30 --output=.cache/distilled)
Hardware:  2 CPU cores
Expected:  unknown: this was never run to its end, and steps, batch, rate and
           loss are guesses. Its first 60 steps were, of 4 rows (--steps=60
           --batch=4 --warmup=10 --evaluate_every=30), on 101178 answer tokens:
           of 3215 held-out tokens acceptance rose from 0.003 to 0.154 and
           agreement from 0.000 to 0.158, which is no use yet
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-train's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/smollm2"
  config.proposer = "draft_model"
  # The first two read the embedding, the last one writes for the head.
  config.layers = "0,1,29"
  config.vocabulary = 8192
  # Where the token that comes is none of these, a position has no weight.
  config.loss = "kl:1"
  config.steps = 2000
  config.batch = 8
  config.length = 256
  config.learning_rate = 1e-3
  config.save_dtype = "bfloat16"
  return config
