"""Random heads of every kind, in folders as training leaves them."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import heads
from specjax.models.heads import eagle, medusa, mtp, thin


def build(kind, target, draft_vocab=None):
  """The head's model, for a decoder's; all of the ids unless told."""
  config = target.config
  some = dict(draft_vocab=draft_vocab)
  match kind:
    case "eagle":
      return eagle.build(eagle.small(config, fuses=True, **some), target)
    case "mtp":
      return mtp.build(mtp.small(config, **some), target)
    case "medusa":
      sizes = dict(d_model=config.d_model, vocab_size=config.vocab_size)
      own = medusa.MedusaConfig(heads=3, **sizes, **some)
      return medusa.build(own, target)
    case "draft_model":
      layer = dataclasses.replace(config, layers=1)
      own = thin.ThinConfig(decoder=layer, is_thin=True, **some)
      return thin.build(own, target)


def save(folder, target, kind, *, reduced=False, tokenizer=None):
  """Writes a head of a `Pretrained`; gives the folder.

  Args:
    folder: made if it is not there.
    target: whom it drafts for.
    kind: of `heads.KINDS`; a draft_model takes its ends from the target.
    reduced: whether it drafts every second id alone.
    tokenizer: the fingerprint of another target.
  """
  kept = np.arange(0, target.model.vocab_size, 2) if reduced else None
  model = build(kind, target.model, len(kept) if reduced else None)
  draws = np.random.default_rng(1)
  params = tuple(
    jnp.asarray(draws.normal(0, 0.3, spec.shape), spec.dtype)
    for spec in model.head.shapes
  )
  heads.save_head(
    folder,
    kind,
    model,
    params,
    target=target.model.config,
    tokenizer=tokenizer or target.tokenizer.fingerprint(),
    kept=kept,
  )
  return folder
