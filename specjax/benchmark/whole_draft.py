"""A draft that borrows from its target, as a model that stands alone.

Peers know whole models only: an embedding, layers, and a head of all V ids. The
ids that the draft cannot propose get the row of one that it hardly ever does,
so that greedily it says the same.
"""

import hashlib
import json
import pathlib
import shutil
import tempfile

import jax
import numpy as np

from specjax.checkpoints import folders, head_configs, hf
from specjax.heads import Head
from specjax.models import decoder

_EMBED, _HEAD = "embed.weight", "head.weight"


def cached(head: Head, *, dtype: str, cache: pathlib.Path) -> pathlib.Path:
  """The draft's whole model in `cache`, written if it is not there.

  Args:
    head: a draft_model's, opened beside its target.
    dtype: of the file.
    cache: a folder.
  """
  own = pathlib.Path(head.folder).resolve()
  stamps = [
    (str(path), path.stat().st_size, path.stat().st_mtime_ns)
    for folder in (own, pathlib.Path(head.target.folder).resolve())
    for path in sorted(folder.glob("*.safetensors"))
  ]
  digest = hashlib.sha256(json.dumps([stamps, dtype]).encode()).hexdigest()
  path = cache / f"{own.name}-{dtype}-{digest[:16]}"
  if not path.exists():
    cache.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(dir=cache))
    try:
      write(head, partial, dtype=dtype)
      partial.rename(path)  # What bears the name is whole.
    finally:
      shutil.rmtree(partial, ignore_errors=True)
  return path


def write(head: Head, folder: pathlib.Path, *, dtype: str) -> None:
  """Writes the whole model as a Hugging Face folder.

  Args:
    head: a draft_model's.
    folder: empty, or not there.
    dtype: of the file.
  """
  draft, kept = head.model, head.model.kept(head.params)
  embed, rows = draft.ends(head.params, head.target.params)
  if kept is not None:
    # Ids come by how frequent they are, in most vocabularies: the last is rare.
    table = np.array(jax.numpy.broadcast_to(rows[-1], embed.shape))
    table[np.asarray(kept)] = np.asarray(rows)
    rows = table
  given = dict(zip(draft.head.paths, head.params, strict=False))
  given |= {_EMBED: embed, _HEAD: rows}
  model: decoder.Model = draft.model
  config = hf.read_config(head.folder)
  for key in (head_configs.PROPOSER, head_configs.EMBEDDINGS):
    config.pop(key, None)
  hf.save_params(
    folder,
    model,
    [jax.numpy.asarray(given[path]) for path in model.paths],
    config=config | {"tie_word_embeddings": False},
    dtype=jax.numpy.dtype(dtype),
    others=folders.companions(pathlib.Path(head.target.folder)),
    overwrite=True,
  )
