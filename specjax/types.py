"""Shared structs and the dimension glossary.

One letter per dimension, used in every einsum, annotation and docstring:

  B  rows (slots)            L  layers             N  query heads
  T  tokens in a block       D  model width        K  key/value heads
  C  drafted candidates      F  MLP width          G  query heads per key head
  S  cache capacity          V  vocabulary         H  head size
  E  end-of-sequence ids     W  width of a committed block (C + 1)
  M  siblings (second guesses)
"""

import dataclasses
from typing import Any, TypeVar

import jax

Array = jax.Array
Params = tuple[jax.Array, ...]

_Class = TypeVar("_Class", bound=type)


def struct(cls: _Class) -> _Class:
  """Makes a class a frozen, keyword-only dataclass and a JAX pytree.

  Every field is a leaf (or a subtree); static choices belong in closures, not
  in state, so that no value of one can cause a recompile.
  """
  cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
  names = [field.name for field in dataclasses.fields(cls)]
  jax.tree_util.register_dataclass(cls, data_fields=names, meta_fields=[])
  return cls


@struct
class Block:
  """Newly committed tokens, as a proposer's `ingest` receives them.

  Attributes:
    tokens: int32 [B, T]; entries at or after `count` are padding.
    count: int32 [B], the number of valid tokens of each row; may be 0 (idle,
      finished or prefilling rows).
    features: [B, T, ...] target hidden states, or None where no proposer asked
      for them. `features[:, i]` is the state that *predicted* `tokens[:, i]`.
  """

  tokens: Array
  count: Array
  features: Any = None
