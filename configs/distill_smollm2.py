"""What SmolLM2-135M-Instruct says: the data of the drafts that come with it.

Commands:
  python -m specjax.training.prompts_from_text --output=prompts.jsonl \\
    --code=1000 --rewrite=1000 --exclude=demo/held_out.jsonl
  specjax-distill-data --config=configs/distill_smollm2.py --output=DATA
Makes:     DATA, for specjax-train: answers at temperatures 0 and 1, with the
           states of the last layer, to 700 prompts that the model makes up
           itself (chat) and 1100 about functions of Python's standard library
           and paragraphs of this machine's documentation; none of
           demo/held_out.jsonl is among them
Model:     `make model` puts it into .cache/smollm2
Hardware:  2 CPU cores: about 90 answer tokens a second beside other work, 147
           alone, and 5 minutes for the prompts. What comes with specjax was
           trained on the first 1703 of 3600 rows (311144 tokens, 167547 of
           them answers): rows come in an order of the seed, so a run that is
           ended is a sample of all; --resume goes on after it
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-distill-data's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/smollm2"
  config.prompts = ["prompts.jsonl"]
  config.chat = True
  config.max_prompts = 1100
  config.self_prompts = 700
  config.exclude = "demo/held_out.jsonl"
  config.temperatures = "0,1"
  config.max_new_tokens = 128
  config.hidden = "30"
  config.capacity = 384
  config.dtype = "float32"
  config.slots = 32
  return config
