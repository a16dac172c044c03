"""What the step needs of a model: a Protocol over pure functions."""

from typing import Any, Protocol

from specjax.types import Array, Params, struct


@struct
class Output:
  """What one forward pass returns.

  Attributes:
    logits: float32 [B, T, V]; position i predicts the token after tokens[:, i].
    cache: the cache with the block written; its length has not moved.
    features: [B, T, layers asked for, D] hidden states, or None.
  """

  logits: Array
  cache: Any
  features: Array | None = None


class Model(Protocol):
  """A causal model. `cache` may be any pytree with KVCache's four verbs:

  `length` [B], `commit(count)`, `at(length)` and rows on axis 0 (or KVCaches).

  One with an encoder says so by `reads_source` and has `encode(params, tokens,
  size, cache)`, which reads the prompt into the cache before anything is said,
  `config.start_id`, the token that every output begins with, and
  `encoding_bytes(width)`; see `decoder.Model`. Others need none of them.
  """

  vocab_size: int

  def init_cache(self, rows: int, capacity: int) -> Any:
    """An empty cache for `rows` rows of at least `capacity` positions."""

  def __call__(
    self,
    params: Params,
    tokens: Array,
    cache: Any,
    features: tuple[int, ...] = (),
    *,
    last: Array | None = None,
  ) -> Output:
    """Runs tokens int32 [B, T] at positions length .. length + T - 1.

    With a cache of None the block is a whole text, from position 0, and none
    is returned: what training runs, since this pass has a gradient.

    `features` names layers (0 = the embedding's output, L = the last layer's)
    whose hidden states are returned. `last`, int32 [B], asks for the logits of
    one position in each row's block alone: [B, 1, V].
    """
