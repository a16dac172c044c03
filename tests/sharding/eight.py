"""Engines of chinchilla_tiny, whole and split over simulated devices.

Imported by programs that run in a process of their own (see `main`): a process
has as many devices as it started with, and the tests' has one.
"""

import dataclasses
import functools
import json
import math
import os
import re
import subprocess
import sys
import traceback
import warnings

# Half of the compile time; the same for the engines that are compared.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes"


def started(module: str, *args: str, devices: int = 8) -> subprocess.Popen:
  """`python -m module args` with so many devices."""
  flags = f"--xla_force_host_platform_device_count={devices} {QUICK}=true"
  return subprocess.Popen(
    [sys.executable, "-m", module, *args],
    env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    cwd=os.path.join(os.path.dirname(__file__), "../.."),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def results(process: subprocess.Popen) -> dict[str, str | None]:
  """What `main` printed there: of each check None, or how it failed."""
  out, err = process.communicate()
  assert process.returncode == 0, err
  return json.loads(out.splitlines()[-1])


def main(checks) -> None:
  """Runs functions, and prints a line of JSON: name to error or null."""
  import jax

  jax.config.update("jax_numpy_dtype_promotion", "strict")
  warnings.simplefilter("error")
  found = {}
  for check in checks:
    try:
      found[check.__name__] = check()
    except Exception:
      found[check.__name__] = traceback.format_exc()
  print(json.dumps(found))


def placement(mesh: str | None, strategy="tensor", caches=None):
  """Rules on the first devices, as many as the mesh takes."""
  import jax

  from specjax.sharding import mesh as mesh_lib
  from specjax.sharding import rules, shape
  from specjax.sharding.placement import Placement

  if mesh is None:
    return None
  count = math.prod(shape.parse(mesh).values())
  made = mesh_lib.make(mesh, jax.devices()[:count])
  return Placement(made, rules.find(strategy, caches))


def check_alike(compute, *, atol: float) -> None:
  """Asserts that one array comes of a placement, or None, however it splits.

  Args:
    compute: placement -> array.
    atol: how far apart they may be.
  """
  import numpy as np

  expected = compute(None)
  for mesh, strategy, split_by in (
    ("data:2,model:2", "fsdp", None),
    ("data:8", "replicated", None),
    ("data:2,model:4", "tensor2d", "rows"),
    ("model:2", "tensor", "sequence"),
  ):
    got = compute(placement(mesh, strategy, split_by))
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


def model(name: str, place, layers: int | None = None, **options):
  """A preset, with fewer layers if asked."""
  from specjax.models import decoder, presets

  config = presets.get(name)
  if layers is not None:
    config = dataclasses.replace(config, layers=layers)
  return decoder.build(config, placement=place, **options)


LOOKAHEAD, CAPACITY, WIDTHS = 3, 120, (8,)


def engine(
  mesh: str | None = None,
  strategy="tensor",
  caches: str | None = None,
  *,
  proposer: str = "draft_model",
  draft_strategy=None,
  slots: int = 4,
  layers: int = 2,
  family: str = "chinchilla",
  siblings: int = 0,
  **options,
):
  """An engine of a target and, drafting, a smaller one."""
  from specjax.engine.loop import Engine
  from specjax.proposers.draft_model import DraftModel
  from specjax.proposers.ngram import Ngram
  from specjax.verifiers.rejection import Rejection

  place = functools.partial(placement, mesh, caches=caches)
  target = model(f"{family}_tiny", place(strategy), layers)
  made = Ngram(
    lookahead=LOOKAHEAD, shortest=1, reads_source=target.reads_source
  )
  params = ()
  if proposer == "draft_model":
    draft = model(
      f"{family}_tiny_draft", place(draft_strategy or strategy), layers=1
    )
    vocab = target.vocab_size
    made = DraftModel(
      model=draft, lookahead=LOOKAHEAD, vocab_size=vocab, siblings=siblings
    )
    params = draft.init(1)
  return Engine(
    target,
    target.init(0),
    made,
    params,
    verifier=Rejection(),
    slots=slots,
    capacity=CAPACITY,
    prefill_widths=WIDTHS,
    stop_ids=(3,),
    top_logprobs=2,
    **options,
  )


def requests(count: int = 5, tokens: int = 14):
  """Greedy and sampled ones, filtered, penalised, scored, several samples."""
  import numpy as np

  from specjax.engine.request import Request, SamplingParams

  draws = np.random.default_rng(1)
  for index in range(count):
    settings = [
      {},
      dict(temperature=0.9, top_k=(0, 50)[index % 2], top_p=0.9),
      dict(temperature=1.2, repetition_penalty=1.2, logit_bias={7: 2.0}),
      dict(temperature=0.7, min_p=0.02),
    ][index % 4]
    size = int(draws.integers(1, 30))
    yield Request(
      prompt=tuple(draws.integers(0, 264, size).tolist()),
      id=str(index),
      sampling=SamplingParams(seed=index, **settings),
      max_new_tokens=tokens,
      n=2 if index % 4 == 2 else 1,
      logprobs=(None, 2)[index % 2],
    )


def answers(made, wanted=None) -> dict[tuple[str, int], tuple[int, ...]]:
  """The ids that an engine gives for requests."""
  from specjax.engine.request import Completion

  done = {}
  for event in made.run(list(requests() if wanted is None else wanted)):
    if isinstance(event, Completion):
      assert event.error is None, event
      done[event.id, event.sample] = event.token_ids
  return done


def same_tokens(got, expected) -> None:
  """RULE 24: equal up to rounding, which at most 1 in 2,000 tokens shows.

  What follows a token that differs is another text: a row counts once.
  """
  assert got.keys() == expected.keys()
  tokens = sum(map(len, expected.values()))
  differ = [key for key in expected if got[key] != expected[key]]
  assert len(differ) <= math.ceil(tokens / 2000), (differ, tokens)


_COLLECTIVE = re.compile(
  r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute"
  r"|reduce-scatter|collective-broadcast)(?:-start)?\(.*?op_name=\"([^\"]*)\""
)
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Collective:
  """One array that devices exchange, in a compiled program.

  Attributes:
    kind: "all-reduce" and its like.
    shape: what a device has of it afterwards.
    name: the operations it was made for.
  """

  kind: str
  shape: tuple[int, ...]
  name: str


def collectives(text: str) -> list[Collective]:
  """Those of a compiled program's text; of combined ones each by itself."""
  return [
    Collective(kind, tuple(map(int, filter(None, shape.split(",")))), name)
    for shapes, kind, name in _COLLECTIVE.findall(text)
    for shape in _SHAPE.findall(shapes)
  ]


def of_layers(found: list[Collective]) -> list[Collective]:
  """Those of the models' layers and of what they read."""
  return [one for one in found if "_layer" in one.name or "(_take)" in one.name]
