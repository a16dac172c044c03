"""An EAGLE head for SmolLM2-135M-Instruct, distilled.

Command:   specjax-train --config=configs/train_smollm2_eagle.py \\
             --data=.cache/distilled --output=.cache/smollm2-eagle
Model:     `make model` puts it into .cache/smollm2
Data:      the model's own answers, with the states of its last layer (30)
Hardware:  2 CPU cores
Expected:  to be filled in from the run that made the shipped head
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-train's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/smollm2"
  config.proposer = "eagle"
  config.start_layer = -1
  config.unroll = 3
  config.vocabulary = 8192
  # The feature loss holds the head to states that it can go on from.
  config.loss = "kl:1,feature:0.5"
  config.steps = 2000
  config.batch = 8
  config.length = 256
  config.learning_rate = 1e-3
  config.save_dtype = "bfloat16"
  return config
