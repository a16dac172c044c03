"""Answers, samples and contestants made by hand."""

from specjax.benchmark.answers import Answer, Sample
from specjax.engine.request import Request


def answer(times, *, steps=None, prompt=5, tokens=None, **more) -> Answer:
  """An answer whose tokens arrived at these times; a step a time."""
  times = tuple(map(float, times))
  return Answer(
    id=more.pop("id", "0"),
    prompt_tokens=prompt,
    token_ids=tuple(range(len(times))) if tokens is None else tuple(tokens),
    times_s=times,
    steps=len(set(times)) if steps is None else steps,
    **more,
  )


def sample(*answers, together=False, compiles=0) -> Sample:
  return Sample(answers=answers, together=together, compiles=compiles)


def request(id="0", size=4, max_new_tokens=4) -> Request:
  return Request(
    prompt=tuple(range(size)), id=id, max_new_tokens=max_new_tokens
  )


class Clock:
  """Seconds that pass only when told to."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now

  def sleep(self, seconds):
    self.now += seconds


class Contestant:
  """Answers a token a second, or faster, and notes what it was asked."""

  def __init__(self, name, log=None, *, second=1.0, fail_at=None):
    self.name, self.second = name, second
    self.log = [] if log is None else log
    self.settings, self.startup_s = {"second": second}, 2.0
    self._fail_at = fail_at
    self._calls = 0

  def answer(self, requests):
    self._calls += 1
    if self._calls == self._fail_at:
      raise KeyboardInterrupt
    self.log.append((self.name, [request.id for request in requests]))
    return [
      answer(
        [self.second * (i + 1) for i in range(request.max_new_tokens)],
        id=request.id,
        prompt=len(request.prompt),
      )
      for request in requests
    ]
