"""An engine of a few lines, to test jobs and commands without a model."""

from specjax.engine import request as request_lib


class Encoder:
  """A character is a token; a chat is its last message, upper case."""

  def encode(self, text):
    return [ord(character) for character in text]

  def encode_chat(self, messages):
    return self.encode(messages[-1]["content"].upper())


class Engine:
  """Answers a prompt with itself, reversed, two tokens a step.

  A prompt of "fail" ends in an error, and of "refused" cannot be run.
  `before_step` is called before each step with the number of rows finished so
  far.
  """

  def __init__(self, before_step=lambda finished: None, slots=1):
    self.before_step = before_step
    self.slots = slots
    self.requests = []
    self.finished = 0
    self.closed = False

  memory = memory_limit = None  # Said at the start, by `memory.line`.

  def warmup(self):
    pass

  def refusal(self, request):
    refused = request.prompt == tuple(map(ord, "refused"))
    return "prompt is too long" if refused else None

  def run(self, requests):
    pending = self._samples(requests)
    running = []
    try:
      while True:
        while len(running) < self.slots:
          request, sample = next(pending, (None, 0))
          if request is None:
            break
          running.append(self._answer(request, sample))
        if not running:
          return
        self.before_step(self.finished)
        for row in list(running):
          for event in next(row):
            if isinstance(event, request_lib.Completion):
              running.remove(row)
              self.finished += 1
            yield event
    finally:
      self.closed = True

  def _samples(self, requests):
    for request in requests:
      self.requests.append(request)
      for sample in range(request.n):
        yield request, sample

  def _answer(self, request, sample):
    """The events of a row, step by step."""
    answer = request.prompt[::-1][: request.max_new_tokens]
    failed = request.prompt == tuple(map(ord, "fail"))
    if failed:
      answer = ()
    steps = 0
    events = []
    for start in range(0, len(answer), 2):
      if events:
        yield events
      block = answer[start : start + 2]
      steps += 1
      text = "".join(map(chr, block))
      chunk = request_lib.Chunk(
        id=request.id, text=text, token_ids=block, sample=sample
      )
      events = [chunk]
    done = request_lib.Completion(
      id=request.id,
      text="".join(map(chr, answer)),
      token_ids=answer,
      finish_reason="error" if failed else "length",
      prompt_tokens=len(request.prompt),
      steps=steps,
      drafted=steps,
      accepted=len(answer) - steps,
      drafted_per_position=(steps,),
      accepted_per_position=(len(answer) - steps,),
      ttft_s=0.01,
      token_times_s=tuple(0.01 * i for i in range(len(answer))),
      error="a NaN" if failed else None,
      sample=sample,
      samples=request.n,
    )
    yield [*events, done]
