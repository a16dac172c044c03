"""Penalties and biases: what a row's own words do to its logits.

On raw logits, before temperature and filters, in this order (Hugging Face's
and vLLM's alike):

  1. bias        logit + bias[id]
  2. repetition  logit / r where it is positive, else logit * r, for every id
                 of the prompt or the output (Keskar 2019, with Hugging Face's
                 rule of signs)
  3. presence, frequency   logit - presence * (count > 0) - frequency * count,
                 where count is how often the output holds the id (OpenAI's)

They hold at temperature 0 too. Position i of a block sees the output and the
drafts before i; a drafter that calls `apply` for its q does as the target will.
"""

import dataclasses

import jax.numpy as jnp
from jax import lax

from specjax.types import Array, struct


@struct
class PenaltyRequest:
  """What new rows ask for, as the host sends it.

  Attributes:
    asked: bool [B], whether the row asks for anything here.
    repetition: float32 [B], 1 is off.
    presence, frequency: float32 [B], 0 is off.
    bias_ids: int32 [B, M], each at most once in a row.
    bias_values: float32 [B, M].
    bias_count: int32 [B], valid entries of each row.
  """

  asked: Array
  repetition: Array
  presence: Array
  frequency: Array
  bias_ids: Array
  bias_values: Array
  bias_count: Array


@struct
class Penalties:
  """Of each row: its settings, and what they count.

  Counts are kept, not read off the history: at a long capacity that would
  cost a pass over all of it in every step.

  Attributes:
    asked, repetition, presence, frequency: see `PenaltyRequest`.
    bias: float32 [B, V].
    prompt: bool [B, V], whether the prompt holds an id; kept for rows that ask.
    output: int32 [B, V], how often the output holds it.
  """

  asked: Array
  repetition: Array
  presence: Array
  frequency: Array
  bias: Array
  prompt: Array
  output: Array

  @classmethod
  def none(cls, rows: int, vocab_size: int) -> "Penalties":
    """Of rows that ask for none."""
    return cls(
      asked=jnp.zeros((rows,), bool),
      repetition=jnp.ones((rows,), jnp.float32),
      presence=jnp.zeros((rows,), jnp.float32),
      frequency=jnp.zeros((rows,), jnp.float32),
      bias=jnp.zeros((rows, vocab_size), jnp.float32),
      prompt=jnp.zeros((rows, vocab_size), bool),
      output=jnp.zeros((rows, vocab_size), jnp.int32),
    )

  def admit(
    self,
    rows: Array,
    released: Array,
    new: PenaltyRequest,
    history: Array,
    size: Array,
  ) -> "Penalties":
    """Rows with what new requests ask for.

    Args:
      rows: bool [B], rows that take a new request.
      released: bool [B], rows that end.
      new: of the new rows.
      history: int32 [B, S], their prompts.
      size: int32 [B], tokens of each prompt.
    """
    vocab = self.bias.shape[1]
    row = jnp.arange(rows.shape[0], dtype=jnp.int32)
    pick = lambda fresh, old: jnp.where(rows, fresh, old)
    clear = lambda old: jnp.where(rows[:, None], jnp.zeros((), old.dtype), old)

    def put(index, bias):
      here = rows & (index < new.bias_count)
      at = jnp.where(here, new.bias_ids[:, index], vocab)  # beyond: dropped
      return bias.at[row, at].set(new.bias_values[:, index], mode="drop")

    def read(prompt):
      place = jnp.arange(history.shape[1], dtype=jnp.int32)
      here = (rows & new.asked)[:, None] & (place < size[:, None])
      at = jnp.where(here, history, vocab)
      return prompt.at[row[:, None], at].set(True, mode="drop")

    most = jnp.max(jnp.where(rows, new.bias_count, 0))
    asked = jnp.any(rows & new.asked)
    return Penalties(
      asked=pick(new.asked, self.asked & ~released),
      repetition=pick(new.repetition, self.repetition),
      presence=pick(new.presence, self.presence),
      frequency=pick(new.frequency, self.frequency),
      bias=lax.fori_loop(0, most, put, clear(self.bias)),
      prompt=lax.cond(asked, read, lambda prompt: prompt, clear(self.prompt)),
      output=clear(self.output),
    )

  def commit(self, tokens: Array, count: Array) -> "Penalties":
    """Counts the first `count` int32 [B] of each row's tokens int32 [B, T]."""
    rows, vocab = self.output.shape
    valid = jnp.arange(tokens.shape[1], dtype=jnp.int32) < count[:, None]
    at = jnp.where(valid, tokens, vocab)  # beyond the vocabulary: dropped
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    output = self.output.at[row, at].add(1, mode="drop")
    return dataclasses.replace(self, output=output)

  def apply(self, logits: Array, drafted: Array, first=0) -> Array:
    """The logits that temperature and filters are to see.

    Costs nothing where no row asks. A finite logit stays finite and one that
    is not stays as it is, so `sampling.usable` of both is the same.

    Args:
      logits: raw, float32 [B, T, V].
      drafted: int32 [B, C], drafts of this step. Position t of T sees the
        output and the `first + t` first of them; the others may be anything.
      first: int32 scalar or [B], may be traced.

    Returns:
      float32 [B, T, V].
    """
    return lax.cond(
      jnp.any(self.asked),
      self._apply,
      lambda logits, *_: logits,
      logits,
      drafted,
      jnp.broadcast_to(jnp.int32(first), logits.shape[:1]),
    )

  def _apply(self, logits, drafted, first):
    rows, width, _ = logits.shape
    every = lambda counts: counts[:, None]  # the same at each position
    adjusted = self._adjust(
      logits, every(self.bias), every(self.prompt), every(self.output)
    )
    if not drafted.shape[1]:
      return adjusted
    # From one position to the next only entries of drafted tokens differ:
    # B T C of them, which are worked out again with what is before them.
    place = jnp.arange(drafted.shape[1], dtype=jnp.int32)
    at = jnp.arange(width, dtype=jnp.int32)
    before = place < first[:, None, None] + at[:, None]  # B T C
    same = drafted[:, :, None] == drafted[:, None, :]  # B C C
    both = same[:, None] & before[:, :, None]  # B T C C
    more = jnp.sum(both, axis=-1, dtype=jnp.int32)
    pick = lambda counts: every(jnp.take_along_axis(counts, drafted, axis=1))
    entry = (
      jnp.arange(rows, dtype=jnp.int32)[:, None, None],
      at[:, None],
      drafted[:, None],
    )
    entries = self._adjust(
      logits[entry],
      pick(self.bias),
      pick(self.prompt),
      pick(self.output) + more,
    )
    return adjusted.at[entry].set(entries)

  def _adjust(self, logits, bias, prompt, output):
    """The module's three rules, entry by entry; all [B, T, any]."""
    repetition, presence, frequency, asked = (
      setting[:, None, None]
      for setting in (
        self.repetition,
        self.presence,
        self.frequency,
        self.asked,
      )
    )
    x = logits + bias
    repeated = jnp.where(x > 0, x / repetition, x * repetition)
    x = jnp.where(prompt | (output > 0), repeated, x)
    count = output.astype(jnp.float32)
    x = x - presence * (output > 0).astype(jnp.float32) - frequency * count
    most = jnp.finfo(jnp.float32).max
    # Rows that ask for nothing keep every bit.
    good = asked & jnp.isfinite(logits)
    return jnp.where(good, jnp.clip(x, -most, most), logits)
