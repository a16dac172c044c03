"""The proposers by the names that users give them, and what each one reads.

Nothing here needs jax: a command line is checked against it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

# What the config.json of ours says of itself: {"kind": …, "target": {…}}.
PROPOSER = "specjax_proposer"
EMBEDDINGS = "specjax_embeddings"  # "target": the draft has none of its own
# How many heads, and modules, are made where nobody says.
MEDUSA_HEADS, MTP_MODULES = 4, 1
WEIGHTS = ("int8",)  # that a draft may be rounded to
MOST_SIBLINGS = 1024  # more than any pass is worth


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
  """What a user needs to know of a proposer.

  Attributes:
    help: what it does, in words that follow its name.
    reads: what the folder that it drafts with holds; None where it needs no
      folder.
    optional: whether it finds that in the target's own folder if no other is
      given.
    ranks: whether it has second guesses.
  """

  help: str
  reads: str | None = None
  optional: bool = False
  ranks: bool = True


KINDS: Mapping[str, Kind] = {
  "none": Kind(help="decodes plainly", ranks=False),
  "ngram": Kind(help="copies what followed the same words before", ranks=False),
  "draft_model": Kind(
    help="asks a small model",
    reads="a small model with the same tokenizer",
  ),
  "medusa": Kind(
    help="asks heads on the model's last state",
    reads="Medusa heads made for the model",
  ),
  "eagle": Kind(
    help="asks a layer that goes on with the model's states",
    reads="an EAGLE head made for the model",
  ),
  "mtp": Kind(
    help="asks modules that the model was trained with to predict further on",
    reads="modules of multi-token prediction made for the model",
    optional=True,
  ),
  "layer_skip": Kind(help="asks some of the model's own layers"),
}


def layers(text: str) -> int | tuple[int, ...]:
  """What --draft_layers says: the first so many layers, or which ones.

  Args:
    text: a number, or numbers from 0 with commas between.

  Raises:
    ValueError: it is neither.
  """
  parts = [part.strip() for part in text.split(",")]
  if not all(part.isascii() and part.isdecimal() for part in parts) or (
    parts == ["0"]
  ):
    raise ValueError(
      "give how many of the first layers, as 8, or which, as 0,1,5,29"
    )
  numbers = tuple(map(int, parts))
  return numbers[0] if len(numbers) == 1 else check_layers(numbers)


def check_layers(numbers: Sequence[int]) -> tuple[int, ...]:
  """Layers in rising order, each once.

  Raises:
    ValueError: they are not.
  """
  numbers = tuple(numbers)
  if any(a >= b for a, b in zip(numbers, numbers[1:], strict=False)):
    raise ValueError("give layers in rising order, each once")
  return numbers


def said(config: Mapping[str, Any]) -> str | None:
  """Which proposer drafts with a folder, if its config.json says so.

  Args:
    config: the content of config.json. Ours say it; of published heads some
      keys, or their names, are known.

  Returns:
    One of KINDS; "draft_model" for a whole model; None where nothing says.
  """
  own = config.get(PROPOSER)
  if isinstance(own, Mapping) and own.get("kind") in KINDS:
    return own["kind"]
  if EMBEDDINGS in config:
    return "draft_model"
  names = config.get("architectures")
  name = str(names[0]) if isinstance(names, (list, tuple)) and names else ""
  if "medusa_num_heads" in config or "medusa" in name.lower():
    return "medusa"
  if "draft_vocab_size" in config or "eagle" in name.lower():
    return "eagle"
  # EAGLE-1's heads are published as a Llama of one layer, so one says nothing.
  if config.get("num_hidden_layers", config.get("n_layer")) == 1:
    return None
  whole = name.endswith(("ForCausalLM", "LMHeadModel"))
  return "draft_model" if whole else None
