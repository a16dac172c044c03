"""The tokenizer of a GGUF file, rebuilt for the `tokenizers` package."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from specjax.checkpoints import gguf_metadata

_KEY = "tokenizer.ggml."
# Values of tokenizer.ggml.token_type (GGUF specification).
_CONTROL = 3
_USER_DEFINED = 4

# How Llama 3 splits a text into words before the merges.
_LLAMA3_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Splitting:
  """How a text is cut before the merges, by the name GGUF gives it."""

  pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
  # A word that is a token as a whole skips the merges.
  ignore_merges: bool = False
  add_bos: bool = False


def _gpt2():
  return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm():
  digits = pre_tokenizers.Digits(individual_digits=True)
  return pre_tokenizers.Sequence([digits, _gpt2()])


def _llama3():
  words = pre_tokenizers.Split(tokenizers.Regex(_LLAMA3_WORDS), "isolated")
  letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  return pre_tokenizers.Sequence([words, letters])


_SPLITTING = {
  "gpt-2": _Splitting(pre_tokenizer=_gpt2),
  "smollm": _Splitting(pre_tokenizer=_smollm),
  "llama-bpe": _Splitting(
    pre_tokenizer=_llama3, ignore_merges=True, add_bos=True
  ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary:
  """The tokenizer keys of a GGUF file, checked.

  Attributes:
    tokens: the text of every id, in the byte-level alphabet.
    types: tokenizer.ggml.token_type of every id.
    merges: pairs of tokens, in order of rank.
    splitting: the name of the rule that cuts a text into words.
    add_bos, add_eos: whether encoding begins with the BOS token and ends with
      the EOS token.
    ids: role ("bos", "eos", "eot", "pad", "unk") to id, where given.
    chat_template: Jinja source, or None.
  """

  tokens: tuple[str, ...]
  types: tuple[int, ...]
  merges: tuple[tuple[str, str], ...]
  splitting: str
  add_bos: bool
  add_eos: bool
  ids: Mapping[str, int]
  chat_template: str | None

  @classmethod
  def from_metadata(cls, metadata: Mapping[str, Any]) -> "Vocabulary":
    """Takes the tokenizer out of a file's metadata.

    Raises:
      ValueError: it is not byte-level BPE with a known splitting rule, or
        its lists do not fit together.
    """
    shown = gguf_metadata.shown
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
      raise ValueError(
        f"tokenizer.ggml.model={shown(kind)} is not supported; only "
        "byte-level BPE ('gpt2') is"
      )
    splitting = metadata.get("tokenizer.ggml.pre")
    if not isinstance(splitting, str) or splitting not in _SPLITTING:
      raise ValueError(
        f"tokenizer.ggml.pre={shown(splitting)} is not supported; known are "
        f"{', '.join(sorted(_SPLITTING))}"
      )
    tokens = tuple(gguf_metadata.array(metadata, _KEY + "tokens", str))
    types = tuple(gguf_metadata.array(metadata, _KEY + "token_type", int))
    if len(tokens) != len(types):
      raise ValueError(
        f"tokenizer.ggml.tokens has {len(tokens)} entries, "
        f"tokenizer.ggml.token_type {len(types)}"
      )
    if len(set(tokens)) != len(tokens):
      raise ValueError("tokenizer.ggml.tokens holds the same token twice")
    merges = tuple(
      tuple(merge.split(" "))
      for merge in gguf_metadata.array(metadata, _KEY + "merges", str)
    )
    for merge in merges:
      if len(merge) != 2:
        raise ValueError(
          f"tokenizer.ggml.merges has the entry {shown(' '.join(merge))}; "
          "expected two tokens with a space between"
        )
    return cls(
      tokens=tokens,
      types=types,
      merges=merges,
      splitting=splitting,
      add_bos=gguf_metadata.flag(
        metadata, _KEY + "add_bos_token", _SPLITTING[splitting].add_bos
      ),
      add_eos=gguf_metadata.flag(metadata, _KEY + "add_eos_token", False),
      ids=_role_ids(metadata, len(tokens)),
      chat_template=gguf_metadata.string(metadata, "tokenizer.chat_template"),
    )

  def tokenizer_json(self) -> str:
    """The content of tokenizer.json.

    Raises:
      ValueError: a merge names a token that is not in the vocabulary, or
        BOS or EOS is to be added and not known.
    """
    splitting = _SPLITTING[self.splitting]
    try:
      model = models.BPE(
        vocab={token: i for i, token in enumerate(self.tokens)},
        merges=list(self.merges),
        ignore_merges=splitting.ignore_merges,
      )
    except Exception as error:  # `tokenizers` raises bare Exception
      raise ValueError(f"tokenizer.ggml.merges: {error}") from None
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(self.tokens, self.types, strict=True):
      if kind in (_CONTROL, _USER_DEFINED):
        special = kind == _CONTROL
        added = tokenizers.AddedToken(token, normalized=False, special=special)
        add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
        add([added])
    if self.add_bos or self.add_eos:
      tokenizer.post_processor = self._post_processor()
    return tokenizer.to_str(pretty=True)

  def _post_processor(self) -> processors.TemplateProcessing:
    """Puts BOS before a text and EOS behind it, as far as either is wanted."""
    wanted = {"bos": self.add_bos, "eos": self.add_eos}
    roles = [role for role, added in wanted.items() if added]
    for role in roles:
      if role not in self.ids:
        raise ValueError(
          f"{role.upper()} is to be added, but the key "
          f"tokenizer.ggml.{role}_token_id is missing"
        )
    # By names of our own: a token such as "$B" or "a:1" would mean something.
    return processors.TemplateProcessing(
      single=[role for role in ("bos", "$A", "eos") if role in (*roles, "$A")],
      pair=None,
      special_tokens=[
        {
          "id": role,
          "ids": [self.ids[role]],
          "tokens": [self.tokens[self.ids[role]]],
        }
        for role in roles
      ],
    )

  def tokenizer_config(self, max_length: int) -> dict[str, Any]:
    """The content of tokenizer_config.json.

    Args:
      max_length: the model's context, in tokens.
    """
    config = {
      # The class that takes tokenizer.json as it is.
      "tokenizer_class": "PreTrainedTokenizerFast",
      "model_max_length": max_length,
      "clean_up_tokenization_spaces": False,
    }
    for role in ("bos", "eos", "pad", "unk"):
      if role in self.ids:
        config[f"{role}_token"] = self.tokens[self.ids[role]]
    if self.chat_template is not None:
      config["chat_template"] = self.chat_template
    return config

  def generation_config(self) -> dict[str, Any]:
    """The content of generation_config.json: the ids that begin and end."""
    config = {
      f"{role}_token_id": self.ids[role]
      for role in ("bos", "pad")
      if role in self.ids
    }
    ends = sorted({self.ids[r] for r in ("eos", "eot") if r in self.ids})
    if ends:
      config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    return config


def _role_ids(metadata: Mapping[str, Any], size: int) -> dict[str, int]:
  """The ids of special roles, checked against the vocabulary's size."""
  keys = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "pad": "padding_token_id",
    "unk": "unknown_token_id",
  }
  ids = {}
  for role, key in keys.items():
    value = gguf_metadata.token_id(metadata, _KEY + key, size)
    if value is not None:
      ids[role] = value
  return ids
