"""Greedy continuations under Hugging Face's own penalties, in PyTorch float32.

  python tests/goldens/make_penalties.py SMOLLM2_FOLDER

Writes smollm2_penalties.json: ids, and the gap between the two best penalised
logits at every step. Needs torch and transformers, which no test does.
"""

import json
import pathlib
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).parent
TOKENS = 32
# Of several prompts of smollm2_greedy.json by index.
PROMPTS = (8, 10, 11, 12)
SETTINGS = (
  {"repetition_penalty": 1.3},
  {"repetition_penalty": 0.9},
  # Ids of "the", "," and "." with a space where there is one.
  {"repetition_penalty": 1.15, "logit_bias": {"260": -5, "28": 2, "30": -100}},
  {"logit_bias": {"260": -100, "284": 3.5}},
)


def main(folder: str) -> None:
  model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32
  ).eval()
  greedy = json.loads((HERE / "smollm2_greedy.json").read_text("utf-8"))
  rows = []
  for index, settings in zip(PROMPTS, SETTINGS, strict=True):
    prompt = greedy["rows"][index]["prompt_ids"]
    options = {"repetition_penalty": settings.get("repetition_penalty", 1.0)}
    if "logit_bias" in settings:
      options["sequence_bias"] = [
        [[int(id)], float(bias)] for id, bias in settings["logit_bias"].items()
      ]
    ids = torch.tensor([prompt])
    out = model.generate(
      ids,
      attention_mask=torch.ones_like(ids),
      do_sample=False,
      max_new_tokens=TOKENS,
      eos_token_id=greedy["eos_ids"],
      pad_token_id=greedy["eos_ids"][0],
      output_scores=True,
      return_dict_in_generate=True,
      **options,
    )
    best = [torch.topk(scores[0], 2).values for scores in out.scores]
    rows.append(
      {
        "prompt_ids": prompt,
        "settings": settings,
        "output_ids": out.sequences[0, len(prompt) :].tolist(),
        "gaps": [round(float(two[0] - two[1]), 5) for two in best],
      }
    )
  about = {
    "made_by": "make_penalties.py",
    "weights_sha256": greedy["weights_sha256"],
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "max_new_tokens": TOKENS,
  }
  text = json.dumps({**about, "rows": rows}, indent=1)
  (HERE / "smollm2_penalties.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
  main(sys.argv[1])
