"""Measures n-gram speculation against plain decoding on SmolLM2.

  make speed       (or: python demo/speed.py --dtype=bfloat16 --rounds=5)

One engine, one process, alternating: each round answers every prompt plainly
and speculatively, greedily. Printed are medians over rounds of tokens per
second, with and without the prompt's prefill, and their ratio. Prompts are the
demo's that repeat their input (rewrite, extract, summarise).
"""

import argparse
import dataclasses
import statistics
import sys

import run
import smollm2

from specjax import api
from specjax.jobs import prompts, requests

# The last two of the demo's prompts are free: nothing in them to copy.
FREE = 2

# Good on 2 CPU cores, where a bfloat16 pass costs by threes of tokens, and a
# float32 one of 12 costs 1.4 times as much as one of 3.
LOOKAHEAD = {"bfloat16": 5, "float32": 10}


def main() -> int:
  """Prints the table; gives the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--dtype", choices=api.DTYPES, default="bfloat16")
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--lookahead", type=int, default=None)
  args = parser.parse_args()

  lookahead = args.lookahead or LOOKAHEAD[args.dtype]
  target = api.load(str(smollm2.fetch()), dtype=args.dtype)
  engine = api.Engine(
    target, proposer="ngram", lookahead=lookahead, capacity=512
  )
  engine.warmup()
  rows = list(prompts.read(run.PROMPTS))[:-FREE]
  defaults = dataclasses.replace(run.DEFAULTS, lookahead=lookahead)
  built = [requests.build(row, defaults, target.tokenizer) for row in rows]

  whole = {"plain": [], "ngram": []}
  decode = {"plain": [], "ngram": []}
  tokens = steps = 0
  for _ in range(args.rounds):
    for name in whole:
      total_s = decode_s = count = 0.0
      for request in built:
        if name == "plain":
          request = dataclasses.replace(request, lookahead=0)
        done, seconds = run.answer(engine, request)
        total_s += seconds
        decode_s += done.token_times_s[-1] - done.ttft_s
        count += len(done.token_ids)
        if name == "ngram":
          tokens, steps = tokens + len(done.token_ids), steps + done.steps
      whole[name].append(count / total_s)
      decode[name].append((count - len(built)) / decode_s)

  print(
    f"SmolLM2-135M {args.dtype}, {len(built)} prompts that repeat their input,"
    f" lookahead {lookahead}, medians of {args.rounds} alternating rounds"
  )
  row = "{:<28} {:>8} {:>8} {:>8}"
  print(row.format("tokens/s", "plain", "ngram", "ratio"))
  for name, rates in (("decoding", decode), ("prefill included", whole)):
    plain, ngram = (statistics.median(rates[key]) for key in rates)
    print(
      row.format(name, f"{plain:.1f}", f"{ngram:.1f}", f"{ngram / plain:.2f}×")
    )
  ratios = [
    n / p for n, p in zip(decode["ngram"], decode["plain"], strict=True)
  ]
  print(f"ratio of each round: {', '.join(f'{r:.2f}' for r in ratios)}")
  print(f"tokens per step: {tokens / steps:.2f}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
