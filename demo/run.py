"""Answers eight prompts plainly and speculatively, and compares the two.

  make demo        (or, once installed: python demo/run.py)

Both paths decode greedily in float32, where speculation must not change a
single token. The last line says whether it did; the exit code is 1 if so.
"""

import dataclasses
import pathlib
import sys
import time

import smollm2

from specjax import api, compilation_cache
from specjax.jobs import prompts, requests

PROMPTS = pathlib.Path(__file__).with_name("prompts.jsonl")
# On CPU a float32 pass of 12 tokens costs 1.4 times as much as one of 3.
LOOKAHEAD = 10
DEFAULTS = requests.Defaults(
  chat=True, settings={"max_new_tokens": 96}, lookahead=LOOKAHEAD
)

ROW = "{:<34} {:>6} {:>11} {:>11} {:>8} {:>11}"


def main() -> int:
  """Prints the table; gives the exit code."""
  compilation_cache.enable(smollm2.CACHE / "xla")
  folder = smollm2.fetch()
  target = api.load(str(folder), dtype="float32")
  engine = api.Engine(
    target, proposer="ngram", lookahead=LOOKAHEAD, capacity=512
  )
  print("compiling (a minute or so the first time)", flush=True)
  engine.warmup()

  print(
    ROW.format("prompt", "tokens", "plain", "speculative", "speed-up", "tokens")
  )
  print(ROW.format("", "", "tokens/s", "tokens/s", "", "per step"))
  identical = True
  tokens = steps = 0
  plain_s = ngram_s = 0.0
  for row in prompts.read(PROMPTS):
    request = requests.build(row, DEFAULTS, target.tokenizer)
    # With a lookahead of 0 the engine runs its plain program: no proposer, no
    # verifier, one token a step.
    expected, expected_s = answer(
      engine, dataclasses.replace(request, lookahead=0)
    )
    drafted, drafted_s = answer(engine, request)
    identical &= expected.token_ids == drafted.token_ids
    print(
      ROW.format(
        head(row.prompt),
        *figures(len(expected.token_ids), drafted.steps, expected_s, drafted_s),
      ),
      flush=True,
    )
    tokens += len(expected.token_ids)
    steps += drafted.steps
    plain_s += expected_s
    ngram_s += drafted_s
  print(ROW.format("all", *figures(tokens, steps, plain_s, ngram_s)))
  print(f"tokens identical: {'yes' if identical else 'no'}")
  return 0 if identical else 1


def answer(engine: api.Engine, request):
  """The completion of one request and the seconds it took, prompt included."""
  start = time.perf_counter()
  *_, completion = engine.run([request])
  seconds = time.perf_counter() - start
  if completion.error is not None:
    sys.exit(f"demo: {completion.id}: {completion.error}")
  return completion, seconds


def figures(tokens: int, steps: int, plain_s: float, ngram_s: float):
  """The numbers of a row of the table, as text."""
  return (
    str(tokens),
    f"{tokens / plain_s:.1f}",
    f"{tokens / ngram_s:.1f}",
    f"{plain_s / ngram_s:.2f}×",
    f"{tokens / steps:.2f}",
  )


def head(prompt: str) -> str:
  """The beginning of a prompt, in one line."""
  line = " ".join(prompt.split())
  return line if len(line) <= 33 else line[:32] + "…"


if __name__ == "__main__":
  sys.exit(main())
