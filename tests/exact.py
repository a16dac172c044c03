"""What the table model's output must look like, enumerated in plain numpy.

Written without the product: penalties by a loop over the vocabulary, filters by
sorting, in float64; proposals and acceptance from the papers; lookups from
lists.
"""

import dataclasses
import itertools

import numpy as np

from tests.table_model import next_law


def filtered(logits, temperature, top_k=0, top_p=1.0, min_p=0.0):
  """The law [V] that Hugging Face's filters, in their order, make of logits.

  Ties at a threshold are kept.
  """
  logits = np.asarray(logits, np.float64)
  if temperature == 0:
    return np.eye(len(logits))[np.argmax(logits)]

  def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()

  scores = (logits - logits.max()) / temperature
  descending = np.sort(scores)[::-1]
  if top_k:
    edge = descending[min(top_k, len(scores)) - 1]
    scores = np.where(scores >= edge, scores, -np.inf)
  if top_p < 1:
    descending = np.sort(softmax(scores))[::-1]
    reached = np.cumsum(descending) >= top_p
    edge = descending[np.argmax(reached)] if reached.any() else 0
    scores = np.where(softmax(scores) >= edge, scores, -np.inf)
  if min_p:
    p = softmax(scores)
    scores = np.where(p >= min_p * p.max(), scores, -np.inf)
  return softmax(scores)


def penalized(
  logits,
  prompt,
  output,
  repetition_penalty=1.0,
  presence_penalty=0.0,
  frequency_penalty=0.0,
  logit_bias=(),
):
  """Logits [V] after bias and penalties, of what comes after prompt, output."""
  logits = np.array(logits, np.float64)
  bias = dict(logit_bias)
  for v in range(len(logits)):
    count = list(output).count(v)
    logits[v] += bias.get(v, 0)
    if count or v in prompt:
      if logits[v] > 0:
        logits[v] /= repetition_penalty
      else:
        logits[v] *= repetition_penalty
    if count:
      logits[v] -= presence_penalty + frequency_penalty * count
  return logits


PENALTIES = (
  "repetition_penalty",
  "presence_penalty",
  "frequency_penalty",
  "logit_bias",
)


@dataclasses.dataclass(frozen=True)
class Chain:
  """Laws of a table model under one row's settings.

  Attributes:
    params: of a TableModel.
    settings: keyword arguments of `filtered` and `penalized`.
    size: tokens of the prompt; what comes behind them is the output.
  """

  params: tuple
  settings: dict
  size: int = 0
  _known: dict = dataclasses.field(default_factory=dict)

  def law(self, history):
    """float64 [V] after a history of ids."""
    penalties = {k: v for k, v in self.settings.items() if k in PENALTIES}
    filters = {k: v for k, v in self.settings.items() if k not in PENALTIES}
    key = (len(history) % 2, len(history) > 1, *history[-2:])
    if penalties:
      key = tuple(history)
    if key not in self._known:
      logits = next_law(self.params, history)
      if penalties:
        prompt, output = history[: self.size], history[self.size :]
        logits = penalized(logits, prompt, output, **penalties)
      self._known[key] = filtered(logits, **filters)
    return self._known[key]


def greedy(params, prompt, count, **penalties):
  """`count` ids, each the likeliest under bias and penalties."""
  chain = Chain(params, {"temperature": 0, **penalties}, len(prompt))
  history = tuple(prompt)
  for _ in range(count):
    history += (int(np.argmax(chain.law(history))),)
  return history[len(prompt) :]


def tokens_law(target: Chain, prompt, count):
  """{tokens: probability} of the next `count` tokens."""
  laws = {(): 1.0}
  for _ in range(count):
    laws = {
      (*tokens, v): mass * p
      for tokens, mass in laws.items()
      for v, p in enumerate(target.law((*prompt, *tokens)))
      if p > 0
    }
  return laws


def drafts(draft: Chain):
  """Proposals of a draft model: history, count -> (chance, tokens, laws)."""

  def propose(history, count):
    for tokens, chance in tokens_law(draft, history, count).items():
      laws = [draft.law((*history, *tokens[:i])) for i in range(count)]
      yield chance, tokens, laws

  return propose


def lookups(shortest=2, longest=4, vocab=3):
  """Proposals of prompt lookup, as `drafts`."""

  def propose(history, count):
    size = len(history)
    for n, end in itertools.product(
      range(longest, shortest - 1, -1), range(size - 1, 0, -1)
    ):
      if end >= n and history[end - n : end] == history[size - n :]:
        around = history[end:] * count
        tokens = around[:count]
        yield 1.0, tokens, [np.eye(vocab)[v] for v in tokens]
        return
    yield 1.0, (), []

  return propose


def likeliest(count, width):
  """Drafts and siblings as `drawing.draw_each` chooses them, without filters.

  Args:
    count: M. width: C.

  Returns:
    A function of a history, drafted tokens and the laws they were drawn from:
    how many are drafted, and the likeliest (place, id) beside, behind the
    drafts before them, as many as the pass has room for.
  """
  size = width + count

  def beside(history, tokens, laws):
    del history
    found, path, drafts = [], 1.0, len(tokens)
    for place, (token, law) in enumerate(zip(tokens, laws, strict=True)):
      found.sort(reverse=True)
      rest = size - place - 1  # room beside, with this draft
      if place and len(found) > rest and path / 4 < found[rest][0]:
        drafts = place
        break
      found += [
        (path * law[v], place, int(v))
        for v in np.flatnonzero(law)
        if v != token
      ]
      path *= law[token]
    found.sort(reverse=True)
    return drafts, {pair[1:] for pair in found[: size - drafts]}

  return beside


def step_law(target: Chain, propose, history, count, beside=None):
  """{emitted tokens: probability} of one step that may draft `count`.

  `beside`, as `likeliest` gives it, says which of the drafts are made, and
  their siblings.
  """
  law = {}

  def emit(tokens, chance):
    law[tokens] = law.get(tokens, 0.0) + chance

  def rejected_for(kept, v, chance, siblings):
    """What is said in a draft's place, and after it if that was guessed."""
    if (len(kept), v) not in siblings:
      return emit((*kept, v), chance)
    for after, mass in enumerate(target.law((*history, *kept, v))):
      if chance * mass > 0:
        emit((*kept, v, after), chance * mass)

  for chance, tokens, laws in propose(history, count):
    siblings = ()
    if beside:
      made, siblings = beside(history, tokens, laws)
      tokens, laws = tokens[:made], laws[:made]
    for i, (token, q) in enumerate(zip(tokens, laws, strict=True)):
      p = target.law((*history, *tokens[:i]))
      left = np.maximum(p - q, 0)
      rejected = chance * (1 - min(1, p[token] / q[token]))
      if rejected > 0:
        for v in np.flatnonzero(left):
          share = rejected * left[v] / left.sum()
          rejected_for(tokens[:i], int(v), share, siblings)
      chance -= rejected
    for v, mass in enumerate(target.law((*history, *tokens))):
      if chance * mass > 0:
        emit((*tokens, v), chance * mass)
  return law


def blocks_law(target: Chain, propose, prompt, count, lookahead, beside=None):
  """{(tokens, sizes of the steps' blocks): probability} of `count` tokens."""
  done = {}
  going = {((), ()): 1.0}
  while going:
    after = {}
    for (tokens, sizes), mass in going.items():
      left = count - len(tokens)
      may = min(lookahead, left - 1)
      for block, chance in step_law(
        target, propose, (*prompt, *tokens), may, beside
      ).items():
        key = ((*tokens, *block), (*sizes, len(block)))
        where = after if len(block) < left else done
        where[key] = where.get(key, 0.0) + mass * chance
    going = after
  return done


def marginal(law, part):
  """Sums a {key: probability} over keys with one key[part]."""
  sums = {}
  for key, mass in law.items():
    sums[key[part]] = sums.get(key[part], 0.0) + mass
  return sums
