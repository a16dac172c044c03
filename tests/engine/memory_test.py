"""The memory estimate (RULES.md 29): what is counted, and who is refused."""

import functools
import gc
import math

import jax
import pytest

import specjax
from specjax.engine import memory, programs
from specjax.models import config as config_lib
from specjax.models import decoder
from specjax.models.heads import eagle, mtp
from specjax.proposers.draft_model import DraftModel
from specjax.proposers.eagle import Eagle
from specjax.proposers.layer_skip import LayerSkip
from specjax.proposers.mtp import Mtp
from specjax.proposers.ngram import Ngram
from specjax.proposers.none import NoProposer
from tests import api_test
from tests.text import tokenizers_made

GB = 10**9
LARGE = decoder.build(
  config_lib.from_hugging_face(
    {
      "architectures": ["LlamaForCausalLM"],
      "vocab_size": 128_000,
      "hidden_size": 4096,
      "intermediate_size": 14336,
      "num_hidden_layers": 32,
      "num_attention_heads": 32,
      "num_key_value_heads": 8,
      "max_position_embeddings": 8192,
    }
  ),
  scan_layers=True,
)
SMALL = decoder.build(
  config_lib.from_hugging_face(
    {
      "architectures": ["LlamaForCausalLM"],
      "vocab_size": 128_000,
      "hidden_size": 2048,
      "intermediate_size": 8192,
      "num_hidden_layers": 16,
      "num_attention_heads": 32,
      "num_key_value_heads": 8,
      "max_position_embeddings": 8192,
    }
  ),
  scan_layers=True,
)


def estimate(proposer=None, draft=(), **sizes):
  sizes = dict(slots=4, capacity=1024, prefill_widths=(32, 128)) | sizes
  return memory.estimate(LARGE, proposer or NoProposer(), draft, **sizes)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  root = tmp_path_factory.mktemp("checkpoints")
  backend = tokenizers_made.byte_level
  make = functools.partial(api_test.checkpoint, vocab=api_test.VOCAB)
  return {
    "target": make(root / "target", backend()),
    "draft": make(root / "draft", backend()),
    "bare": make(root / "bare", backend(), weights=False),
  }


# What is counted


def test_the_parts_of_a_known_model_are_its_sizes():
  found = estimate()
  assert found.target_weights == 4 * LARGE.parameter_count
  positions = math.ceil((1024 + 128) / 128) * 128
  lengths = 4 * 4
  assert found.target_cache - lengths == 2 * 4 * 32 * 4 * 8 * positions * 128
  assert found.draft_weights == 0
  assert found.total == found.held + found.verify + found.prefill + (
    memory.RUNTIME_BYTES
  )


def test_rule_29_draft_memory_and_logits_of_c_plus_1_are_counted():
  plain, ngram = estimate(), estimate(Ngram(lookahead=7))
  # p, q and the logits with and without penalties, of each place.
  wide = 4 * 4 * 8 * 128_000
  assert plain.verify >= 2 * wide // 8
  assert ngram.verify >= 3 * wide
  assert ngram.draft_weights == 0
  draft = DraftModel(model=SMALL, lookahead=7, vocab_size=128_000)
  drafted = estimate(draft, SMALL.shapes)
  assert drafted.draft_weights == 4 * SMALL.parameter_count
  cache = jax.eval_shape(functools.partial(SMALL.init_cache, 4, 1024 + 128))
  stacks = sum(math.prod(leaf.shape) * 4 for leaf in (cache.k, cache.v))
  assert drafted.draft_state >= stacks
  assert drafted.verify == ngram.verify
  assert drafted.prefill > ngram.prefill
  assert drafted.total - ngram.total > drafted.draft_weights + stacks


def test_rule_29_siblings_widen_the_pass_and_their_keys_have_room():
  sizes = dict(model=SMALL, vocab_size=128_000)
  alone, wide, beside = (
    estimate(DraftModel(lookahead=c, siblings=m, **sizes), SMALL.shapes)
    for c, m in ((7, 0), (11, 0), (7, 4))
  )
  one = 4 * 4 * 128_000  # a place's logits of all rows, in float32
  assert beside.verify - alone.verify >= 3 * 4 * one
  # Each of the same places as many drafts would take, but for their q.
  assert 0 < wide.verify - beside.verify <= 2 * 4 * one
  chunk = dict(lookahead=7, **sizes)
  many = estimate(DraftModel(siblings=200, **chunk), SMALL.shapes)
  assert many.target_cache > alone.target_cache == beside.target_cache


def test_rule_29_heads_their_caches_and_their_own_logits_are_counted():
  """Of what borrows the target's ends, only what is its own."""
  reduced = 16_000
  sizes = dict(fuses=True, draft_vocab=reduced)
  head = eagle.build(eagle.small(LARGE.config, **sizes), LARGE)
  found = estimate(Eagle(model=head, lookahead=7), head.shapes)
  own = sum(math.prod(spec.shape) for spec in head.shapes)
  assert found.draft_weights == 4 * own > 4 * reduced * 4096
  cache = jax.eval_shape(functools.partial(head.init_cache, 4, 1024 + 128))
  stacks = sum(math.prod(leaf.shape) * 4 for leaf in (cache.k, cache.v))
  assert found.draft_state >= stacks + 4 * 4 * reduced
  # q on the ids that are drafted, before it is spread over all.
  ngram = estimate(Ngram(lookahead=7))
  assert found.verify == ngram.verify + 4 * 4 * 7 * reduced
  modules = mtp.build(mtp.small(LARGE.config, depths=2), LARGE)
  twice = estimate(Mtp(model=modules, lookahead=7), modules.shapes)
  assert twice.draft_state >= 2 * stacks
  # Some of the target's own layers have no weights beside.
  skip = dict(model=LARGE, lookahead=7, vocab_size=128_000)
  prefix = estimate(LayerSkip(layers=(0, 1), **skip))
  assert prefix.draft_weights == prefix.draft_state == 0
  subset = estimate(LayerSkip(layers=(0, 2), **skip))
  assert subset.draft_weights == 0 and subset.draft_state >= 2 * stacks


def test_a_bfloat16_model_takes_half():
  half = decoder.build(LARGE.config, dtype="bfloat16", scan_layers=True)
  sizes = dict(slots=4, capacity=1024, prefill_widths=(128,))
  whole = memory.estimate(LARGE, NoProposer(), **sizes)
  found = memory.estimate(half, NoProposer(), **sizes)
  assert found.target_weights * 2 == whole.target_weights
  assert (found.target_cache - 16) * 2 == whole.target_cache - 16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
  "options",
  [
    dict(),
    dict(proposer="ngram", lookahead=6, slots=3),
    dict(proposer="draft_model", lookahead=3, slots=2),
    dict(proposer="ngram", whole_batch_prefill=True, prefill_widths=(16,)),
  ],
)
def test_the_estimate_is_what_an_engine_then_holds(folders, options, dtype):
  gc.collect()
  before = {id(array) for array in jax.live_arrays()}
  if options.get("proposer") == "draft_model":
    options = options | dict(draft=specjax.load(folders["draft"], dtype=dtype))
  engine = specjax.Engine(
    specjax.load(folders["target"], dtype=dtype), **options
  )
  held = sum(
    array.nbytes for array in jax.live_arrays() if id(array) not in before
  )
  assert engine.memory.held == held
  assert 0.8 * held <= engine.memory.held <= 1.3 * held
  found = engine.memory
  assert found.total == found.held + found.verify + found.prefill + (
    memory.RUNTIME_BYTES if memory.on_host() else 0
  )


def test_a_target_that_drafts_for_itself_is_counted_once(folders):
  target = specjax.load(folders["target"])
  engine = specjax.Engine(target, proposer="draft_model", draft=target)
  assert engine.memory.draft_weights == 0
  assert engine.memory.draft_state > 0


# Who is refused


def test_rule_29_what_cannot_fit_is_refused_before_weights_are_read(folders):
  """The folder has none to read; the estimate alone refuses."""
  bare = specjax.load(folders["bare"])
  other = specjax.load(folders["bare"])
  with pytest.raises(ValueError, match="^memory: .* needed") as caught:
    specjax.Engine(
      bare, proposer="draft_model", draft=other, lookahead=3, max_memory="1MB"
    )
  message = str(caught.value)
  for part in (
    "target weights",
    "draft weights",
    "target cache",
    "draft state",
    "step state",
    "verify",
    "prefill",
    "1 MB allowed by max_memory",
  ):
    assert part in message
  assert "\n" not in message
  assert "params" not in vars(bare) and "params" not in vars(other)
  # With room enough it does go on to the weights.
  with pytest.raises(FileNotFoundError):
    specjax.Engine(bare, proposer="draft_model", draft=other, max_memory="8GB")


def refused(limit, **asked):
  asked = dict(slots=8, capacity=4096, dtype="float32", lookahead=4) | asked

  def need(*, slots, capacity, dtype, lookahead):
    model = decoder.build(LARGE.config, dtype=dtype, scan_layers=True)
    return memory.estimate(
      model,
      Ngram(lookahead=lookahead),
      slots=slots,
      capacity=capacity,
      prefill_widths=(128,),
    )

  limit = memory.Limit(size=limit, source="available")
  with pytest.raises(ValueError, match="^memory: ") as caught:
    memory.require(need, limit, **asked)
  fits = lambda **other: need(**asked | other).total <= limit.size
  return str(caught.value), fits


def named(message, name):
  return int(message.partition(f"with {name} ")[2].split(",")[0].split()[0])


def test_what_would_fit_is_computed():
  message, fits = refused(40 * GB)
  capacity, slots = named(message, "capacity"), named(message, "slots")
  assert fits(capacity=capacity) and not fits(capacity=capacity + 1)
  assert fits(slots=slots) and not fits(slots=slots + 1)
  assert message.endswith("or with dtype bfloat16")
  assert "lookahead" not in message.partition("it fits")[2]
  assert "40.0 GB available" in message


def test_a_lookahead_is_lowered_where_that_helps():
  message, fits = refused(40 * GB, capacity=128, lookahead=2000)
  lookahead = named(message, "lookahead")
  assert fits(lookahead=lookahead) and not fits(lookahead=lookahead + 1)


def test_what_only_fits_all_together_is_said_so():
  message, _ = refused(18 * GB)
  assert message.endswith(
    "only all of these together fit: slots 1, capacity 2, dtype bfloat16, "
    "lookahead 1"
  )


def test_a_model_that_never_fits_is_said_so():
  message, _ = refused(2 * GB)
  assert message.endswith("GB: take a smaller model")


def test_a_limit_that_nobody_knows_refuses_nothing():
  limit = memory.Limit(size=None, source="available")
  need = lambda **sizes: estimate()
  found = memory.require(need, limit, slots=1, capacity=2, dtype="float32")
  assert memory.line(found, limit).endswith(f" = {found.total / GB:.1f} GB")


def test_the_line_says_what_is_taken_and_what_there_is():
  limit = memory.Limit(size=64 * GB, source="available")
  line = memory.line(estimate(draft=SMALL.shapes), limit)
  assert line.startswith("memory: ")
  for part in ("weights + ", "caches + ", "steps + ", "runtime = "):
    assert part in line
  assert line.endswith(" of 64.0 GB available")


def test_an_upper_bound_wins_over_what_there_is():
  assert memory.limit_of("8GB").size == 8 * GB
  assert memory.limit_of(2**20, held=5).size == 2**20
  with pytest.raises(ValueError, match="max_memory is 'much'"):
    memory.limit_of("much")


def test_what_is_loaded_already_needs_no_more_room(folders):
  free, held = memory.limit_of(None), memory.limit_of(None, held=GB)
  assert abs(held.size - free.size - GB) < GB / 2
  target = specjax.load(folders["target"])
  assert target.loaded_bytes == 0
  nbytes = sum(param.nbytes for param in target.params)
  assert target.loaded_bytes == nbytes


# What there is


def system(root, files):
  for name, content in files.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(content)
  return root


MEMINFO = {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:  1000 kB\n"}
V2 = "sys/fs/cgroup/a/b"
V1 = "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
  "files, size",
  [
    ({}, None),
    (MEMINFO, 1_024_000),
    (MEMINFO | {"proc/self/cgroup": "0::/a/b\n"}, 1_024_000),
    (
      MEMINFO
      | {"proc/self/cgroup": "0::/a/b\n", f"{V2}/memory.max": "max\n"}
      | {"sys/fs/cgroup/a/memory.max": "9000\n"}
      | {"sys/fs/cgroup/a/memory.current": "5000\n"}
      | {"sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 1500\n"},
      5500,
    ),
    (
      MEMINFO
      | {"proc/self/cgroup": "0::/not/seen/here\n"}
      | {"sys/fs/cgroup/memory.max": "7000\n"},
      7000,
    ),
    (
      MEMINFO
      | {"proc/self/cgroup": "3:cpu:/x\n4:memory:/x\n0::/\n"}
      | {f"{V1}/x/memory.limit_in_bytes": "8000\n"}
      | {f"{V1}/x/memory.usage_in_bytes": "2000\n"}
      | {f"{V1}/memory.limit_in_bytes": "9223372036854771712\n"},
      6000,
    ),
    (
      MEMINFO
      | {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "10\n"}
      | {"sys/fs/cgroup/a/memory.current": "20\n"},
      0,
    ),
  ],
)
def test_the_host_has_what_the_kernel_says_or_less_in_a_container(
  tmp_path, files, size
):
  assert memory.host_available(str(system(tmp_path, files))) == size


def test_this_host_has_something():
  assert memory.host_available() > 10**8


def test_headroom_is_the_widest_pass():
  assert programs.positions(None, 100, NoProposer(), (32, 128)) == 228
  assert programs.positions(None, 100, Ngram(lookahead=200), (32, 128)) == 301
