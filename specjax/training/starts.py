"""How heads begin: as the target's own layers and head, where they can.

The first product passes the target's state on. EAGLE-3's layer and those of
multi-token prediction may begin as a layer of the target's, whose norms they
have too. EAGLE-1's may not: it reads what the target's last norm gives, without
a norm of its own, and a layer that expects other states begins there with a
loss of 12853 nats (SmolLM2, two steps), where a random one has 33. It begins
random and faint: with hardly anything of it, the state passed on has 14. Its
first product may be fitted to the data instead; see `fitting`.
"""

from collections.abc import Callable

import numpy as np

from specjax.checkpoints import shards
from specjax.models.config import DecoderConfig
from specjax.models.heads.eagle import EagleModel
from specjax.models.heads.mtp import MtpModel
from specjax.pretrained import Pretrained
from specjax.training.objective import Law

Params = dict[str, np.ndarray]
_FAINT = np.float32(0.01)  # not 0: all that is before it would learn nothing


def eagle(
  model: EagleModel,
  target: Pretrained,
  law: Law,
  seed: int,
  layer: int | None,
  product: np.ndarray | None = None,
) -> list[np.ndarray]:
  """An EAGLE head's parameters at the beginning.

  Args:
    model: the head.
    target: whose layer it begins as.
    law: with the kept ids.
    seed: of what is random.
    layer: of the target, for EAGLE-3; None for a random layer.
    product: EAGLE-1's first [D, 2 D], of `fitting`; None for one that passes
      the state on.

  Returns:
    In the order of `model.head.paths`, float32.

  Raises:
    ValueError: the target's layer has another form.
  """
  found, theirs = _drawn(model, seed), _of(target)
  width = model.config.layer.d_model
  # [embedding, state], or EAGLE-3's three states, of which the last.
  found["fc.weight"] = _passing(found["fc.weight"], -width)
  if not model.config.fuses:
    assert layer is None, "EAGLE-1 begins as no layer of the target"
    if product is not None:
      found["fc.weight"] = product
    usual = scales(model, target)
    for path in found.keys() & usual.keys() - {"fc.weight"}:
      found[path] *= usual[path]
    for path in ("attention.o.weight", "mlp.down.weight"):
      found[path] *= _FAINT
    return [found[path] for path in model.head.paths]
  _ends(found, theirs, target, law, "norm.weight", "head.weight")
  if layer is not None:
    prefix = f"layers.{_number(target, layer)}."
    for path in found:
      if path.startswith(("attention.", "mlp")):
        found[path] = _fitting(found[path], theirs(prefix + path), path)
    norm = theirs(f"{prefix}attention_norm.weight")
    found["hidden_norm.weight"] = norm
    found["embed_norm.weight"] = norm
  return [found[path] for path in model.head.paths]


def scales(model: EagleModel, target: Pretrained) -> Params:
  """How large EAGLE-1's weights usually are, beside those of unit inputs.

  Its states are as large as the target's last norm makes them, and embeddings
  as small as they lie in the table: all steps alike, the one would learn long
  before the other. EAGLE-3 has norms before its products.

  Returns:
    Of some parameters what their numbers are to be measured by, broadcast; see
    `optimizer.make`.
  """
  if model.config.fuses:
    return {}
  theirs, own = _of(target), target.model.config
  size = lambda x: np.sqrt(np.mean(np.square(x)))
  state = size(theirs("norm.weight") + np.float32(own.norm == "rms_plus_one"))
  token = size(theirs("embed.weight")) * np.float32(own.embed_scale or 1.0)
  width = model.config.layer.d_model
  pair = np.repeat(np.asarray([token, state], np.float32), width)
  found = {"fc.weight": state / pair}
  for path in ("attention.q", "attention.k", "attention.v"):
    found[f"{path}.weight"] = 1 / state
  for path in ("attention.o", "mlp.down"):
    found[f"{path}.weight"] = state
  return {path: np.asarray(x, np.float32) for path, x in found.items()}


def mtp(
  model: MtpModel, target: Pretrained, law: Law, seed: int, layer: int | None
) -> list[np.ndarray]:
  """Modules' parameters at the beginning; arguments as those of `eagle`."""
  found, theirs = _drawn(model, seed), _of(target)
  for depth in range(model.config.depths):
    own = f"depths.{depth}."
    # [state, embedding].
    found[f"{own}proj.weight"] = _passing(found[f"{own}proj.weight"], 0)
    _ends(found, theirs, target, law, f"{own}norm.weight")
    if layer is not None:
      prefix = f"layers.{_number(target, layer)}."
      for path in found:
        if path.startswith(f"{own}layer."):
          name = path.removeprefix(f"{own}layer.")
          found[path] = _fitting(found[path], theirs(prefix + name), path)
  return [found[path] for path in model.head.paths]


def scaled(config: DecoderConfig, drawn: Params) -> Params:
  """Random parameters of a whole model, as large as its scores want them.

  T5 does not divide attention's scores by the root of H: its queries begin so
  much smaller (Raffel et al. 2020's code). Otherwise every token would look at
  one other alone, and nothing would be learned of the rest.

  Args:
    config: the model's.
    drawn: of deviation 1 / sqrt(in), by name.
  """
  if not config.encoder_layers:
    return drawn
  factor = np.float32(config.head_dim**-0.5)
  return {
    path: value * factor if path.endswith(".q.weight") else value
    for path, value in drawn.items()
  }


def _drawn(model, seed: int) -> Params:
  """What the head draws itself, in float32."""
  drawn = model.head.init(seed)
  pairs = zip(model.head.paths, drawn, strict=True)
  return {
    path: shards.gathered(value).astype(np.float32) for path, value in pairs
  }


def _of(target: Pretrained) -> Callable[[str], np.ndarray]:
  params = dict(zip(target.model.paths, target.params, strict=True))

  def find(path: str) -> np.ndarray:
    if path not in params:
      what = path.split(".", 2)[-1]
      raise ValueError(
        f"--start_layer: a layer of {target.name} has no {what}, which the"
        " head's has; leave it out"
      )
    return shards.gathered(params[path]).astype(np.float32)

  return find


def _number(target: Pretrained, layer: int) -> int:
  count = target.model.config.layers
  number = layer + count if layer < 0 else layer
  if not 0 <= number < count:
    raise ValueError(
      f"--start_layer={layer}: {target.name} has {count} layers; give 0 to"
      f" {count - 1}, or -1 for the last"
    )
  return number


def _passing(weight: np.ndarray, first: int) -> np.ndarray:
  """[D, n D] that passes on D of its inputs, from `first`, and nothing else."""
  size = weight.shape[0]
  start = first % weight.shape[1]
  made = np.zeros_like(weight)
  made[:, start : start + size] = np.eye(size, dtype=weight.dtype)
  return made


def _fitting(own: np.ndarray, theirs: np.ndarray, path: str) -> np.ndarray:
  """The target's weight; EAGLE-3's wider ones read its state with it."""
  if own.shape == theirs.shape:
    return theirs
  if own.shape[:-1] == theirs.shape[:-1] and (
    own.shape[-1] == 2 * theirs.shape[-1]
  ):
    return np.concatenate([np.zeros_like(theirs), theirs], axis=-1)
  raise ValueError(
    f"--start_layer: {path} is {own.shape}, and the target's {theirs.shape};"
    " leave it out"
  )


def _ends(
  found: Params,
  theirs: Callable[[str], np.ndarray],
  target: Pretrained,
  law: Law,
  norm: str,
  head: str | None = None,
) -> None:
  """Sets a norm, and a head's rows of the kept ids, to the target's."""
  offset = target.model.config.norm == "rms_plus_one"
  found[norm] = theirs("norm.weight") + np.float32(offset)
  if head is not None:
    table = theirs(target.model.paths[law.head])
    found[head] = table if law.kept is None else table[law.kept]
