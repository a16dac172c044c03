"""The README's table of what works with what, cell by cell.

Every row of the table has a check here, and every cell is run: "yes" must work,
"–" must be an error, and "refused" must be an error that names both. RULES are
the project's list of what a correct speculative decoder satisfies.
"""

import dataclasses
import functools
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import specjax
from specjax import api
from specjax.checkpoints import hf
from specjax.engine.request import Completion, Request
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.proposers import kinds
from tests import heads_made
from tests.readme_test import README
from tests.text import tokenizers_made

PROPOSERS = ("plain", *(kind for kind in kinds.KINDS if kind != "none"))
HEADS = ("medusa", "eagle", "mtp")  # what borrows from its target
PROMPT = "abcabcabcabc"
CONFIG = dict(
  architectures=["LlamaForCausalLM"],
  vocab_size=262,
  hidden_size=16,
  intermediate_size=24,
  num_hidden_layers=2,
  num_attention_heads=2,
  max_position_embeddings=256,
  tie_word_embeddings=True,
)
SMALL = dict(capacity=64, prefill_widths=(16,))


def table():
  """{feature: the cells of its row, by proposer}."""
  head = "| | plain | " + " | ".join(f"`{name}`" for name in PROPOSERS[1:])
  (body,) = re.findall(
    rf"^{re.escape(head)} \|\n\|[-|]+\|\n((?:\|.*\n)+)", README, re.M
  )
  rows = {}
  for line in body.splitlines():
    feature, *cells = [cell.strip() for cell in line.strip("|").split("|")]
    rows[feature] = dict(zip(PROPOSERS, cells, strict=True))
  return rows


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  """Tiny checkpoints: a target, its draft, a padded and a foreign draft."""
  root = tmp_path_factory.mktemp("models")
  made = {}
  for name, config, seed in (
    ("target", CONFIG, 0),
    ("draft", CONFIG, 1),
    ("padded", CONFIG | {"vocab_size": 272}, 1),
  ):
    made[name] = root / name
    model = decoder.build(config_lib.from_hugging_face(config))
    hf.save_params(made[name], model, model.init(seed), config=config)
    tokenizers_made.folder(
      made[name],
      tokenizers_made.byte_level(),
      tokenizer_config__json={"eos_token": tokenizers_made.EOS},
    )
  made["foreign"] = root / "foreign"
  shutil.copytree(made["draft"], made["foreign"])
  path = made["foreign"] / "tokenizer.json"
  tokenizer = json.loads(path.read_text())
  vocab = tokenizer["model"]["vocab"]
  (a, first), (b, second) = list(vocab.items())[:2]
  vocab[a], vocab[b] = second, first
  path.write_text(json.dumps(tokenizer))
  target = specjax.load(made["target"])
  for kind in (*HEADS, "draft_model"):
    for name, how in (
      (f"{kind} reduced", dict(reduced=True)),
      (kind, {}),
      (f"foreign {kind}", dict(tokenizer="another")),
    ):
      made[name] = heads_made.save(root / name, target, kind, **how)
  return made


@dataclasses.dataclass(frozen=True)
class Bench:
  """Engines of one proposer; those made alike are one."""

  proposer: str
  folders: dict

  @functools.cached_property
  def made(self):
    return {}

  @property
  def draft(self):
    return self.proposer if self.proposer in HEADS else "draft"

  def engine(self, draft=None, dtype="float32", scan_layers=False, **how):
    key = (draft, dtype, scan_layers, *sorted(how.items()))
    if key not in self.made:
      options = dict(dtype=dtype, scan_layers=scan_layers)
      target = specjax.load(self.folders["target"], **options)
      kind = self.proposer.replace("plain", "none")
      if draft is not None or kinds.KINDS[kind].reads:
        folder = self.folders[draft or self.draft]
        how["draft"] = api.load_draft(kind, folder, target, **options)
      if kind == "layer_skip":
        how["draft_layers"] = 1
      if kind != "none":
        how = {"lookahead": 2, **how}
      self.made[key] = specjax.Engine(
        target,
        proposer=kind,
        slots=2,
        top_logprobs=2,
        **SMALL,
        **how,
      )
    return self.made[key]

  def answer(self, engine=None, prompt=PROMPT, **settings):
    settings = {"max_new_tokens": 8, **settings}
    return (engine or self.engine()).generate(prompt, **settings)


def draws(bench):
  for settings in (
    {},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.0, "min_p": 0.2},
  ):
    seed = {"seed": 7} if settings else {}
    one = bench.answer(**settings, **seed)
    assert one.token_ids and one == dataclasses.replace(
      bench.answer(**settings, **seed),
      ttft_s=one.ttft_s,
      token_times_s=one.token_times_s,
    )


def penalties(bench):
  plain = bench.answer().token_ids
  banned = bench.answer(logit_bias={plain[0]: -100.0}).token_ids
  assert plain[0] not in banned
  one = bench.answer(repetition_penalty=50.0, frequency_penalty=50.0)
  assert len(set(one.token_ids)) == len(one.token_ids)
  one = bench.answer(presence_penalty=100.0)
  assert len(set(one.token_ids)) == len(one.token_ids)


def samples(bench):
  several = bench.answer(temperature=1.0, n=3)
  assert [one.sample for one in several] == [0, 1, 2]
  one = bench.answer(logprobs=2)
  assert len(one.logprobs) == len(one.top_logprobs) == len(one.token_ids)
  assert all(score <= 0 for score in one.logprobs)


def refills(bench):
  many = bench.answer(prompt=[PROMPT] * 5)
  assert len({one.token_ids for one in many}) == 1


def ends(bench):
  one = bench.answer()
  assert one.finish_reason == "length" and len(one.token_ids) == 8
  cut = bench.answer(stop=one.text[2:4])
  assert cut.finish_reason == "stop" and one.text.startswith(cut.text)
  full = bench.answer(prompt="a" * 60, max_new_tokens=50)
  assert full.finish_reason == "length" and len(full.token_ids) == 4


def streams(bench):
  pieces = list(bench.engine().stream(PROMPT, max_new_tokens=8))
  assert "".join(pieces) == bench.answer().text


def verifies(bench):
  if bench.proposer == "plain":
    raise ValueError("nothing is drafted, so nothing is verified")
  blockwise = bench.answer(bench.engine(verifier="block"))
  assert blockwise.token_ids == bench.answer().token_ids
  assert blockwise.drafted > 0


def rows_lookahead(bench):
  engine = bench.engine()
  request = Request(prompt=engine.encode(PROMPT), lookahead=1, max_new_tokens=6)
  (done,) = [
    event for event in engine.run([request]) if isinstance(event, Completion)
  ]
  if done.error:
    raise ValueError(done.error)
  assert sum(done.drafted_per_position[1:]) == 0


def guesses(bench):
  engine = bench.engine(siblings=2)
  assert bench.answer(engine).token_ids == bench.answer().token_ids
  drawn = dict(temperature=1.0, seed=3)
  both = [bench.answer(engine, **drawn).token_ids for _ in range(2)]
  assert both[0] == both[1] != ()


def rounds(bench):
  engine = bench.engine(draft_weights="int8")
  assert bench.answer(engine).token_ids == bench.answer().token_ids
  drawn = dict(temperature=1.0, seed=3)
  both = [bench.answer(engine, **drawn).token_ids for _ in range(2)]
  assert both[0] == both[1] != ()


def dtypes(bench):
  for engine in (bench.engine(), bench.engine(dtype="bfloat16")):
    assert bench.answer(engine).token_ids


def layers(bench):
  scanned = bench.answer(bench.engine(scan_layers=True))
  assert scanned.token_ids == bench.answer().token_ids


# Two simulated devices, which this process does not have.
MESHED = """
import sys, specjax
from specjax import api
proposer, folder, draft, prompt = sys.argv[1:]
target = specjax.load(folder, mesh="model:2")
how = {} if proposer == "none" else {"lookahead": 2}
if proposer == "layer_skip":
  how["draft_layers"] = 1
if proposer in ("draft_model", "medusa", "eagle", "mtp"):
  how["draft"] = api.load_draft(proposer, draft, target, mesh="model:2")
if proposer not in ("none", "ngram"):
  how["siblings"] = 2
engine = specjax.Engine(target, proposer=proposer, capacity=64, **how)
print(*engine.generate(prompt, max_new_tokens=8).token_ids)
"""


def meshed(bench):
  done = subprocess.run(
    [
      *(sys.executable, "-c", MESHED, bench.proposer.replace("plain", "none")),
      *(bench.folders["target"], bench.folders[bench.draft], PROMPT),
    ],
    env=os.environ
    | {
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    },
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert tuple(map(int, done.stdout.split())) == bench.answer().token_ids


def padded(bench):
  if bench.proposer != "draft_model":
    raise ValueError("there is no draft to be padded")
  done = bench.answer(bench.engine(draft="padded"))
  assert done.token_ids == bench.answer().token_ids


def reduced(bench):
  if not kinds.KINDS[bench.proposer.replace("plain", "none")].reads:
    raise ValueError("there is no draft of its own vocabulary")
  done = bench.answer(bench.engine(draft=f"{bench.proposer} reduced"))
  assert done.token_ids == bench.answer().token_ids


def foreign(bench):
  if not kinds.KINDS[bench.proposer.replace("plain", "none")].reads:
    raise ValueError("there is no draft")
  bench.engine(draft=foreign_of(bench))


def foreign_of(bench):
  return f"foreign {bench.proposer}" if bench.proposer in HEADS else "foreign"


CHECKS = {
  "greedy, temperature, top-k, top-p, min-p, seeds": draws,
  "repetition, presence and frequency penalties, logit bias": penalties,
  "n samples a prompt, log-probabilities": samples,
  "many slots, refilled as rows finish": refills,
  "stop strings, end tokens, token budget, context limit": ends,
  "streaming": streams,
  "`--verifier=token`, `block`": verifies,
  "lookahead per row": rows_lookahead,
  "second guesses, `--siblings`": guesses,
  "rounded drafts, `--draft_weights=int8`": rounds,
  "float32, bfloat16": dtypes,
  "layers unrolled or scanned": layers,
  "split over a mesh of devices": meshed,
  "padded vocabularies of different size": padded,
  "drafts of a reduced vocabulary": reduced,
  "different tokenizers": foreign,
}


@pytest.fixture(scope="module")
def benches(folders):
  return {name: Bench(name, folders) for name in PROPOSERS}


# Those that need engines of their own: see the marker.
DEARER = {
  "`--verifier=token`, `block`",
  "rounded drafts, `--draft_weights=int8`",
  "float32, bfloat16",
  "layers unrolled or scanned",
  "split over a mesh of devices",
  "padded vocabularies of different size",
  "drafts of a reduced vocabulary",
}
FEATURES = [
  pytest.param(feature, marks=[pytest.mark.long] * (feature in DEARER))
  for feature in CHECKS
]


def test_every_row_of_the_table_is_checked():
  assert table().keys() == CHECKS.keys()


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("feature", FEATURES)
def test_rule_31_the_table_says_what_works_with_what(
  feature, proposer, benches, folders
):
  cell, bench = table()[feature][proposer], benches[proposer]
  if cell == "yes":
    CHECKS[feature](bench)
    return
  with pytest.raises(ValueError) as caught:
    CHECKS[feature](bench)
  if cell == "refused":
    assert str(folders[foreign_of(bench)]) in str(caught.value)
    assert str(folders["target"]) in str(caught.value)
  else:
    assert cell == "–"
