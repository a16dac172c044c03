"""Special tokens: what the files of a model folder say of them."""

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import processors

from specjax.text import failures


def from_config(config: Mapping[str, Any], where: Any) -> dict[str, str]:
  """Role to text of the special tokens, e.g. {"eos_token": "</s>"}.

  Raises:
    ValueError: a token's text is none.
  """
  special = {}
  for role, token in config.items():
    if role.endswith("_token") and not role.startswith("add_"):
      if isinstance(token, Mapping):
        token = token.get("content")
      if isinstance(token, str):
        failures.check_characters(token, f"{where}: {role}")
        special[role] = token
  return special


def mark(backend: tokenizers.Tokenizer, special: Mapping[str, str]) -> None:
  """Marks as special the tokens that only the config calls so."""
  marked = {
    token.content
    for token in backend.get_added_tokens_decoder().values()
    if token.special
  }
  missing = [
    tokenizers.AddedToken(token, special=True, normalized=False)
    for token in dict.fromkeys(special.values())
    if token not in marked and backend.token_to_id(token) is not None
  ]
  if missing:
    backend.add_special_tokens(missing)


def apply_bos_and_eos(
  backend: tokenizers.Tokenizer,
  config: Mapping[str, Any],
  special: Mapping[str, str],
) -> None:
  """Follows add_bos_token and add_eos_token where the config sets them.

  As in transformers, they replace the post-processor of tokenizer.json.

  Raises:
    ValueError: a token to be added is not in the vocabulary.
  """
  if "add_bos_token" not in config and "add_eos_token" not in config:
    return
  bos, eos = (
    special.get(f"{kind}_token") if config.get(f"add_{kind}_token") else None
    for kind in ("bos", "eos")
  )
  # By names of our own: a token such as "$B" or "a:1" would mean something.
  tokens = {"bos": bos, "eos": eos}
  tokens = {name: token for name, token in tokens.items() if token is not None}
  backend.post_processor = processors.TemplateProcessing(
    single=[name for name in ("bos", "$A", "eos") if name in (*tokens, "$A")],
    pair=None,
    special_tokens=[
      {
        "id": name,
        "ids": [token_id(backend, token, "tokenizer_config.json")],
        "tokens": [token],
      }
      for name, token in tokens.items()
    ],
  )


def token_id(backend: tokenizers.Tokenizer, token: str, where: Any) -> int:
  """The id of a special token.

  Raises:
    ValueError: it is not in the vocabulary.
  """
  found = backend.token_to_id(token)
  if found is None:
    raise ValueError(
      f"{where}: special token {token!r} is not in the vocabulary of "
      "tokenizer.json"
    )
  return found


def eos_ids(
  backend: tokenizers.Tokenizer,
  config: Mapping[str, Any],
  where: Any,
  padded: Any,
) -> list[int]:
  """The `eos_token_id` of a config: absent, one id, or a list of ids.

  Args:
    backend: the tokenizer.
    config: the content of a file.
    where: the file.
    padded: the model's `vocab_size`, which may go beyond the tokenizer's, or
      None.

  Raises:
    ValueError: it is something else, or an end that no model of this
      vocabulary can ever say.
  """
  value = config.get("eos_token_id")
  ids = [] if value is None else value if isinstance(value, list) else [value]
  size = backend.get_vocab_size(with_added_tokens=True)
  if isinstance(padded, int):
    size = max(size, padded)
  for i in ids:
    if not isinstance(i, int) or isinstance(i, bool) or i < 0:
      raise ValueError(
        f"{where}: eos_token_id={value!r} must be a token id or a list of them"
      )
    # Ids may have gaps, and so go beyond the number of tokens.
    known = i < 2**32 and backend.id_to_token(i) is not None
    if i >= size and not known:
      raise ValueError(
        f"{where}: eos_token_id={i} is no id of the vocabulary (0 to "
        f"{size - 1})"
      )
  return ids
