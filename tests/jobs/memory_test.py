"""A job's memory does not grow with the number of its rows."""

import collections
import gc
import tracemalloc

from specjax.jobs import output, prompts, requests, run
from tests import engines, fake_engine, table_model


def rows_of(count, prompt):
  return [
    prompts.Row(
      line=line, id=str(line), prompt=prompt, messages=None, settings={}
    )
    for line in range(1, count + 1)
  ]


def measure(tmp_path, engine, encoder, rows, *, longest, read, at):
  """Runs a job; what `read` gives when so many rows are written."""
  found = []

  class Watched:
    count = 0

    def write(self, row):
      out.write(row)
      self.count += 1
      if self.count in at:
        gc.collect()
        found.append(read())

    def pulse(self):
      out.pulse()

  with output.claim(tmp_path / "out.jsonl") as out:
    out.begin(b"{}")
    result = run.run(
      engine,
      rows,
      encoder=encoder,
      defaults=requests.Defaults(settings={"max_new_tokens": longest}),
      out=Watched(),
    )
  assert result.summary.requests == len(rows)
  return found


def test_nothing_is_kept_of_a_row_that_is_written(tmp_path):
  """Kept whole, 400 rows of 150 tokens would be some 3 MB."""
  engine = fake_engine.Engine(slots=16)
  engine.requests = collections.deque(maxlen=1)  # Those are its own.
  tracemalloc.start()
  try:
    early, late = measure(
      tmp_path,
      engine,
      fake_engine.Encoder(),
      rows_of(500, "x" * 150),
      longest=150,
      read=lambda: tracemalloc.get_traced_memory()[0],
      at=(100, 500),
    )
  finally:
    tracemalloc.stop()
  assert late - early < 700_000


class Letters:
  def encode(self, text):
    return [ord(letter) - ord("a") for letter in text]


def resident_bytes():
  with open("/proc/self/statm") as file:
    return int(file.read().split()[1]) * 4096


def test_2000_prompts_at_16_slots_hold_memory_flat(tmp_path):
  engine = engines.make("ngram", table_model.make_table(8, 0), slots=16)
  early, late = measure(
    tmp_path,
    engine,
    Letters(),
    rows_of(2000, "abcd"),
    longest=16,
    read=resident_bytes,
    at=(500, 2000),
  )
  print(f"{early / 1e6:.1f} MB after 500 rows, {late / 1e6:.1f} after 2,000")
  assert late - early < 4_000_000
