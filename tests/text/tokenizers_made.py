"""Tiny tokenizers of every kind, and a folder to put one in."""

import json
import pathlib

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

BOS, EOS, END = "<s>", "</s>", "<|end|>"


def byte_level() -> tokenizers.Tokenizer:
  """Every byte a token, a few merges, three control tokens."""
  letters = sorted(pre_tokenizers.ByteLevel.alphabet())
  merges = [("h", "e"), ("l", "l"), ("Ġ", "he")]
  tokens = letters + ["".join(merge) for merge in merges]
  backend = tokenizers.Tokenizer(
    models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
  )
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = decoders.ByteLevel()
  backend.add_special_tokens([BOS, EOS, END])
  return backend


def byte_fallback() -> tokenizers.Tokenizer:
  """Words begin with ▁; what is not a letter goes through byte tokens."""
  tokens = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a"]
  backend = tokenizers.Tokenizer(
    models.BPE(
      vocab={t: i for i, t in enumerate(tokens)},
      merges=[("▁", "a")],
      byte_fallback=True,
      unk_token="<unk>",
    )
  )
  backend.pre_tokenizer = pre_tokenizers.Metaspace()
  backend.decoder = decoders.Sequence(
    [
      decoders.Replace("▁", " "),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(" ", 1, 0),
    ]
  )
  backend.add_special_tokens([BOS, EOS])
  return backend


def metaspace() -> tokenizers.Tokenizer:
  pieces = ["<unk>", "▁", "▁a", "b", "▁▁", "é"]
  backend = tokenizers.Tokenizer(
    models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0)
  )
  backend.pre_tokenizer = pre_tokenizers.Metaspace()
  backend.decoder = decoders.Metaspace()
  backend.add_special_tokens([EOS])
  return backend


def word_piece() -> tokenizers.Tokenizer:
  """Its decoder rewrites: it takes back the blank before a full stop."""
  tokens = ["[UNK]", "a", "##b", ".", "n", "'", "t"]
  backend = tokenizers.Tokenizer(
    models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]")
  )
  backend.decoder = decoders.WordPiece(cleanup=True)
  return backend


def folder(path: pathlib.Path, backend=None, **files) -> pathlib.Path:
  """A model folder; `files` are contents by name with __ for the dot."""
  path.mkdir(exist_ok=True)
  if backend is not None:
    (path / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
  for name, content in files.items():
    if not isinstance(content, str):
      content = json.dumps(content)
    (path / name.replace("__", ".")).write_text(content, encoding="utf-8")
  return path
