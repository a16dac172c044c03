"""A draft for a tiny target of random weights: the newcomer's rehearsal.

Command:   specjax-init --preset=chinchilla_tiny \\
             --output=.cache/chinchilla_tiny
           specjax-train --config=configs/train_tiny.py --data=README.md \\
             --output=.cache/tiny_draft
           specjax-benchmark --model=.cache/chinchilla_tiny \\
             --draft_model=.cache/tiny_draft --runs=plain,draft_model \\
             --prompts=demo/prompts.jsonl --temperature=1
Hardware:  any CPU
Expected:  20 s of training on 2 CPU cores; held-out acceptance rises from 0.60
           to 0.80. The benchmark shows 1.48 times plain's tokens/s, at its
           temperature of 1. Any folder of your own texts does for --data
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-train's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/chinchilla_tiny"
  config.proposer = "draft_model"
  config.layers = "0"
  config.loss = "kl:1"
  config.steps = 200
  config.batch = 8
  config.length = 128
  config.learning_rate = 2e-3
  config.evaluate_every = 50
  return config
