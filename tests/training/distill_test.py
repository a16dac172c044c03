"""The target answers prompts: rows, hidden states, what can be gone on with."""

import dataclasses
import json

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from specjax.engine.loop import Engine
from specjax.jobs import prompts
from specjax.proposers.none import NoProposer
from specjax.proposers.recorder import Recorder
from specjax.training import distill, prompt_sources, self_prompts, shards
from specjax.training.shard_writer import Writer
from specjax.verifiers.rejection import Rejection
from tests import fake_engine
from tests.benchmark import tiny

ENCODER = fake_engine.Encoder()


def row(text, id="a:1", **settings):
  return prompts.Row(
    line=1, id=id, prompt=text, messages=None, settings=settings
  )


def run(folder, rows, answers=None, *, engine=None, resume=False, **how):
  answers = answers or distill.Answers(max_new_tokens=5)
  how = {"stop": lambda: False, **how}
  with Writer(folder, {"hidden": []}, resume=resume) as writer:
    return distill.run(
      engine or fake_engine.Engine(slots=2),
      rows,
      answers,
      encoder=ENCODER,
      writer=writer,
      quiet=True,
      **how,
    )


def ids(folder):
  return [found.id for found in shards.Reader(folder)]


def test_each_prompt_is_answered_at_each_temperature(tmp_path):
  result = run(tmp_path, [row("abc", "x"), row("de", "y")])
  assert sorted(ids(tmp_path)) == ["x@0", "x@1", "y@0", "y@1"]
  assert (result.rows, result.wanted, result.interrupted) == (4, 4, False)
  found = next(r for r in shards.Reader(tmp_path) if r.id == "x@1")
  assert found.tokens.tolist() == list(map(ord, "abccba"))
  assert (found.answer, found.temperature) == (3, 1.0)
  assert (result.tokens, result.answer_tokens) == (20, 10)


def test_samples_are_drawn_where_there_is_chance(tmp_path):
  answers = distill.Answers(temperatures=(0.0, 0.5), samples=2)
  run(tmp_path, [row("ab", "x"), row("ab", "y", n=3)], answers)
  assert sorted(ids(tmp_path)) == [
    "x@0", "x@0.5#0", "x@0.5#1", "y@0", "y@0.5#0", "y@0.5#1", "y@0.5#2",
  ]  # fmt: skip


def test_what_a_row_says_wins(tmp_path):
  engine = fake_engine.Engine()
  rows = [row("ab", "x", temperature=0.7, max_new_tokens=1), row("ab", "y")]
  rows.append(row("ab", "z", top_p=0.5))
  run(tmp_path, rows, engine=engine)
  assert sorted(ids(tmp_path)) == ["x@0.7", "y@0", "y@1", "z@0", "z@1"]
  by_id = {request.id: request for request in engine.requests}
  assert by_id["x@0.7"].max_new_tokens == 1
  assert by_id["y@1"].max_new_tokens == 5
  # At temperature 0 it does nothing, but at the other one it does.
  assert by_id["z@0"].sampling.top_p == 1
  assert by_id["z@1"].sampling.top_p == 0.5


def test_a_chat_goes_through_the_template(tmp_path):
  answers = distill.Answers(chat=True, temperatures=(0.0,))
  run(tmp_path, [row("abc", "x")], answers)
  assert shards.Reader(tmp_path)[0].tokens.tolist()[:3] == list(map(ord, "ABC"))


def test_what_cannot_be_answered_is_told_and_the_rest_goes_on(tmp_path):
  rows = [row("fail", "x"), row("ab", "y"), row("ab", "z", logprobs=1)]
  rows.append(row("ab", "w", n=0))
  answers = distill.Answers(temperatures=(1.0,))
  result = run(tmp_path, rows, answers)
  assert ids(tmp_path) == ["y@1"]
  assert dict(result.failed)["x@1"] == "a NaN"
  assert "logprobs does nothing" in dict(result.failed)["z@1"]
  assert "n is 0" in dict(result.failed)["w@1"]
  assert result.wanted == 1


def test_rows_that_are_there_are_not_made_again(tmp_path):
  rows = [row("ab", "x", n=2), row("cd", "y")]
  ends = iter([False] * 5 + [True] * 99)
  result = run(tmp_path, rows, stop=lambda: next(ends))
  before = ids(tmp_path)
  assert result.interrupted and 0 < len(before) < 5
  engine = fake_engine.Engine()
  result = run(tmp_path, rows, engine=engine, resume=True)
  assert sorted(ids(tmp_path)) == ["x@0", "x@1#0", "x@1#1", "y@0", "y@1"]
  assert ids(tmp_path)[: len(before)] == before
  assert not {request.id for request in engine.requests} & set(before)


def test_who_was_ended_before_any_prompt_has_not_done_all(tmp_path):
  assert run(tmp_path, [], stop=lambda: True).interrupted
  assert not run(tmp_path, [], resume=True).interrupted


@pytest.fixture(scope="module")
def target(tmp_path_factory):
  from specjax import api

  folder = tiny.folder(tmp_path_factory.mktemp("m") / "tiny", layers=2)
  return api.load(folder)


def engine_of(target, proposer, **options):
  with tiny.compiled_quickly():
    return Engine(
      target.model,
      target.params,
      proposer,
      verifier=Rejection(),
      slots=2,
      capacity=64,
      tokenizer=target.tokenizer,
      stop_ids=target.tokenizer.eos_ids,
      prefill_widths=(8,),
      **options,
    )


# Prompts of one token, of less and of more than a chunk, in two slots.
TEXTS = ("a", "hello", "the cat, the cat, the cat", "abc abc", "zz")
LAYERS = (0, 2)


@pytest.fixture(scope="module")
def recorded(target, tmp_path_factory):
  """Rows with hidden states, by a run of the real engine."""
  folder = tmp_path_factory.mktemp("rows")
  engine = engine_of(target, Recorder(features=LAYERS, width=32))
  with tiny.compiled_quickly(), Writer(folder, {"hidden": LAYERS}) as writer:
    distill.run(
      engine,
      [row(text, f"t:{i}", n=2) for i, text in enumerate(TEXTS)],
      distill.Answers(temperatures=(0.0, 1.0), max_new_tokens=9),
      encoder=target.tokenizer,
      writer=writer,
      hidden=distill.Hidden(engine),
      stop=lambda: False,
      quiet=True,
    )
  return shards.Reader(folder)


def test_hidden_states_are_those_of_a_pass_over_the_whole_row(target, recorded):
  assert len(recorded) == 3 * len(TEXTS)
  longest = int(recorded.lengths.max())
  tokens = np.zeros((len(recorded), longest), np.int32)
  for index, found in enumerate(recorded):
    tokens[index, : len(found.tokens)] = found.tokens
  out = target.model(target.params, jnp.asarray(tokens), None, LAYERS)
  for index, found in enumerate(recorded):
    last = len(found.tokens) - 1
    whole = np.asarray(out.features[index, :last])
    kept = np.asarray(found.hidden).astype(np.float32)
    # Stored in bfloat16: 8 bits.
    np.testing.assert_allclose(kept[:last], whole, rtol=1 / 128, atol=1e-6)
    assert kept.shape == (last + 1, 2, 32) and not kept[last].any()


def test_recording_changes_no_token(target, recorded):
  engine = engine_of(target, NoProposer())
  answers = distill.Answers(temperatures=(0.0, 1.0), max_new_tokens=9)
  wanted = {found.id: found.tokens.tolist() for found in recorded}
  requests = [
    answers.request(row(text, f"t:{i}", n=2), t, target.tokenizer)
    for i, text in enumerate(TEXTS)
    for t in (0.0, 1.0)
  ]
  with tiny.compiled_quickly():
    for event in engine.run(requests):
      if hasattr(event, "finish_reason"):
        name = f"#{event.sample}" if event.samples > 1 else ""
        tokens = wanted[event.id + name]
        assert tokens[-len(event.token_ids) :] == list(event.token_ids)


class Talker:
  """A tokenizer whose chats are read letter by letter; "." ends a turn."""

  eos_ids = (ord("."),)

  def encode_chat(self, messages):
    return list(map(ord, "<u>" + messages[-1]["content"] + "<a>"))

  def encode_more(self, text):
    return list(map(ord, text))

  def decode(self, ids, skip_special=True):
    return "".join(map(chr, ids))


class Says:
  """An engine that says the same things again and again."""

  def __init__(self, *texts):
    self.texts, self.asked, self.begun = texts, [], []

  def run(self, requests):
    from specjax.engine import request as request_lib

    for request in requests:
      number = int(request.id.partition(":")[2])
      self.asked.append(number)
      opening, _, begun = "".join(map(chr, request.prompt)).partition("<u>")
      assert not opening
      self.begun.append(begun)
      assert request.sampling.temperature == 1
      text = self.texts[number % len(self.texts)]
      yield request_lib.Completion(
        id=request.id,
        token_ids=tuple(map(ord, text)),
        finish_reason="stop",
      )


def ask(folder, engine, count=3, **how):
  how = {"stop": lambda: False, "tell": lambda count: None, **how}
  journal = self_prompts.Journal(folder)
  rows = self_prompts.ask(
    engine, Talker(), journal, count=count, max_new_tokens=9, **how
  )
  return [(found.id, found.messages[0]["content"]) for found in rows]


def test_self_prompts_are_different_and_have_an_end(tmp_path):
  engine = Says("Why?.", "no end", "why.", " .", "How so.", "What for!.")
  found = ask(tmp_path, engine)
  assert found == [
    ("self:0", "Why?"),
    ("self:4", "How so"),
    ("self:5", "What for!"),
  ]
  assert engine.asked == list(range(len(engine.asked)))


def test_self_prompts_leave_out_what_is_held_out(tmp_path):
  engine = Says("Why.", "How so.", "What for.", "When.")
  found = ask(tmp_path, engine, held_out=[row("HOW  so?")])
  assert [text for _, text in found] == ["Why", "What for", "When"]


def test_self_prompts_begin_with_the_first_words_in_turn(tmp_path):
  engine = Says(" it.", "e.", " not.")
  found = ask(tmp_path, engine, 4, first_words=("Do", ""))
  assert engine.begun == ["Do", "", "Do", "", "Do", ""][: len(engine.begun)]
  texts = [text for _, text in found]
  assert texts == ["Do it", "e", "Do not", "it"]


def test_a_target_that_repeats_itself_is_not_asked_for_ever(tmp_path):
  assert ask(tmp_path, Says("Why.")) == [("self:0", "Why")]


def test_self_prompts_go_on_after_a_kill(tmp_path):
  texts = ("a.", "b.", "c.", "d.")
  wanted = ask(tmp_path / ".", Says(*texts), 4)
  path = tmp_path / self_prompts.FILE
  lines = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b"".join(lines[2:]) + b'{"num')  # 0 and 1 had not finished.
  engine = Says(*texts)
  assert ask(tmp_path, engine, 4) == wanted
  assert engine.asked == [0, 1]
  assert len(path.read_bytes().splitlines()) == 4


def test_a_template_without_an_opening_cannot_be_asked():
  class Bare(Talker):
    def encode_chat(self, messages):
      return list(map(ord, messages[-1]["content"]))

  with pytest.raises(ValueError, match="give --prompts"):
    self_prompts.opening(Bare())


def test_the_real_template_is_cut_where_the_user_begins(target):
  start = self_prompts.opening(target.tokenizer)
  assert target.tokenizer.decode(start) == "user: "


def test_text_becomes_pieces_at_line_ends():
  text = "".join(f"line {number}\n" for number in range(10))
  found = prompt_sources.pieces(text, 20)
  assert found[0] == "line 0\nline 1" and len(found) == 5
  assert "\n".join(found) + "\n" == text
  assert (
    prompt_sources.pieces("word " * 30, 25)[0] == "word word word word word"
  )
  assert prompt_sources.pieces("x" * 50, 20) == ["x" * 20, "x" * 20, "x" * 10]
  assert prompt_sources.pieces("short", 400) == ["short"]
  assert prompt_sources.pieces(" \n", 400) == []


def test_prompts_come_from_files_and_folders(tmp_path):
  (tmp_path / "a.jsonl").write_text('{"prompt": "one", "id": "q"}\n{"x": 1}\n')
  folder = tmp_path / "texts"
  (folder / "deep").mkdir(parents=True)
  (folder / "deep" / "b.txt").write_text("two")
  (folder / ".git").mkdir()
  (folder / ".git" / "c.txt").write_text("no")
  (folder / "bad.txt").write_bytes(b"\xff")
  names = [str(tmp_path / "a.jsonl"), str(folder)]
  found = prompt_sources.read(names, chunk_chars=400)
  assert {r.id: r.prompt for r in found.rows} == {
    "a.jsonl:q": "one",
    "texts/deep/b.txt:1": "two",
  }
  assert [bad.id for bad in found.bad] == ["a.jsonl:2", "texts/bad.txt:1"]
  again = prompt_sources.read(names, chunk_chars=400)
  assert again.digest == found.digest
  (folder / "deep" / "b.txt").write_text("three")
  assert prompt_sources.read(names, chunk_chars=400).digest != found.digest


def test_files_of_one_name_are_told_apart(tmp_path):
  for name in "ab":
    (tmp_path / name).mkdir()
    (tmp_path / name / "x.jsonl").write_text(json.dumps({"prompt": name}))
  names = [str(tmp_path / name / "x.jsonl") for name in "ab"]
  found = prompt_sources.read(names, chunk_chars=400)
  assert len({r.id for r in found.rows}) == 2


def test_held_out_prompts_are_found_in_any_spelling():
  chat = dataclasses.replace(
    row("", "c"), prompt=None, messages=({"role": "user", "content": "A b?"},)
  )
  rows = [row("a, B!", "x"), chat, row("a c", "y")]
  assert prompt_sources.without(rows, [row("a b")]) == rows[2:]
  assert prompt_sources.distinct(rows) == [rows[0], rows[2]]


def test_prompts_are_drawn_by_the_seed_in_their_order():
  rows = [row("a", str(number)) for number in range(50)]
  found = prompt_sources.drawn(rows, 10, 3)
  assert found == prompt_sources.drawn(rows, 10, 3)
  assert found != prompt_sources.drawn(rows, 10, 4)
  numbers = [int(r.id) for r in found]
  assert numbers == sorted(set(numbers)) and len(numbers) == 10
  assert prompt_sources.drawn(rows, None, 3) == rows


def test_rows_come_in_an_order_of_the_seed():
  rows = [row("a", str(number)) for number in range(40)]
  found = prompt_sources.shuffled(rows, 3)
  assert found == prompt_sources.shuffled(rows, 3) != rows
  assert found != prompt_sources.shuffled(rows, 4)
  by_id = lambda one: int(one.id)
  assert sorted(found, key=by_id) == rows
  # What an ended run has made is a sample of the whole.
  assert 5 <= sum(int(one.id) < 20 for one in found[:20]) <= 15


def test_a_recorder_keeps_states_as_bfloat16():
  state = Recorder(features=(1, 2, 3), width=8).init(2, 10)
  assert state.k.shape == (1, 2, 3, 128, 8) and state.v.size == 0
  assert state.k.dtype.itemsize == np.dtype(ml_dtypes.bfloat16).itemsize
