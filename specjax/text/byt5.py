"""ByT5's tokenizer, of which a folder holds the name alone.

A token is a byte (Xue et al. 2022). Before them stand padding, end and unknown,
behind them the tokens that stand for gaps.
"""

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

CLASS = "ByT5Tokenizer"  # `tokenizer_class` of tokenizer_config.json
_FIRST = ("<pad>", "</s>", "<unk>")
_GAPS = 125


def is_named(config: Mapping[str, Any]) -> bool:
  """Whether a tokenizer_config.json asks for this one."""
  return config.get("tokenizer_class") == CLASS


def backend(config: Mapping[str, Any]) -> tokenizers.Tokenizer:
  """The tokenizer; it ends each text with </s>.

  Args:
    config: the content of tokenizer_config.json, which may say how many tokens
      for gaps there are.

  Raises:
    ValueError: that is no number.
  """
  gaps = config.get("extra_ids", _GAPS)
  if not isinstance(gaps, int) or isinstance(gaps, bool) or gaps < 0:
    raise ValueError(
      f"tokenizer_config.json: extra_ids is {gaps!r}; give a whole number"
    )
  special = [*_FIRST, *(f"<extra_id_{n}>" for n in range(gaps))]
  names = [*_FIRST, *map(_letter, range(256)), *special[len(_FIRST) :]]
  made = tokenizers.Tokenizer(
    models.BPE(vocab={name: n for n, name in enumerate(names)}, merges=[])
  )
  made.pre_tokenizer = pre_tokenizers.ByteLevel(
    add_prefix_space=False, use_regex=False
  )
  made.decoder = decoders.ByteLevel()
  made.add_special_tokens(special)
  made.post_processor = processors.TemplateProcessing(
    single="$A </s>", special_tokens=[("</s>", 1)]
  )
  return made


def _letter(byte: int) -> str:
  """The character that stands for a byte in byte-level vocabularies.

  Those that print stand for themselves, the others for characters from 256 on.
  """
  prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
  if byte in prints:
    return chr(byte)
  return chr(256 + sum(other not in prints for other in range(byte)))
