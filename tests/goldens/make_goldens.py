"""Makes the tiny models in this folder and what PyTorch computes of them.

Neither the product nor `make test` needs torch; this script alone does. It
was run in a virtual environment of its own (Python 3.11.7; torch 2.13.0 for
the CPU, transformers 5.24.0, tokenizers 0.23.3, safetensors 0.8.0,
numpy 2.4.6, gguf 0.19.0), with these commands, from the repository's root:

  python tests/goldens/make_goldens.py tiny
  python tests/goldens/make_goldens.py families
  python tests/goldens/make_goldens.py sourced

Those of SmolLM2 come of make_smollm2.py and make_penalties.py. What this one
writes:

  NAME/config.json, NAME/model.safetensors   a tiny random model (float32)
  NAME/expected.npz    tokens [2, T] int32, logits [2, T, V] and hidden
                       [2, T, D] (after the first layer) float32; T is 48, and
                       160 where a model has something beyond one 128-wide
                       block of our attention;
                       bfloat16_error: mean and greatest |difference| of
                       PyTorch's own bfloat16 logits from those
                       Of encoder-decoders also source [2, S] int32, size [2]
                       int32 (tokens of each source) and encoded [2, S, D]
"""

import argparse
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


def main() -> None:
  """Reads the command line and makes what it names."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  makers = {
    "tiny": make_tiny,
    "families": make_families,
    "sourced": make_sourced,
  }
  parser.add_argument("what", choices=makers)
  args = parser.parse_args()
  torch.set_num_threads(1)
  makers[args.what]()


if __name__ == "__main__":
  main()
