import json
import sys

import pytest

from specjax.cli import checks, command, settings
from specjax.engine import sizes
from specjax.jobs import prompts

BASE = ("--model=m", "--prompt=p")
FILE = ("--model=m", "--prompts=f")
SKIP = (*BASE, "--proposer=layer_skip")
MTP = (*BASE, "--proposer=mtp")


def parse(*flags):
  return settings.parse(["specjax-generate", *flags])


def check(*flags):
  given = parse(*flags)
  checks.check(given)
  return given


@pytest.fixture
def config(tmp_path):
  def write(*lines):
    path = tmp_path / "config.py"
    body = "".join(f"  c.{line}\n" for line in lines)
    path.write_text(
      "import ml_collections\ndef get_config():\n"
      f"  c = ml_collections.ConfigDict()\n{body}  return c\n"
    )
    return f"--config={path}"

  return write


def test_defaults_config_and_flags_in_rising_order(config):
  flag = config("model='m'", "temperature=1", "top_p=0.5", "stop=['a']")
  given = check(flag, "--prompt=p", "--top_p=0.9", "--chat")
  s = given.settings
  assert (s.model, s.temperature, s.top_p, s.top_k) == ("m", 1.0, 0.9, 0)
  assert s.stop == ("a",)
  assert s.chat
  assert given.flags == {"prompt", "top_p", "chat"}


def test_a_config_field_can_be_overridden_in_place(config):
  flag = config("model='m'", "temperature=1.0")
  given = check(flag, "--config.temperature=0.25", "--prompt=p")
  assert given.settings.temperature == 0.25


def test_stop_may_be_repeated():
  assert check(*BASE, "--stop=a", "--stop=b").settings.stop == ("a", "b")


def test_help_is_asked_for():
  assert parse("--help") is None
  shown = settings.help_text("Usage.")
  for name in settings.FIELDS:
    assert f"--{name}" in shown


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--modle=m",), "Unknown command line flag 'modle'"),
    (("--top_k=x",), "--top_k"),
    (("--max_tokens=5",), r"'max_tokens' \(did you mean --max_new_tokens\?\)"),
    (("--zzz=5",), "Unknown command line flag 'zzz'$"),
    (("--proposer=beagle",), "--proposer=beagle"),
    (("--model",), "Missing value for flag --model"),
    (("prompt",), "'prompt' is no flag"),
    (("--config=/absent.py",), "--config"),
  ],
)
def test_a_wrong_flag_is_one_line(flags, words):
  with pytest.raises(command.UsageError, match=words) as caught:
    parse(*flags)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "lines, words",
  [
    (("modle='m'",), r"no setting \(did you mean model\?\); there are model"),
    (("temprature=1.0",), r"no setting \(did you mean temperature\?\); there"),
    (("top_k=1.5",), "config.top_k=1.5: give a whole number$"),
    (("top_k=True",), "config.top_k=True: give a whole number$"),
    (("slots='2'",), "config.slots='2': give a whole number, without quotes$"),
    (("top_p='1'",), "config.top_p='1': give a number, without quotes$"),
    (
      ("proposer='beagle'",),
      "'beagle': give one of none, ngram, draft_model, ",
    ),
    (("chat=1",), "config.chat=1: give True or False$"),
    (("model=1",), "config.model=1: give a text$"),
    (("stop=[1]",), "config.stop.*: give a text or a list of texts$"),
    (("temperature=1/0",), "--config: ZeroDivisionError: division by zero"),
    (("temperature=",), "--config: SyntaxError"),
  ],
)
def test_a_wrong_config_is_one_line(config, lines, words):
  with pytest.raises(command.UsageError, match=words) as caught:
    parse(config(*lines), *BASE)
  assert "\n" not in str(caught.value)


def test_the_config_is_locked(config):
  with pytest.raises(command.UsageError, match="temprature"):
    parse(config("temperature=1.0"), "--config.temprature=2.0", *BASE)


@pytest.mark.parametrize(
  "flags, words",
  [
    (("--prompt=p",), "--model is missing"),
    (("--model=m",), "--prompt and --prompts are missing"),
    ((*BASE, "--prompts=f"), "--prompt and --prompts are both given"),
    ((*BASE, "--proposer=draft_model"), "needs --draft_model; name a small"),
    ((*BASE, "--proposer=eagle"), "needs --draft_model; name an EAGLE head"),
    ((*BASE, "--proposer=medusa"), "needs --draft_model; name Medusa heads"),
    ((*BASE, "--proposer=medusa", "--draft_model="), "--draft_model= is empty"),
    ((*BASE, "--proposer=layer_skip"), "layer_skip needs --draft_layers"),
    ((*SKIP, "--draft_layers=x"), "--draft_layers=x: give how many of the"),
    ((*SKIP, "--draft_layers=0"), "--draft_layers=0: give how many of the"),
    (
      (*SKIP, "--draft_layers=2,1"),
      "--draft_layers=2,1: give layers in rising",
    ),
    ((*BASE, "--lookahead=0", "--proposer=ngram"), "--lookahead=0"),
    ((*MTP, "--siblings=-1"), "--siblings=-1 is out of range"),
    ((*MTP, "--siblings=1025"), "--siblings=1025 is out of range"),
    ((*BASE, "--temperature=-1"), "--temperature=-1.0"),
    ((*BASE, "--temperature=nan"), "--temperature=nan"),
    ((*BASE, "--temperature=inf"), "--temperature=inf"),
    ((*BASE, "--temperature=1", "--top_p=0"), "--top_p=0.0"),
    ((*BASE, "--temperature=1", "--top_p=nan"), "--top_p=nan"),
    ((*BASE, "--temperature=1", "--min_p=2"), "--min_p=2.0"),
    ((*BASE, "--repetition_penalty=0"), "--repetition_penalty=0.0"),
    ((*BASE, "--presence_penalty=nan"), "--presence_penalty=nan"),
    ((*BASE, "--frequency_penalty=101"), "--frequency_penalty=101.0"),
    ((*BASE, "--logit_bias=a:1"), "--logit_bias=a:1 is no bias"),
    ((*BASE, "--logit_bias=1"), "--logit_bias=1 is no bias"),
    ((*BASE, "--logit_bias=1:x"), "--logit_bias=1:x is no bias"),
    ((*BASE, "--logit_bias=1:inf"), "--logit_bias of id 1 is inf"),
    ((*BASE, "--logit_bias=1:2", "--logit_bias=01:3"), "token 1 twice"),
    ((*BASE, "--temperature=1", "--n=0"), "--n=0 is out of range"),
    ((*BASE, "--temperature=1", "--n=2", "--stream"), "shows one answer"),
    ((*FILE, "--logprobs=101"), "--logprobs=101 is out of range"),
    ((*BASE, "--temperature=1", "--top_k=-1"), "--top_k=-1"),
    ((*BASE, "--max_new_tokens=0"), "--max_new_tokens=0"),
    ((*FILE, "--slots=0"), "--slots=0"),
    (
      (*BASE, "--proposer=ngram", "--ngram_min=5"),
      "--ngram_min=5 is above --ngram_max=4, the default; lower it, or raise",
    ),
    (
      (*BASE, "--proposer=ngram", "--ngram_max=1"),
      "--ngram_max=1 is below --ngram_min=2, the default; raise it, or lower",
    ),
    (
      (*BASE, "--proposer=ngram", "--ngram_min=5", "--ngram_max=3"),
      "--ngram_min=5 is above --ngram_max=3; lower it, or raise --ngram_max",
    ),
    ((*BASE, "--proposer=ngram", "--ngram_max=65"), "number from 1 to 64"),
    ((*BASE, "--proposer=ngram", f"--lookahead={2**31}"), "from 1 to 21474"),
    ((*BASE, "--temperature=1", f"--seed={2**64}"), "--seed=1844.*range"),
    ((*BASE, "--temperature=1e31"), r"--temperature=1e\+31 is out of range"),
    ((*BASE, "--temperature=1", f"--top_k={2**31}"), "--top_k=2147483648"),
    ((*BASE, "--capacity=1"), "--capacity=1 is out of range; give at least 2"),
    ((*FILE, f"--slots={2**31}"), "--slots=2147483648"),
    ((*BASE, "--max_memory=much"), "--max_memory=much is no size; give one"),
    ((*BASE, "--max_memory=0"), "--max_memory=0 is no size"),
    ((*BASE, "--stop="), "--stop= is empty"),
    ((*BASE, "--compilation_cache="), "--compilation_cache= is empty"),
  ],
)
def test_what_cannot_be_is_refused_by_name(flags, words):
  with pytest.raises(command.UsageError, match=words):
    check(*flags)


@pytest.mark.parametrize(
  "flags, words",
  [
    ((*BASE, "--lookahead=4"), "--lookahead=4 does nothing"),
    ((*BASE, "--siblings=4"), "--siblings=4 does nothing.*--proposer=none"),
    (
      (*BASE, "--proposer=ngram", "--siblings=4"),
      "--siblings=4 does nothing with --proposer=ngram",
    ),
    ((*BASE, "--verifier=block"), "--verifier=block does nothing"),
    ((*BASE, "--ngram_min=1"), "--ngram_min=1 does nothing"),
    ((*BASE, "--draft_model=d"), "--draft_model=d .*--proposer=none"),
    ((*BASE, "--draft_layers=8"), "--draft_layers=8 .*--proposer=none"),
    ((*BASE, "--draft_weights=int8"), "--draft_weights=int8 .*--proposer=none"),
    (
      (*SKIP, "--draft_layers=8", "--draft_model=d"),
      "--draft_model=d does nothing with --proposer=layer_skip; leave it out$",
    ),
    (
      (*BASE, "--draft_model=d", "--proposer=ngram"),
      "--draft_model=d does nothing with --proposer=ngram",
    ),
    (
      (*BASE, "--draft_model=d", "--proposer=draft_model", "--ngram_max=2"),
      "--ngram_max=2 does nothing with --proposer=draft_model",
    ),
    ((*BASE, "--output=o"), "--output=o does nothing without --prompts"),
    ((*FILE, "--stream"), "--stream does nothing with --prompts"),
    ((*FILE, "--overwrite"), "--overwrite does nothing without --output"),
    ((*BASE, "--slots=2"), "--slots=2 does nothing with a single --prompt"),
    ((*BASE, "--top_k=5"), "--top_k=5 does nothing with temperature 0"),
    ((*BASE, "--top_p=0.5"), "--top_p=0.5 does nothing with temperature 0"),
    ((*BASE, "--min_p=0.5"), "--min_p=0.5 does nothing with temperature 0"),
    ((*BASE, "--n=2"), "--n=2 does nothing with temperature 0"),
    ((*BASE, "--logprobs=0"), "--logprobs=0 does nothing without --prompts"),
    ((*BASE, "--seed=0"), "--seed=0 does nothing with temperature 0"),
  ],
)
def test_rule_28_a_flag_that_does_nothing_is_refused(flags, words):
  with pytest.raises(command.UsageError, match=words):
    check(*flags)


@pytest.mark.parametrize(
  "flags",
  [
    (*BASE, "--proposer=ngram", "--lookahead=2", "--ngram_max=2"),
    (*BASE, "--proposer=draft_model", "--draft_model=d", "--lookahead=2"),
    (*BASE, "--proposer=eagle", "--draft_model=d", "--verifier=block"),
    (*BASE, "--proposer=mtp", "--lookahead=1"),
    (*MTP, "--siblings=4"),
    (*BASE, "--siblings=0"),
    (*SKIP, "--draft_layers=2", "--siblings=1024"),
    (*BASE, "--proposer=mtp", "--draft_model=d"),
    (*SKIP, "--draft_layers=0,1,5"),
    (*BASE, "--temperature=1", "--top_k=5", "--seed=0"),
    (*BASE, "--top_k=0", "--nostream", "--slots=1"),
    (*BASE, "--repetition_penalty=1.2", "--logit_bias=1:2", "--n=1"),
    (*BASE, "--temperature=1", "--n=2", "--presence_penalty=-1"),
    (*FILE, "--logprobs=0", "--frequency_penalty=1"),
    (*FILE, "--top_k=5"),  # A row may have a temperature: see check_rows.
    (*FILE, "--output=o", "--overwrite", "--slots=8", "--capacity=256"),
  ],
)
def test_what_does_something_passes(flags):
  check(*flags)


@pytest.mark.parametrize(
  "content, kind",
  [
    ({"specjax_proposer": {"kind": "mtp"}}, "mtp"),
    ({"specjax_embeddings": "target"}, "draft_model"),
    ({"medusa_num_heads": 3}, "medusa"),
    ({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 9}, "eagle"),
    ({"architectures": ["Qwen2ForCausalLM"]}, "draft_model"),
  ],
)
def test_a_draft_folder_that_says_what_it_is_is_taken_at_its_word(
  tmp_path, content, kind
):
  (tmp_path / "config.json").write_text(json.dumps(content))
  folder = f"--draft_model={tmp_path}"
  check(*BASE, folder, f"--proposer={kind}")
  with pytest.raises(command.UsageError, match=f"or give --proposer={kind}$"):
    check(*BASE, folder)
  other = "medusa" if kind == "eagle" else "eagle"
  words = f"what --proposer={kind} drafts with, not --proposer={other}; give"
  with pytest.raises(command.UsageError, match=words):
    check(*BASE, folder, f"--proposer={other}")


def row(messages=None, **settings):
  prompt = None if messages else "p"
  return prompts.Row(
    line=1, id="1", prompt=prompt, messages=messages, settings=settings
  )


def test_rule_28_rows_that_never_sample_make_filters_idle():
  given = check(*FILE, "--top_k=5")
  checks.check_rows(given, [row(), row(temperature=1)])
  with pytest.raises(command.UsageError, match="--top_k=5 .*where every row"):
    checks.check_rows(given, [row(), row(temperature=0)])


def test_rule_28_rows_with_settings_of_their_own_make_flags_idle():
  given = check(*FILE, "--max_new_tokens=5")
  checks.check_rows(given, [row(), row(max_new_tokens=1)])
  with pytest.raises(command.UsageError, match="--max_new_tokens=5 .*its own"):
    checks.check_rows(given, [row(max_new_tokens=1)])


def test_rule_28_rows_of_messages_make_chat_idle():
  given = check(*FILE, "--chat")
  messages = ({"role": "user", "content": "c"},)
  checks.check_rows(given, [row(messages), row()])
  with pytest.raises(command.UsageError, match="--chat does nothing"):
    checks.check_rows(given, [row(messages)])


def test_a_file_of_bad_rows_says_nothing_about_flags():
  checks.check_rows(check(*FILE, "--chat", "--top_k=3"), [])


def test_rule_28_holds_within_a_config_but_a_flag_may_win(config):
  flag = config("model='m'", "proposer='ngram'", "lookahead=2")
  assert check(flag, "--prompt=p", "--proposer=none").settings.lookahead == 2
  idle = config("model='m'", "lookahead=2")
  with pytest.raises(command.UsageError, match=r"config\.lookahead=2 does"):
    check(idle, "--prompt=p")
  idle = config("model='m'", "top_k=2")
  with pytest.raises(command.UsageError, match=r"config\.top_k=2 does"):
    check(idle, "--prompt=p")


def test_a_setting_is_named_where_it_was_given(config):
  edited = config("model='m'", "proposer='none'", "lookahead=5")
  with pytest.raises(command.UsageError) as caught:
    check(edited, "--prompt=p")
  assert str(caught.value) == (
    "config.lookahead=5 does nothing with config.proposer='none'; leave it out"
  )
  with pytest.raises(command.UsageError, match="--proposer=none, the default"):
    check(config("model='m'", "lookahead=5"), "--prompt=p")
  plain = config("model='m'", "proposer='none'")
  with pytest.raises(command.UsageError, match="^--lookahead=5 .* config.prop"):
    check(plain, "--prompt=p", "--lookahead=5")
  with pytest.raises(command.UsageError, match="^config.top_k=-1 is out of"):
    check(config("model='m'", "top_k=-1"), "--prompt=p")
  with pytest.raises(command.UsageError, match="^--top_k=-2 is out of range"):
    check(config("model='m'", "top_k=-1"), "--prompt=p", "--top_k=-2")
  draft = config("model='m'", "proposer='draft_model'")
  with pytest.raises(command.UsageError, match="^config.proposer='draft_mod"):
    check(draft, "--prompt=p")


@pytest.mark.parametrize(
  "lines, flags, words",
  [
    # A config for files serves a prompt, which a flag brings.
    (("slots=2",), ("--prompt=p",), None),
    (("stream=True", "slots=2"), ("--prompts=f",), None),
    (("output='o'", "overwrite=True"), ("--prompts=f",), None),
    (("prompts='f'", "overwrite=True"), ("--output=o",), None),
    # What a config says about files beside a prompt of its own is a mistake.
    (("prompt='p'", "slots=2"), (), "config.slots=2 .* single --prompt"),
    (("prompt='p'", "output='o'"), (), "config.output='o' .* without"),
    (("prompts='f'", "stream=True"), (), "config.stream=True .* --prompts"),
  ],
)
def test_rule_28_a_config_that_names_no_prompts_waits_for_flags(
  config, lines, flags, words
):
  flag = config("model='m'", *lines)
  if words is None:
    check(flag, *flags)
    return
  with pytest.raises(command.UsageError, match=words):
    check(flag, *flags)


@pytest.mark.parametrize(
  "body", ("x = 1\n", "def get_config():\n  return None\n")
)
def test_rule_28_a_config_that_gives_nothing_is_refused(
  tmp_path, monkeypatch, body
):
  # ml_collections would load it on top of the config of another test.
  monkeypatch.delitem(sys.modules, "config_config", raising=False)
  path = tmp_path / "config.py"
  path.write_text(body)
  with pytest.raises(command.UsageError, match="get_config"):
    check(f"--config={path}", *BASE)


def test_the_ranges_are_those_of_the_engine():
  """Each bound is accepted there, and what lies beyond it is refused."""
  from specjax.engine.request import SamplingParams
  from specjax.proposers import ngram

  for name in ("temperature", "top_k", "min_p", "seed"):
    least, most = checks._RANGES[name]
    for bound in (least, most):
      SamplingParams(**{name: bound})
    for beyond in (least - 1, most * 2 + 1):
      with pytest.raises(ValueError, match=f"{name} is"):
        SamplingParams(**{name: beyond})
  assert checks._RANGES["ngram_max"] == (1, ngram.LONGEST)
  sizes.check(slots=checks._RANGES["slots"][1], capacity=2)
  with pytest.raises(ValueError, match="slots is"):
    sizes.check(slots=checks._RANGES["slots"][1] + 1, capacity=2)
