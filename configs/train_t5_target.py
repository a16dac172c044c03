"""A T5 that turns short English sentences into German: a target that is begun.

Command:   mkdir -p .cache/debs .cache/catalogues
           (cd .cache/debs && apt-get download \\
             $(grep -v '^#' ../../demo/translate_packages.txt))
           for d in .cache/debs/*.deb; do
             n=${d##*/}; dpkg-deb -x $d .cache/catalogues/${n%%_*}; done
           python -m specjax.training.pairs_from_catalogues \\
             --folder=.cache/catalogues --output=.cache/translate --most=14
           python -m specjax.training.subwords --size=4096 \\
             --data=.cache/translate/train.jsonl --output=.cache/subwords
           specjax-init --preset=t5_small --size=vocab_size:4096 \\
             --size=d_model:384 --size=num_layers:3 \\
             --size=num_decoder_layers:5 --tokenizer=.cache/subwords \\
             --output=.cache/t5_start
           specjax-train --config=configs/train_t5_target.py \\
             --output=.cache/t5_shallow
Next:      configs/train_t5_deeper.py makes twelve layers of its decoder's five
Data:      49,693 pairs of sentences of 4 to 14 words, from the catalogues of
           142 packages of Debian 12 (1.5 GB to fetch); 500 more are held out,
           the first 100 of which are demo/held_out_translate.jsonl
Model:     20.3M parameters in T5 1.1's layout; it begins at random
Hardware:  2 CPU cores, shared with other work: 4.6 s a step, 3300 s, 1.4
           passes over the data
Expected:  of half of the held-out sentences, the loss falls from 8.76 nats a
           token to 3.09 (4.34 after 100 steps, 3.41 after 300). It is a rough
           translator: "Cannot remove system package" becomes "Das System kann
           nicht entfernt werden", and of unusual words it makes others.
           (held_out_acceptance and _agreement are beside the random start, and
           say nothing.)
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-train's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/t5_start"
  config.proposer = "draft_model"
  # Of the start's own sizes: nothing but its tokenizer is used.
  config.size = ("num_layers:3",)
  config.ends = "own"
  config.loss = "next_token"
  config.data = (".cache/translate/train.jsonl",)
  config.held_out = ".cache/translate/held_out.jsonl"
  config.steps = 520
  config.batch = 16
  config.length = 128
  config.warmup = 20
  config.optimizer = "muon"
  config.learning_rate = 2e-3
  config.dtype = "bfloat16"
  config.evaluate_batches = 2
  return config
