"""The rehearsal of a pod: tiny Chinchillas with random weights on this machine.

Command:   specjax-init --preset=chinchilla_tiny \\
             --output=.cache/chinchilla_tiny
           specjax-init --preset=chinchilla_tiny_draft \\
             --output=.cache/chinchilla_tiny_draft
           launch/local_pod.sh 2 4 --config=configs/chinchilla_tiny.py \\
             --prompts=demo/prompts.jsonl --output=answers.jsonl
Hardware:  any CPU: 2 processes of 4 simulated devices
Expected:  text without sense. It takes a minute, nearly all of it to compile
"""

import ml_collections

# The sizes of target and draft, for specjax-lab.
PRESETS = ("chinchilla_tiny", "chinchilla_tiny_draft")


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-generate's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/chinchilla_tiny"
  config.draft_model = ".cache/chinchilla_tiny_draft"
  config.mesh = "data:2,model:4"
  config.strategy = "tensor"
  config.proposer = "draft_model"
  config.lookahead = 4
  config.slots = 4
  config.capacity = 1024
  config.temperature = 1.0
  config.max_new_tokens = 64
  return config
