"""RULE 24 of what drafts from a target's own layers and states.

Run by split_test, in a process that has eight simulated devices.
"""

import functools

from tests.sharding import eight

LAYERS = 3
MESHES = (
  ("data:2,model:2", "tensor", "heads"),
  ("data:2,model:4", "tensor2d", "sequence"),
)


def engine(kind, place=None, scan_layers=False):
  import jax.numpy as jnp

  from specjax.engine.loop import Engine
  from specjax.models.heads import medusa as heads
  from specjax.proposers.layer_skip import LayerSkip
  from specjax.proposers.medusa import Medusa
  from specjax.verifiers.rejection import Rejection

  target = eight.model(
    "chinchilla_tiny", place, LAYERS, scan_layers=scan_layers
  )
  whole = target.init(0)
  params, vocab = (), target.vocab_size
  if kind == "medusa":
    kept = tuple(range(0, vocab, 2))
    config = heads.MedusaConfig(
      d_model=target.config.d_model,
      vocab_size=vocab,
      heads=eight.LOOKAHEAD,
      shares=True,
      draft_vocab=len(kept),
    )
    model = heads.build(config, target)
    made = Medusa(model=model, lookahead=eight.LOOKAHEAD)
    params = model.complete(model.begin(whole), whole, jnp.asarray(kept))
  else:
    made = LayerSkip(
      model=target,
      layers={"prefix": (0, 1), "subset": (0, 2)}[kind],
      lookahead=eight.LOOKAHEAD,
      vocab_size=vocab,
    )
  return Engine(
    target,
    whole,
    made,
    params,
    verifier=Rejection(),
    slots=8,
    capacity=eight.CAPACITY,
    prefill_widths=eight.WIDTHS,
    stop_ids=(3,),
    top_logprobs=2,
  )


def agrees(kind, scan_layers=False):
  """The same tokens on several meshes as on one device."""
  expected = eight.answers(engine(kind, None, scan_layers))
  for mesh in MESHES:
    got = eight.answers(engine(kind, eight.placement(*mesh), scan_layers))
    eight.same_tokens(got, expected)


CHECKS = []
for _name, _args in (
  ("prefix", ("prefix",)),
  ("prefix_scanned", ("prefix", True)),
  ("subset", ("subset",)),
  ("subset_scanned", ("subset", True)),
  ("medusa", ("medusa",)),
):
  _check = functools.partial(agrees, *_args)
  _check.__name__ = _name
  CHECKS.append(_check)

if __name__ == "__main__":
  eight.main(CHECKS)
