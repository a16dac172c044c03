"""An EAGLE-3 head for SmolLM2-135M-Instruct, distilled.

Command:   specjax-train --config=configs/train_smollm2_eagle.py \\
             --data=.cache/distilled --output=.cache/smollm2-eagle
Model:     `make model` puts it into .cache/smollm2
Data:      the model's own answers, with the states of four layers
           (specjax-distill-data --config=configs/distill_smollm2.py
           --hidden=2,15,27,30 --output=.cache/distilled)
Hardware:  2 CPU cores: 1.7 s for a step of 4 rows
Expected:  unknown: this was never run to its end, and steps, batch, rate and
           loss are guesses. Its first 60 steps were, of 4 rows (--steps=60
           --batch=4 --warmup=10 --evaluate_every=30), on 101178 answer tokens:
           of 3215 held-out tokens acceptance_1 rose from 0.039 to 0.164 and
           agreement_1 from 0.010 to 0.167, which is no use yet
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-train's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/smollm2"
  config.proposer = "eagle"
  config.eagle = 3
  config.start_layer = -1
  config.unroll = 2
  config.vocabulary = 8192
  # Where the token that comes is none of these, a position has no weight.
  config.loss = "kl:1"
  config.steps = 2000
  config.batch = 8
  config.length = 256
  config.learning_rate = 1e-3
  config.save_dtype = "bfloat16"
  return config
