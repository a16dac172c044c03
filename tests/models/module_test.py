"""A pass of some of the layers is the pass of a model of those layers."""

import dataclasses

import jax
import numpy as np
import pytest

from specjax.models import decoder
from tests.models import golden


def smaller(model, layers):
  """A model of these layers, and where its parameters lie in the whole's."""
  windows = model.config.windows
  config = dataclasses.replace(
    model.config,
    layers=len(layers),
    windows=tuple(windows[n] for n in layers) if windows else (),
  )
  built = decoder.build(config)

  def whole(path):
    kind, *rest = path.split(".")
    if kind == "layers":
      rest[0] = str(layers[int(rest[0])])
    return ".".join([kind, *rest])

  places = [model.paths.index(whole(path)) for path in built.paths]
  return built, places


@pytest.mark.parametrize(
  "name, layers", [("gemma3", (0, 2, 3)), ("llama_untied", (1,))]
)
def test_some_layers_are_as_a_model_of_them(name, layers):
  made = golden.load(name)
  model, places = smaller(made.model, layers)
  tokens = made.tokens[:, :9]
  params = tuple(made.params[place] for place in places)
  cache = made.model.only(layers).init_cache(len(tokens), 16)
  assert cache.k.shape[0] == len(layers)
  want = jax.jit(model)(params, tokens, cache)
  got = jax.jit(made.model.only(layers))(made.params, tokens, cache)
  golden.close(got.logits, want.logits)
  golden.close(got.cache.k, want.cache.k)


@pytest.mark.long
@pytest.mark.parametrize("name", ("gemma3", "gpt2", "qwen2"))
def test_scanned_and_unrolled_layers_agree(name):
  for layers in ((0,), (1,)):
    one, other = (golden.load(name, scan_layers=scan) for scan in (False, True))
    run = lambda made, layers: jax.jit(
      made.model.only(layers), static_argnums=3
    )(made.params, made.tokens, None, (layers[0] + 1,))
    got, want = run(other, layers), run(one, layers)
    golden.close(got.logits, want.logits)
    golden.close(got.features, want.features)


def test_a_prefix_may_use_the_whole_models_cache():
  made = golden.load("gemma3")
  tokens = made.tokens[:, :9]
  cache = made.model.init_cache(len(tokens), 16)
  whole = jax.jit(made.model)(made.params, tokens, cache).cache
  prefix = jax.jit(made.model.only((0, 1)))(made.params, tokens, cache).cache
  golden.close(prefix.k[:2], whole.k[:2])
  np.testing.assert_array_equal(prefix.k[2:], cache.k[2:])
