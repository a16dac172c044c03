"""A tiny encoder-decoder, and pairs for it whose outputs follow a rule."""

import functools
import pathlib
import tempfile

import numpy as np

from specjax import pretrained
from specjax.checkpoints import random_folder
from specjax.training import data, objective, packing, recipes

LENGTH = 16
V = 264


@functools.cache
def target():
  folder = pathlib.Path(tempfile.mkdtemp(prefix="specjax-pairs-"))
  random_folder.plan("t5_tiny", size={"d_ff": 32}).write(folder, seed=1)
  return pretrained.load(folder)


def corpus(count=24, seed=0):
  """The output is the source backwards, and the end."""
  draws = np.random.default_rng(seed)
  tokens, starts, answers = [], [0], []
  for _ in range(count):
    source = draws.integers(10, 20, draws.integers(2, 6))
    both = [*source, *source[::-1], V - 1]
    tokens += both
    starts.append(len(tokens))
    answers.append(len(source))
  return data.Corpus(
    tokens=np.asarray(tokens, np.int32),
    starts=np.asarray(starts, np.int64),
    answer=np.asarray(answers, np.int32),
    name="made",
    is_pairs=True,
  )


def rows(made, length=LENGTH):
  return packing.Pairs(made, length, start=target().model.config.start_id)


def draft(weights=None, **how):
  own = target()
  law = objective.Law(
    target=own.model, kept=None, layers=(own.model.config.layers,)
  )
  how = how or dict(layers=(0,), ends="own")
  weights = weights or {"next_token": 1.0}
  return recipes.draft(own, law, weights, placement=None, **how)
