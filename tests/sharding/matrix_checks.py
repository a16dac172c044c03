"""RULE 24 for every strategy and count of devices; run by matrix_test.

python -m tests.sharding.matrix_checks strategies
python -m tests.sharding.matrix_checks smollm2 FOLDER
python -m tests.sharding.matrix_checks whole draft_model|ngram
python -m tests.sharding.matrix_checks hosts PORT PROCESS
"""

import dataclasses
import functools
import itertools
import json
import math
import pathlib
import sys
import tempfile

from specjax.sharding import shape
from tests.sharding import eight

MESHES = ("model:1", "model:2", "data:2,model:2", "data:2,model:4")
REQUESTS = dict(count=12, tokens=24)


def answers(made):
  return eight.answers(made, eight.requests(**REQUESTS))


@functools.cache
def expected(proposer):
  return answers(eight.engine(proposer=proposer))


def strategies():
  """Checks, of each strategy on 1, 2, 4 and 8 devices, with either proposer."""
  draft = "draft_model"
  kinds = ("tensor", "tensor2d", "fsdp", "replicated")
  for strategy, mesh, proposer in itertools.product(
    kinds, MESHES, (draft, "ngram")
  ):
    if strategy == "replicated":  # rows alone are split
      count = math.prod(shape.parse(mesh).values())
      mesh = f"data:{count}"
    yield functools.partial(agrees, mesh, strategy, "heads", proposer)
  for strategy, mesh, caches in itertools.product(
    ("tensor", "tensor2d"), MESHES[2:], ("rows", "sequence")
  ):
    yield functools.partial(agrees, mesh, strategy, caches, draft)
  for rules in ("replicated", "fsdp"):  # of the draft's own
    yield functools.partial(agrees, MESHES[-1], "tensor", "heads", draft, rules)


def agrees(mesh, strategy, caches, proposer, draft=None):
  """Gives (tokens, rows that differ)."""
  made = eight.engine(
    mesh,
    strategy,
    caches,
    proposer=proposer,
    draft_strategy=draft,
    slots=8,
  )
  return compared(answers(made), expected(proposer))


def compared(got, wanted):
  assert got.keys() == wanted.keys()
  differ = [key for key in wanted if got[key] != wanted[key]]
  return sum(map(len, wanted.values())), len(differ)


def first_layers(folder, to, layers=4):
  """A draft made of a model's first layers, as a folder."""
  from specjax import api
  from specjax.checkpoints import folders, hf
  from specjax.models import decoder

  target = api.load(folder)
  by_path = dict(zip(target.model.paths, target.params, strict=True))
  config = dataclasses.replace(target.model.config, layers=layers)
  model = decoder.build(config)
  hf.save_params(
    to,
    model,
    tuple(by_path[path] for path in model.paths),
    config=hf.read_config(folder) | {"num_hidden_layers": layers},
    others=folders.companions(pathlib.Path(folder)),
  )
  return to


# Of the real model: mesh, strategy, caches and who drafts.
SMOLLM2 = (
  ("model:1", "tensor", "heads", "ngram"),
  ("model:1", "tensor", "heads", "draft_model"),
  ("model:2", "tensor", "heads", "ngram"),
  ("data:2", "replicated", "heads", "draft_model"),
  ("model:4", "tensor", "heads", "ngram"),
  ("data:2,model:2", "tensor", "heads", "draft_model"),
  ("data:2,model:2", "fsdp", "heads", "draft_model"),
  ("data:2,model:2", "tensor2d", "heads", "ngram"),
  ("data:2,model:4", "tensor", "heads", "ngram"),
  ("data:2,model:4", "tensor", "heads", "draft_model"),
  ("data:2,model:4", "tensor2d", "heads", "draft_model"),
  ("data:4,model:2", "fsdp", "heads", "ngram"),
  ("data:8", "replicated", "heads", "ngram"),
  ("data:2,model:4", "tensor", "sequence", "ngram"),
  ("data:2,model:4", "tensor", "rows", "draft_model"),
)


def smollm2():
  """The real model, its nine heads padded where they do not divide."""
  from specjax import api
  from specjax.engine.request import Request, SamplingParams

  text = "The sea was calm. " * 4 + "Once upon a time"
  folder = sys.argv[2]
  small = first_layers(folder, pathlib.Path(tempfile.mkdtemp()) / "draft")

  def run(proposer, place=None, **how):
    if place is not None:
      how |= dict(mesh=place.mesh, pad_heads="model" in str(place.rules))
    load = functools.partial(api.load, **how)
    made = api.Engine(
      load(folder),
      proposer=proposer,
      draft=load(small) if proposer == "draft_model" else None,
      slots=8,
      capacity=192,
      lookahead=4,
    )
    wanted = [
      Request(
        prompt=made.encode(text[6 * index :]),
        id=str(index),
        sampling=SamplingParams(
          temperature=(0.0, 0.8)[index % 2],
          seed=index,
          top_p=(1.0, 0.9)[index % 2],
        ),
        max_new_tokens=60,
      )
      for index in range(8)
    ]
    return eight.answers(made, wanted)

  whole = functools.cache(run)

  def agrees(mesh, strategy, caches, proposer):
    place = eight.placement(mesh, strategy, caches)
    got = run(proposer, place, strategy=strategy, cache_sharding=caches)
    return compared(got, whole(proposer))

  for setup in SMOLLM2:
    yield functools.partial(agrees, *setup)


def hosts(port, process):
  """This process's four devices and another's: the same program on both."""
  import jax

  jax.distributed.initialize(f"localhost:{port}", 2, int(process))
  assert jax.device_count() == 8 and jax.local_device_count() == 4
  for mesh, strategy, proposer in (
    ("data:2,model:4", "tensor", "draft_model"),
    ("model:8", "tensor", "ngram"),
  ):
    got = answers(eight.engine(mesh, strategy, proposer=proposer, slots=8))
    yield [proposer, rows(got)]


def rows(found):
  """Answers as JSON has them: id, sample, token ids."""
  return [[*key, *ids] for key, ids in sorted(found.items())]


def main(kind, *args):
  if kind == "hosts":
    found = list(hosts(*args))
  elif kind == "whole":
    found = rows(expected(*args))
  else:
    checks = {"strategies": strategies, "smollm2": smollm2}[kind]()
    found = []
    for check in checks:
      found.append(check())
      print(getattr(check, "args", ""), found[-1], file=sys.stderr, flush=True)
  print(json.dumps(found))


if __name__ == "__main__":
  main(*sys.argv[1:])
