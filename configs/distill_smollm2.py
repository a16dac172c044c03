"""What SmolLM2-135M-Instruct says: the data of the drafts that come with it.

Commands:
  python -m specjax.training.prompts_from_text --output=prompts.jsonl \\
    --code=1000 --rewrite=1000 --exclude=demo/held_out.jsonl
  specjax-distill-data --config=configs/distill_smollm2.py --output=DATA
Makes:     DATA, for specjax-train: answers at temperatures 0 and 1, with the
           states of the last layer, to prompts that the model makes up itself
           (half of them as it likes, half begun as people ask for code, for
           rewriting and for advice) and to 1100 about functions of Python's
           standard library and paragraphs of this machine's documentation; none
           of demo/held_out.jsonl is among them
Model:     `make model` puts it into .cache/smollm2
Hardware:  2 CPU cores with AVX-512: 4 to 5 prompts a second, then about 600
           tokens a second, prompts among them (360 of answers). What comes with
           specjax was trained on 1266216 tokens, 746859 of them answers, of
           three such runs (its cards say which): rows come in an order of the
           seed, so a run that is ended is a sample of all; --resume goes on
           after it
"""

import ml_collections

# Kinds that the model rarely thinks of by itself.
FIRST_WORDS = (
  # Code.
  "Write a Python function that",
  "Explain what this code does:\n\n",
  "Write a Python program that",
  "Add comments to this code:\n\n",
  "Write a SQL query that",
  "Write unit tests for this function:\n\ndef ",
  "Write a JavaScript function that",
  "Find the mistake in this code:\n\n",
  "Write a bash script that",
  "Rename the variable",
  "Write a Python class",
  "Convert this code",
  # Rewriting.
  "Rewrite this text in a more formal tone:\n\n",
  "Summarize this text:\n\n",
  "Correct the mistakes in this text:\n\n",
  "Make this text shorter:\n\n",
  "Turn this text into a list of bullet points:\n\n",
  "Rewrite this e-mail",
  "Write this text again",
  "Proofread the following text:\n\n",
  "Expand these notes into a paragraph:\n\n",
  "Rewrite this sentence",
  "Replace the word",
  "Paraphrase this paragraph:\n\n",
  # Advice and chat.
  "Why do",
  "How do I",
  "What should I",
  "Explain",
  "Give me five",
  "Write a",
  "Suggest",
  "Tell me a",
  "What is the",
  "How does",
  "What are the",
  "",
)


def get_config() -> ml_collections.ConfigDict:
  """Settings by the names of specjax-distill-data's flags; a flag wins."""
  config = ml_collections.ConfigDict()
  config.model = ".cache/smollm2"
  config.prompts = ["prompts.jsonl"]
  config.chat = True
  config.max_prompts = 1100
  config.self_prompts = 3000
  config.first_words = [*FIRST_WORDS, *[""] * len(FIRST_WORDS)]
  config.exclude = "demo/held_out.jsonl"
  config.temperatures = "0,1"
  config.max_new_tokens = 128
  config.hidden = "30"
  config.capacity = 384
  config.dtype = "bfloat16"
  config.slots = 32
  return config
