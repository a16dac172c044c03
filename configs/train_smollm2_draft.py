"""A draft model for SmolLM2-135M-Instruct: three of its own layers, distilled.

Command:   specjax-train --config=configs/train_smollm2_draft.py \\
             --data=.cache/distilled --output=.cache/smollm2-draft
Model:     `make model` puts it into .cache/smollm2
Data:      the model's own answers, with the states of its last layer (30)
Hardware:  2 CPU cores
Expected:  to be filled in from the run that made the shipped draft
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
  config.loss = "kl:1"
  config.steps = 2000
  config.batch = 8
  config.length = 256
  config.learning_rate = 1e-3
  config.save_dtype = "bfloat16"
  return config
