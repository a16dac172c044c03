"""Heads beside a target that is split over devices; run by heads_test."""

import functools
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from specjax.cache import caches as caches_in
from specjax.checkpoints import heads
from specjax.engine.loop import Engine
from specjax.models import config as config_lib
from specjax.models import decoder, presets
from specjax.models.heads import eagle, eagle_layer, mtp, thin
from specjax.proposers.draft_model import DraftModel
from specjax.proposers.eagle import Eagle
from specjax.proposers.mtp import Mtp
from specjax.training import chain
from specjax.verifiers.rejection import Rejection
from tests import engines
from tests.models.heads import tiny
from tests.sharding import eight

C = 3
NAME = "chinchilla_tiny"  # has eight heads
# Vd has to divide where a draft's own head is split.
KEPT = np.asarray([0, 1, 3, 4, 7, 8, 9, 12, 15, 17, 20, 23])


def target(placement):
  model = decoder.build(
    config_lib.from_hugging_face({**tiny.CONFIG, "num_hidden_layers": 1}),
    placement=placement,
  )
  return model, model.init(5)


def proposers(model, params):
  """{name: (proposer, its parameters)} of one target."""
  made = {}
  for fuses in (False, True):
    config = eagle.small(model.config, fuses=fuses, draft_vocab=len(KEPT))
    head = eagle.build(config, model)
    own = head.complete(head.head.init(7), params, KEPT)
    made[f"eagle {fuses}"] = Eagle(model=head, lookahead=C), own
  # With all of the ids, which are split over devices.
  all_ids = eagle.build(eagle.small(model.config, fuses=True), model)
  made["eagle, all ids"] = (
    Eagle(model=all_ids, lookahead=C),
    all_ids.complete(all_ids.head.init(8), params),
  )
  modules = mtp.build(mtp.small(model.config, depths=2), model)
  made["mtp"] = (
    Mtp(model=modules, lookahead=C),
    modules.complete(modules.head.init(9), params),
  )
  whole = thin.ThinConfig(
    decoder=model.config, is_thin=True, draft_vocab=len(KEPT)
  )
  draft = thin.build(whole, model)
  given = dict(zip(model.paths, params, strict=True))
  own = tuple(given[path] for path in draft.head.paths)
  made["thin"] = (
    DraftModel(model=draft, lookahead=C, vocab_size=model.vocab_size),
    draft.complete(own, params, KEPT),
  )
  return made


def answers(mesh=None, strategy="tensor", caches=None):
  """{name: tokens of a few rows}."""
  placement = eight.placement(mesh, strategy, caches) if mesh else None
  model, params = target(placement)
  draws = np.random.default_rng(0)
  rows = [
    engines.request(
      draws.integers(0, tiny.VOCAB, size),
      size,
      max_new_tokens=9,
      temperature=size % 2,
      presence_penalty=size % 3 / 2,
    )
    for size in (1, 2, 9, 12, 5)
  ]
  found = {}
  for name, (proposer, own) in proposers(model, params).items():
    engine = Engine(
      *(model, params, proposer, own),
      verifier=Rejection(),
      slots=4,
      capacity=40,
      prefill_widths=(8,),
    )
    done = engines.complete(engine, rows)
    found[name] = [done[row.id].token_ids for row in rows]
    assert sum(row.drafted for row in done.values()) > 20
    if mesh:
      specs = [one.k.sharding.spec for one in caches_in(engine.state.draft)]
      rows_split = bool(placement.over("rows", "caches"))
      assert {"data" in str(spec) for spec in specs} == {rows_split}
  return found


@functools.cache
def whole():
  return answers()


def check_gradients_of_a_split_head_are_those_of_one_device():
  draws = np.random.default_rng(0)
  tokens = draws.integers(0, 264, (4, 9)).astype(np.int32)
  states = draws.normal(size=(4, 9, 3, 128)).astype(np.float32)
  positions = np.broadcast_to(np.arange(9, dtype=np.int32), (4, 9))

  def slopes(placement):
    own = eight.model(NAME, placement, layers=1)
    found = []
    for fuses in (False, True):
      head = eagle.build(eagle.small(own.config, fuses=fuses), own)
      run = chain.eagle(head, 2)
      batch = dict(tokens=tokens, positions=positions)

      def loss(params, target, head=head, run=run, batch=batch):
        seen = states[:, :, : len(head.features)]
        return sum(
          jnp.mean(jax.nn.log_softmax(logits)[..., 7])
          for logits, _ in run(params, target, batch, seen)
        )

      given = own.init(0)
      whole = head.complete(head.head.init(1), given)
      found += jax.jit(jax.grad(loss))(whole, given)
    return np.concatenate([np.asarray(one).ravel() for one in found])

  eight.check_alike(slopes, atol=1e-5)


def check_rule_24_tensor():
  assert answers("data:2,model:2") == whole()


def check_rule_24_caches_by_rows():
  assert answers("data:2,model:2", caches="rows") == whole()


def check_rule_24_tensor2d():
  assert answers("data:2,model:2", strategy="tensor2d") == whole()


def check_every_strategy_and_cache_gives_the_same_logits():
  draws, width = np.random.default_rng(0), presets.get(NAME).d_model
  tokens = draws.integers(0, 264, (8, 5)).astype(np.int32)
  states = draws.normal(size=(8, 5, eagle_layer.STATES, width))
  states = states.astype(np.float32)

  def logits(build, place):
    own = eight.model(NAME, place, layers=1)
    model = build(own)

    def run(target, params):
      read = functools.partial(model.read, params, target)
      features = states[:, :, : len(model.features)]
      hidden = model.fuse(params, target, features)
      hidden, cache = read(tokens, hidden, model.init_cache(8, 128))
      last = hidden[:, -1:]
      hidden, _ = read(tokens[:, :1], last, cache.commit(np.int32(5)))
      return model.logits(params, target, hidden)

    given = own.init(0)
    params = model.complete(model.head.init(1), given)
    return np.asarray(jax.jit(run)(given, params))

  for build in (
    lambda own: eagle.build(eagle.small(own.config, fuses=False), own),
    lambda own: eagle.build(eagle.small(own.config, fuses=True), own),
    lambda own: mtp.build(mtp.small(own.config), own),
  ):
    eight.check_alike(functools.partial(logits, build), atol=5e-5)


def check_each_device_reads_its_part_of_a_head():
  def made(placement):
    own, params = target(placement)
    return own, params, eagle.build(eagle.small(own.config, fuses=True), own)

  own, _, model = made(None)
  written = model.head.init(8)
  with tempfile.TemporaryDirectory() as folder:
    heads.save_head(folder, "eagle", model, written, target=own.config)
    own, params, model = made(eight.placement("data:2,model:2"))
    read = heads.open_head(folder, own, kind="eagle").params(params)
  for value, place, whole in zip(read, model.shardings, written, strict=True):
    assert value.sharding.is_equivalent_to(place, value.ndim)
    np.testing.assert_array_equal(np.asarray(value), np.asarray(whole))
  part = read[model.head.paths.index("mlp.down.weight")].addressable_shards[0]
  assert part.data.shape == (16, 20 // 2)


if __name__ == "__main__":
  eight.main([v for k, v in list(globals().items()) if k.startswith("check_")])
