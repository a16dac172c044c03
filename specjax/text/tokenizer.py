"""The tokenizer of a Hugging Face model folder."""

import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import tokenizers

from specjax.text import byt5, chat, failures, files
from specjax.text import special as special_lib

# Decoders of which every prefix that ends between two characters is final.
# Others (WordPiece's clean-up, BPEDecoder's suffix) look at what comes next.
_STREAMABLE = frozenset(
  {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}
)

# Formats from before tokenizer.json, which only transformers reads.
_OLDER_FILES = (
  "tokenizer.model",
  "spiece.model",
  "vocab.json",
  "vocab.txt",
  "tokenizer.tiktoken",
)


class Tokenizer:
  """A Hugging Face tokenizer with what generation has to know beside it.

  Attributes:
    name: what errors call it: the folder's path.
    eos_ids: ids that end a generation: the union of the generation config's,
      the model config's and the tokenizer config's.
    bos_id: id of the beginning-of-sequence token, or None.
    chat_template: the Jinja source, or None.
  """

  def __init__(
    self,
    backend: tokenizers.Tokenizer,
    *,
    name: str = "tokenizer",
    eos_ids: Iterable[int] = (),
    special_tokens: Mapping[str, str] | None = None,
    chat_template: str | None = None,
  ):
    """Wraps a tokenizer that exists already; folders go through from_folder.

    Args:
      backend: the tokenizer of the `tokenizers` package. Its truncation and
        padding are switched off: a prompt is never shortened silently.
      name: what errors call it.
      eos_ids: ids that end a generation.
      special_tokens: role to text, such as {"bos_token": "<s>"}: the names
        that chat templates may use.
      chat_template: Jinja source.
    """
    backend.no_truncation()
    backend.no_padding()
    self._backend = backend
    self._special_tokens = dict(special_tokens or {})
    self.name = name
    self.eos_ids = tuple(sorted(set(eos_ids)))
    bos = self._special_tokens.get("bos_token")
    self.bos_id = None if bos is None else backend.token_to_id(bos)
    self.chat_template = chat_template

  @classmethod
  def from_folder(cls, path: os.PathLike | str) -> "Tokenizer":
    """Loads the tokenizer of a Hugging Face model folder.

    Reads tokenizer.json and, where they are there, tokenizer_config.json,
    special_tokens_map.json, generation_config.json, config.json and
    chat_template.jinja. A folder without tokenizer.json but with an older
    vocabulary file goes through transformers, where that is installed; ByT5's
    needs no file.

    Raises:
      FileNotFoundError: the folder or its tokenizer is absent.
      ImportError: transformers is needed and not installed.
      ValueError: a file is malformed, or names a token that the vocabulary
        does not have.
    """
    folder = pathlib.Path(path)
    file = folder / "tokenizer.json"
    if not folder.is_dir():
      raise FileNotFoundError(f"{folder}: no such folder")
    config = files.read_json(folder / "tokenizer_config.json", missing_ok=True)
    if file.is_file():
      backend = _from_file(file)
    elif byt5.is_named(config):
      backend = byt5.backend(config)
    else:
      backend = _through_transformers(folder)
    roles = files.read_json(folder / "special_tokens_map.json", missing_ok=True)
    special = special_lib.from_config({**roles, **config}, folder)
    special_lib.mark(backend, special)
    special_lib.apply_bos_and_eos(backend, config, special)
    eos_ids = set()
    if "eos_token" in special:
      token = special["eos_token"]
      eos_ids.add(special_lib.token_id(backend, token, folder))
    names = ("generation_config.json", "config.json")
    configs = {n: files.read_json(folder / n, missing_ok=True) for n in names}
    padded = configs["config.json"].get("vocab_size")
    for name, content in configs.items():
      eos_ids.update(
        special_lib.eos_ids(backend, content, folder / name, padded)
      )
    return cls(
      backend,
      name=str(folder),
      eos_ids=eos_ids,
      special_tokens=special,
      chat_template=chat.find_template(folder, config),
    )

  @property
  def vocab_size(self) -> int:
    """Number of tokens, the added ones included; a model may pad beyond."""
    return self._backend.get_vocab_size(with_added_tokens=True)

  def has_token(self, token_id: int) -> bool:
    """Whether an id means a token, and is not padding of the vocabulary."""
    return self._backend.id_to_token(token_id) is not None

  @functools.cached_property
  def special_ids(self) -> frozenset[int]:
    """Ids of control tokens, which decode leaves out by default."""
    added = self._backend.get_added_tokens_decoder()
    return frozenset(i for i, token in added.items() if token.special)

  @functools.cached_property
  def byte_ids(self) -> frozenset[int]:
    """Ids of byte-fallback tokens such as <0xE2>; empty for byte-level BPE."""
    if not any(part["type"] == "ByteFallback" for part in self._decoders):
      return frozenset()
    ids = (self._backend.token_to_id(f"<0x{b:02X}>") for b in range(256))
    return frozenset(i for i in ids if i is not None)

  @functools.cached_property
  def streamable(self) -> bool:
    """Whether decoded text is final as soon as its characters are whole."""
    return all(
      part["type"] in _STREAMABLE and not part.get("stop")
      for part in self._decoders
    )

  @functools.cached_property
  def _decoders(self) -> list[dict]:
    """The steps of the tokenizer's decoder, as its file describes them."""
    if self._backend.decoder is None:
      return []
    # The pickled state is the file's JSON: no need to write out the vocabulary.
    decoder = json.loads(self._backend.decoder.__getstate__())
    return decoder.get("decoders", [decoder])

  def encode(self, text: str) -> list[int]:
    """Token ids of a text, with BOS and the like as the tokenizer adds them.

    Raises:
      ValueError: the text is none (half a surrogate pair is no character), or
        the tokenizer has no token for a part of it.
    """
    return self._encode(text, add_special_tokens=True)

  def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a chat, ready for the assistant's answer.

    The template writes BOS itself where the model wants one, so the
    tokenizer adds none.

    Args:
      messages: [{"role": …, "content": …}, …] in order.

    Raises:
      ValueError: there is no chat template, a message is malformed, the
        template fails, or what it makes cannot be encoded.
    """
    return self._encode(self.render_chat(messages), add_special_tokens=False)

  def encode_more(self, text: str) -> list[int]:
    """Token ids of a text that follows other tokens: without BOS and the like.

    Raises:
      ValueError: as `encode`.
    """
    return self._encode(text, add_special_tokens=False)

  def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
    if not isinstance(text, str):
      raise ValueError(f"{self.name}: {text!r} must be a text to be encoded")
    failures.check_characters(text, self.name)
    with failures.guarded(f"{self.name}: the tokenizer failed on the text"):
      return self._backend.encode(
        text, add_special_tokens=add_special_tokens
      ).ids

  def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str:
    """The text that encode_chat encodes; arguments and errors are the same."""
    if self.chat_template is None:
      raise ValueError(
        f"{self.name} has no chat template: use a chat model, or give the "
        "prompt as plain text"
      )
    try:
      return chat.render(self.chat_template, messages, self._special_tokens)
    except ValueError as error:
      raise ValueError(f"{self.name}: {error}") from None

  def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
    """Text of token ids; bytes that are not UTF-8 become U+FFFD.

    Args:
      ids: token ids; those without a token (padding of the model's
        vocabulary) decode to nothing.
      skip_special: whether control tokens are left out.

    Raises:
      ValueError: an id is none at all, or the tokenizer fails.
    """
    with failures.guarded(f"{self.name}: the tokenizer failed on the ids"):
      return self._backend.decode(list(ids), skip_special_tokens=skip_special)

  def fingerprint(self) -> str:
    """A hash of what two models must share to exchange token ids.

    It covers which id means which token, the merges and the added tokens,
    not the names, the chat template or how the file happens to spell them.
    """
    return self._fingerprint

  @functools.cached_property
  def _fingerprint(self) -> str:
    model = json.loads(self._backend.to_str())["model"]
    added = self._backend.get_added_tokens_decoder()
    identity = {
      "model": model.get("type"),
      "vocabulary": sorted(
        (i, token) for token, i in self._backend.get_vocab(True).items()
      ),
      "merges": model.get("merges"),
      "added": sorted((i, token.content) for i, token in added.items()),
    }
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _from_file(file: pathlib.Path) -> tokenizers.Tokenizer:
  with failures.guarded(f"{file}: not a tokenizer"):
    return tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8-sig"))


def _through_transformers(folder: pathlib.Path) -> tokenizers.Tokenizer:
  """The tokenizer of a folder that has only the older vocabulary files."""
  lacks = f"{folder}: no tokenizer.json in it"
  if not any((folder / name).is_file() for name in _OLDER_FILES):
    raise FileNotFoundError(
      f"{lacks}; a model folder needs the tokenizer in the format of Hugging "
      "Face's tokenizers package"
    )
  try:
    import transformers
  except ImportError:
    raise ImportError(
      f"{lacks}; reading its older vocabulary files needs transformers: "
      "pip install 'specjax[transformers]'"
    ) from None
  try:
    slow = transformers.AutoTokenizer.from_pretrained(folder)
    return slow.backend_tokenizer
  except Exception as error:  # of many kinds; some have many lines
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ValueError(
      f"{lacks}, and transformers cannot make one of its vocabulary files: "
      f"{reason}"
    ) from None
