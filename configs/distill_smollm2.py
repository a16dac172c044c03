"""What SmolLM2-135M-Instruct says: the data of the drafts that come with it.

Commands:
  python -m specjax.training.prompts_from_text --output=prompts.jsonl \\
    --code=1500 --rewrite=1500 --exclude=demo/held_out.jsonl
  specjax-distill-data --config=configs/distill_smollm2.py --output=DATA
Makes:     DATA, for specjax-train: answers at temperatures 0 and 1 to 3000
           prompts that the model makes up itself (chat), 1500 about functions
           of Python's standard library and 1500 about paragraphs of this
           machine's documentation; none of demo/held_out.jsonl is among them
Model:     `make model` puts it into .cache/smollm2
Hardware:  2 CPU cores: 58 answer tokens per second of CPU time (bfloat16 51),
           prompts included, measured on 64 answers of at most 64 tokens;
           --resume goes on after a kill
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-distill-data's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/smollm2"
  config.prompts = ["prompts.jsonl"]
  config.self_prompts = 3000
  config.exclude = "demo/held_out.jsonl"
  config.temperatures = "0,1"
  config.max_new_tokens = 256
  config.capacity = 512
  config.dtype = "float32"
  config.slots = 16
  return config
