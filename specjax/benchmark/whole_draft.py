"""A draft that borrows from its target, as a model that stands alone.

Peers know whole models only: an embedding, layers, and a head of all V ids. The
ids that the draft cannot propose get the row of one that it hardly ever does,
so that greedily it says the same.
"""

import pathlib

import jax.numpy as jnp
import numpy as np

from specjax.benchmark import derived
from specjax.checkpoints import folders, head_configs, hf
from specjax.heads import Head

_EMBED, _HEAD = "embed.weight", "head.weight"


def cached(head: Head, *, dtype: str, cache: pathlib.Path) -> pathlib.Path:
  """The draft's whole model in `cache`, written if it is not there.

  Args:
    head: a draft_model's, opened beside its target.
    dtype: of the file.
    cache: a folder.
  """
  return derived.kept(
    [head.folder, head.target.folder],
    lambda path: write(head, path, dtype=dtype),
    dtype=dtype,
    cache=cache,
  )


def write(head: Head, folder: pathlib.Path, *, dtype: str) -> None:
  """Writes the whole model as a Hugging Face folder.

  Args:
    head: a draft_model's.
    folder: not there yet.
    dtype: of the file.
  """
  draft, kept = head.model, head.model.kept(head.params)
  embed, rows = draft.ends(head.params, head.target.params)
  if kept is not None:
    # Ids come by how frequent they are, in most vocabularies: the last is rare.
    table = np.array(jnp.broadcast_to(rows[-1], embed.shape))
    table[np.asarray(kept)] = np.asarray(rows)
    rows = table
  given = dict(zip(draft.head.paths, head.params, strict=False))
  given |= {_EMBED: embed, _HEAD: rows}
  config = hf.read_config(head.folder)
  for key in (head_configs.PROPOSER, head_configs.EMBEDDINGS):
    config.pop(key, None)
  hf.save_params(
    folder,
    draft.model,
    [jnp.asarray(given[path]) for path in draft.model.paths],
    config=config | {"tie_word_embeddings": False},
    dtype=jnp.dtype(dtype),
    others=folders.companions(pathlib.Path(head.target.folder)),
  )
