"""specjax: speculative decoding in JAX, exact and fast.

The names below are loaded when first used, so that a command's --help does not
wait for JAX.
"""

_PUBLIC = {
  "load": "specjax.api",
  "Engine": "specjax.api",
  "Head": "specjax.api",
  "Pretrained": "specjax.api",
  "load_head": "specjax.api",
  "Chunk": "specjax.engine.request",
  "Completion": "specjax.engine.request",
  "Request": "specjax.engine.request",
  "SamplingParams": "specjax.engine.request",
}

__all__ = sorted(_PUBLIC)
__version__ = "0.1.0"


def __getattr__(name: str):
  if name not in _PUBLIC:
    raise AttributeError(f"module 'specjax' has no attribute {name!r}")
  import importlib

  return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__():
  return __all__
