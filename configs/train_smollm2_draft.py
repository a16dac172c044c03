"""A draft of SmolLM2-135M-Instruct's first layers: smollm2-135m-draft's recipe.

Command:   specjax-train --config=configs/train_smollm2_draft.py \\
             --data=.cache/distilled --output=.cache/smollm2-draft
Model:     `make model` puts it into .cache/smollm2
Data:      the model's own answers, with the states of its last layer
           (specjax-distill-data --config=configs/distill_smollm2.py
           --output=.cache/distilled)
Hardware:  2 CPU cores, shared with another training run: 5.4 s a step, 4300 s
Expected:  of 6098 held-out tokens, prompts among them, acceptance rises from
           0.355 after the least-squares fit to 0.548, and agreement from 0.303
           to 0.563. (Too good, as train_smollm2_eagle.py says: 0.29 of first
           drafts are kept on demo/held_out.jsonl.) A third layer of the
           target's adds 0.01 to the fit, a fourth less
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-train's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/smollm2"
  config.proposer = "draft_model"
  config.layers = "0,1"
  # The target's head reads states that two layers do not reach.
  config.ends = "head"
  config.fit = True
  config.vocabulary = 8192
  # Where the token that comes is none of these, a position has no weight.
  config.loss = "kl:1"
  config.learn_prompts = True
  config.steps = 800
  config.batch = 6
  config.length = 384
  config.warmup = 20
  config.optimizer = "muon"
  config.learning_rate = 1e-3
  config.save_dtype = "bfloat16"
  return config
