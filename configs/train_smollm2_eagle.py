"""An EAGLE-1 head for SmolLM2-135M-Instruct: the recipe of smollm2-135m-eagle.

Command:   specjax-train --config=configs/train_smollm2_eagle.py \\
             --data=.cache/distilled --output=.cache/smollm2-eagle
           and, from there, on more of the data and at half the learning rate
           (twice, each from where the last one ended; the second 440 steps):
           specjax-train --config=configs/train_smollm2_eagle.py --nofit \\
             --start_from=.cache/smollm2-eagle --steps=560 \\
             --learning_rate=4e-4 --data=.cache/distilled \\
             --output=.cache/smollm2-eagle-on
Model:     `make model` puts it into .cache/smollm2
Data:      the model's own answers, with the states of its last layer
           (specjax-distill-data --config=configs/distill_smollm2.py
           --output=.cache/distilled)
Hardware:  2 CPU cores with AVX-512, with little beside: 3.3 s a step, 2060 s
Expected:  of 18000 held-out tokens, prompts among them, acceptance_1 rises from
           0.411 after the least-squares fit to 0.568 and agreement_1 from 0.381
           to 0.576; of the second step from 0.366 to 0.525 and from 0.334 to
           0.526. (Answers are harder than prompts: on demo/held_out.jsonl 0.49
           of first drafts are kept after the second command, over 2769 answers
           more, and 0.50 after its second time, over 2231 more.)
           With a quarter of the data and five times through them it was 0.37
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-train's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/smollm2"
  config.proposer = "eagle"
  config.eagle = 1
  config.fit = True
  config.unroll = 2
  config.vocabulary = 8192
  # Where the token that comes is none of these, a position has no weight.
  config.loss = "kl:1"
  config.learn_prompts = True
  config.steps = 620
  config.batch = 12
  config.length = 384
  config.warmup = 20
  config.optimizer = "muon"
  config.learning_rate = 8e-4
  config.evaluate_every = 80
  config.save_every = 40
  config.dtype = "bfloat16"  # The faster on a CPU with AVX-512.
  config.save_dtype = "bfloat16"
  config.held_out_share = 0.01
  config.evaluate_batches = 4
  return config
