"""Answers ten prompts plainly and with two proposers, and compares them.

  make demo        (or, once installed: python demo/run.py)

`ngram` copies what followed the same words before; `eagle` is a head that comes
with specjax, trained on this model's own answers. All decode greedily in
float32, where speculation must not change a single token. The last line says
whether it did; the exit code is 1 if so.
"""

import dataclasses
import pathlib
import sys
import time

import smollm2

from specjax import api, compilation_cache
from specjax.jobs import prompts, requests

PROMPTS = pathlib.Path(__file__).with_name("prompts.jsonl")
HEAD = "smollm2-135m-eagle"
# On CPU a float32 pass of 12 tokens costs 1.4 times as much as one of 3. A
# draft of the head costs an eighth of a pass of the model, an n-gram nothing.
LOOKAHEAD = {"ngram": 10, "eagle": 3}
# Second guesses, which fill the pass up to eight tokens.
SIBLINGS = {"ngram": 0, "eagle": 4}
# A quarter of float32's bytes is read of the head.
WEIGHTS = {"ngram": None, "eagle": "int8"}
DEFAULTS = requests.Defaults(
  chat=True, settings={"max_new_tokens": 96}, lookahead=max(LOOKAHEAD.values())
)

ROW = "{:<34} {:>6} {:>9} {:>9} {:>7} {:>6} {:>9} {:>7} {:>6}"


def main() -> int:
  """Prints the table; gives the exit code."""
  compilation_cache.enable(smollm2.CACHE / "xla")
  folder = smollm2.fetch()
  target = api.load(str(folder), dtype="float32")
  draft = {"ngram": None, "eagle": api.load_head(HEAD, target)}
  engines = {
    kind: api.Engine(
      target,
      proposer=kind,
      draft=draft[kind],
      lookahead=lookahead,
      siblings=SIBLINGS[kind],
      draft_weights=WEIGHTS[kind],
      capacity=512,
    )
    for kind, lookahead in LOOKAHEAD.items()
  }
  print("compiling (a minute or so the first time)", flush=True)
  for engine in engines.values():
    engine.warmup()

  speeds = ("tokens/s", "faster", "a step")
  print(
    ROW.format("prompt", "tokens", "plain", "ngram", "", "", "eagle", "", "")
  )
  print(ROW.format("", "", "tokens/s", *speeds, *speeds))
  identical = True
  total = {kind: Row() for kind in ("plain", *engines)}
  for row in prompts.read(PROMPTS):
    request = requests.build(row, DEFAULTS, target.tokenizer)
    # With a lookahead of 0 an engine runs its plain program: no proposer, no
    # verifier, one token a step.
    plain = dataclasses.replace(request, lookahead=0)
    expected, own = answer(engines["ngram"], plain)
    found = {"plain": own}
    for kind, engine in engines.items():
      drafting = dataclasses.replace(request, lookahead=LOOKAHEAD[kind])
      drafted, found[kind] = answer(engine, drafting)
      identical &= expected.token_ids == drafted.token_ids
    print(ROW.format(head(row.prompt), *figures(found)), flush=True)
    total = {kind: total[kind] + found[kind] for kind in total}
  print(ROW.format("all", *figures(total)))
  print(f"tokens identical: {'yes' if identical else 'no'}")
  return 0 if identical else 1


@dataclasses.dataclass(frozen=True)
class Row:
  """Tokens of an answer, the steps they took, and seconds."""

  tokens: int = 0
  steps: int = 0
  seconds: float = 0.0

  def __add__(self, other: "Row") -> "Row":
    pairs = zip(
      dataclasses.astuple(self), dataclasses.astuple(other), strict=True
    )
    return Row(*map(sum, pairs))


def answer(engine: api.Engine, request):
  """The completion of one request, and its figures, prompt included."""
  start = time.perf_counter()
  *_, completion = engine.run([request])
  seconds = time.perf_counter() - start
  if completion.error is not None:
    sys.exit(f"demo: {completion.id}: {completion.error}")
  return completion, Row(len(completion.token_ids), completion.steps, seconds)


def figures(found: dict[str, Row]):
  """The numbers of a row of the table, as text."""
  plain = found["plain"]
  cells = [str(plain.tokens), f"{plain.tokens / plain.seconds:.1f}"]
  for kind in LOOKAHEAD:
    own = found[kind]
    cells += [
      f"{own.tokens / own.seconds:.1f}",
      f"{plain.seconds / own.seconds:.2f}×",
      f"{own.tokens / own.steps:.2f}",
    ]
  return cells


def head(prompt: str) -> str:
  """The beginning of a prompt, in one line."""
  line = " ".join(prompt.split())
  return line if len(line) <= 33 else line[:32] + "…"


if __name__ == "__main__":
  sys.exit(main())
