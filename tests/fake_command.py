"""specjax-generate without a model, as a process: python -m tests.fake_command.

FAKE_STEP_S   how long a step takes, in seconds
FAKE_COMPILE  "deaf": compiling takes minutes and is deaf to signals, in C all
              the while; "nap": it takes minutes in Python
FAKE_SILENCE_S  how long another process may be silent, in seconds
"""

import hashlib
import os
import sys
import threading
import time
import types

import specjax
from specjax import engine
from specjax.cli import generate
from specjax.sharding import watch
from tests import fake_engine


class Engine(fake_engine.Engine):
  def warmup(self):
    match os.environ.get("FAKE_COMPILE"):
      case "deaf":
        work()
      case "nap":
        time.sleep(300)
      case "thread":
        threading.Thread(target=work).start()
        time.sleep(300)


def work():
  hashlib.pbkdf2_hmac("sha256", b"", b"", 2**30)


def step(finished):
  del finished
  time.sleep(float(os.environ.get("FAKE_STEP_S", 0)))


if __name__ == "__main__":
  if silence := os.environ.get("FAKE_SILENCE_S"):
    watch.SILENCE_S = float(silence)
  api = types.ModuleType("specjax.api")
  api.load = lambda name, **options: types.SimpleNamespace(
    name=name,
    tokenizer=fake_engine.Encoder(),
    folder=name,
    is_padded=False,
  )
  api.Engine = lambda target, **options: Engine(step, options["slots"])
  sys.modules["specjax.api"] = specjax.api = api
  # Those two import jax, which takes a second.
  cache = types.ModuleType("specjax.compilation_cache")
  cache.enable = lambda folder: None
  sys.modules["specjax.compilation_cache"] = specjax.compilation_cache = cache
  memory = types.ModuleType("specjax.engine.memory")
  memory.line = lambda needed, limit: "memory: little"
  sys.modules["specjax.engine.memory"] = engine.memory = memory
  sys.argv[0] = "specjax-generate"
  generate.cli()
