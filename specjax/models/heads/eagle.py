"""EAGLE's head: one layer that continues the target's own hidden states.

A pair is a token and the state that predicted it. EAGLE-1 (Li et al. 2024)
reads the embedding of the one beside the other and predicts the next state,
which goes to the target's head. EAGLE-3 (Li et al. 2025) fuses states of three
layers first, has a head of its own and predicts tokens alone.
"""

import dataclasses
from typing import Any

from specjax.cache import KVCache
from specjax.models import decoder
from specjax.models.config import DecoderConfig
from specjax.models.heads import borrowed
from specjax.models.heads.borrowed import HeadModel
from specjax.models.heads.eagle_layer import Eagle
from specjax.models.heads.eagle_layer import EagleConfig as EagleConfig
from specjax.models.heads.unroll import Keys
from specjax.models.module import counted
from specjax.types import Array, Params, struct

_ROPE_THETA = 10_000.0  # of a head whose target does not rotate


@struct
class EagleOutput:
  """What one pass returns.

  Attributes:
    hidden: [B, T, D]; what a next step reads beside the next token.
    logits: float32 [B, T, Vd]; position i predicts the token after tokens[i].
    cache: with the block written, its length unmoved; None without one.
  """

  hidden: Array
  logits: Array
  cache: KVCache | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleModel(HeadModel):
  """An EAGLE head as pure functions; see `HeadModel`.

  EAGLE-3 has a table of ids of its own, EAGLE-1 takes the target's.

  Training reads whole texts: with features [B, T, n, D] after reading tokens
  [B, T], pair i is (features[:, i], tokens[:, i + 1]), so

    hidden = model.fuse(params, target_params, features[:, :-1])
    out = model(params, target_params, tokens[:, 1:], hidden)

  and out.logits[:, i] predicts tokens[:, i + 2]. EAGLE-1's out.hidden[:, i] is
  to come close to model.fuse(…, features[:, 1:])[:, i].
  """

  config: EagleConfig

  @property
  def has_table(self) -> bool:
    """Whether its own parameters have a table of ids."""
    return self.config.fuses

  def fuse(
    self, params: Params, target_params: Params, features: Array
  ) -> Array:
    """The target's states, as pairs have them: [B, T, D] of [B, T, n, D].

    EAGLE-1 reads what the target's head reads; EAGLE-3 fuses the three.
    """
    features = features.astype(self.dtype)
    if not self.config.fuses:
      return self.ends.norm(target_params, features[:, :, 0])
    flat = features.reshape(*features.shape[:2], -1)
    return self._merge(params).fc(flat)

  def read(
    self,
    params: Params,
    target_params: Params,
    tokens: Array,
    hidden: Array,
    cache: KVCache | None = None,
    positions: Array | None = None,
  ) -> tuple[Array, KVCache | None]:
    """Reads pairs; (hidden, cache) as in `EagleOutput`.

    Args:
      params: see the class.
      target_params: the target's.
      tokens: int32 [B, T].
      hidden: [B, T, D], of what predicted each: from `fuse`, or a pass's own.
      cache: the pairs before them; None where there are none and none follow.
        Without one it has a gradient.
      positions: int32 [B, T], of the pairs, where a row holds several texts;
        see `attend_block`.
    """
    if positions is None:
      positions = counted(tokens, cache)
    embedded = self._embedded(target_params, tokens)
    return self._merge(params)(embedded, hidden, cache, positions)

  def logits(
    self, params: Params, target_params: Params, hidden: Array
  ) -> Array:
    """What comes after each pair: float32 [B, T, Vd] of [B, T, D]."""
    if not self.config.fuses:
      return self._guess(params, target_params, hidden)
    own = self._merge(params)
    return self._product(own.norm(hidden), own.head.weight[...])

  def __call__(
    self,
    params: Params,
    target_params: Params,
    tokens: Array,
    hidden: Array,
    cache: KVCache | None = None,
    positions: Array | None = None,
  ) -> EagleOutput:
    """`read` and `logits` at once."""
    out, cache = self.read(
      params, target_params, tokens, hidden, cache, positions
    )
    logits = self.logits(params, target_params, out)
    return EagleOutput(hidden=out, logits=logits, cache=cache)

  def unroll(
    self,
    params: Params,
    target_params: Params,
    tokens: Array,
    hidden: Array,
    earlier: Keys = (),
    positions: Array | None = None,
  ) -> tuple[Array, Keys]:
    """One of several steps of drafting from every position at once.

    Training's view of what drafting does (EAGLE-3's "training-time test"):
    step s of them reads, at position i, the pair that it would draft s tokens
    after i's: it sees the target's pairs up to i, and of its own those after.

      keys = ()
      for s in range(steps):  # hidden begins as fuse's
        hidden, keys = model.unroll(params, target_params, tokens[s], hidden,
                                    keys)
        logits = model.logits(params, target_params, hidden)

    where tokens[s] is tokens[0] moved left by s. Step 0 alone is `read`.

    Args:
      params, target_params: as for `read`.
      tokens: int32 [B, T].
      hidden: [B, T, D], the last step's; `fuse`'s in the first.
      earlier: what the last step returned; () in the first.
      positions: as for `read`, and the same in every step.

    Returns:
      hidden [B, T, D], and the keys and values of all steps so far.
    """
    if positions is None:
      positions = counted(tokens, None)
    embedded = self._embedded(target_params, tokens)
    own = self._merge(params)
    return own.unrolled(embedded, hidden, positions, earlier)


def build(
  config: EagleConfig, target: decoder.Model, *, dtype: Any = None
) -> EagleModel:
  """An EAGLE head of shapes only, for a target.

  Args:
    config: kind and sizes.
    target: whose states it reads.
    dtype: the target's unless given.

  Raises:
    ValueError: names the size of head and target that do not fit.
  """
  own = target.config
  borrowed.require("an EAGLE head", config.layer, config.draft_vocab, target)
  deep = [n for n in config.features if not 0 <= n <= own.layers]
  if deep:
    raise ValueError(
      f"the EAGLE head reads the target's layer {deep[0]}, and it has "
      f"{own.layers}; take the head of this target"
    )
  if not config.fuses and config.features != (own.layers,):
    raise ValueError(
      f"the EAGLE head reads the target's layer {config.features[0]}; EAGLE-1 "
      f"reads the last, {own.layers}"
    )
  if config.fuses and config.draft_vocab is None:
    raise ValueError("a head of EAGLE-3 needs a draft_vocab")
  return EagleModel(**borrowed.parts(Eagle, config, target, dtype))


def published_features(layers: int) -> tuple[int, ...]:
  """The layers that EAGLE-3's published heads read, of a target with L."""
  return tuple(max(n, 0) for n in (min(2, layers), layers // 2, layers - 3))


def small(
  target: DecoderConfig,
  *,
  fuses: bool,
  draft_vocab: int | None = None,
  d_ff: int | None = None,
) -> EagleConfig:
  """A new head's config: a Llama's layer of the target's sizes.

  Of a source it knows what the target's states say of it.

  Args:
    target: its config.
    fuses: EAGLE-3 instead of EAGLE-1.
    draft_vocab: Vd; None for all.
    d_ff: F of the layer; the target's unless given.
  """
  layer = dataclasses.replace(
    target,
    layers=1,
    d_ff=target.d_ff if d_ff is None else d_ff,
    architecture="LlamaForCausalLM",
    activation="silu",
    gated=True,
    norm="rms",
    post_norms=False,
    qk_norm=False,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    attention_scale=None,
    attention_softcap=None,
    windows=(),
    rope_theta=target.rope_theta or _ROPE_THETA,
    local_rope_theta=None,
    relative_buckets=None,
    head_scale=None,
    encoder_layers=0,
    start_id=None,
    embed_scale=None,
    logit_softcap=None,
    heads_in_file=None,
    tied=False,
  )
  if fuses and draft_vocab is None:
    draft_vocab = target.vocab_size
  features = (target.layers,)
  if fuses:
    features = published_features(target.layers)
  return EagleConfig(layer=layer, features=features, draft_vocab=draft_vocab)
