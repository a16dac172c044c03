"""A draft of SmolLM2-135M-Instruct's first layers: smollm2-135m-draft's recipe.

Command:   specjax-train --config=configs/train_smollm2_draft.py \\
             --data=.cache/distilled --output=.cache/smollm2-draft
           and, from there, on more of the data:
           specjax-train --config=configs/train_smollm2_draft.py --nofit \\
             --start_from=.cache/smollm2-draft --steps=640 \\
             --learning_rate=1e-3 --data=.cache/distilled \\
             --output=.cache/smollm2-draft-on
Model:     `make model` puts it into .cache/smollm2
Data:      the model's own answers, with the states of its last layer
           (specjax-distill-data --config=configs/distill_smollm2.py
           --output=.cache/distilled)
Hardware:  2 CPU cores with AVX-512, shared with others: 4.5 s a step, 1260 s
           (3.3 alone)
Expected:  of 18000 held-out tokens, prompts among them, acceptance rises from
           0.353 after the least-squares fit to 0.477, and agreement from 0.308
           to 0.481. (Answers are harder than prompts: on demo/held_out.jsonl
           0.32 of first drafts are kept, and 0.37 after the second command,
           over 2769 answers more.) A third layer of the target's adds
           0.01 to the fit, a fourth less
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
  config.steps = 280
  config.batch = 12
  config.length = 384
  config.warmup = 20
  config.optimizer = "muon"
  config.learning_rate = 1.2e-3
  config.dtype = "bfloat16"  # The faster on a CPU with AVX-512.
  config.save_dtype = "bfloat16"
  config.held_out_share = 0.01
  config.evaluate_batches = 4
  config.evaluate_every = 80
  config.save_every = 40
  return config
