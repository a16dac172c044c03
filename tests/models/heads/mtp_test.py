"""Modules of multi-token prediction: what they compute, and where they lie."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax.checkpoints import heads, hf
from specjax.checkpoints.tensor_files import CheckpointError
from specjax.models import decoder
from specjax.models.heads import mtp
from tests.models import golden

FOLDER = golden.GOLDENS / "qwen2"
CONFIG = json.loads((FOLDER / "config.json").read_text())
WIDTH, MLP = CONFIG["hidden_size"], CONFIG["intermediate_size"]
HEADS, KV = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
SIZE = WIDTH // HEADS
DEPTHS = 2
LAYOUT = {
  "token_layernorm.weight": (WIDTH,),
  "hidden_layernorm.weight": (WIDTH,),
  "input_proj.weight": (WIDTH, 2 * WIDTH),
  "final_layernorm.weight": (WIDTH,),
  "input_layernorm.weight": (WIDTH,),
  "self_attn.q_proj.weight": (HEADS * SIZE, WIDTH),
  "self_attn.q_proj.bias": (HEADS * SIZE,),
  "self_attn.k_proj.weight": (KV * SIZE, WIDTH),
  "self_attn.k_proj.bias": (KV * SIZE,),
  "self_attn.v_proj.weight": (KV * SIZE, WIDTH),
  "self_attn.v_proj.bias": (KV * SIZE,),
  "self_attn.o_proj.weight": (WIDTH, HEADS * SIZE),
  "post_attention_layernorm.weight": (WIDTH,),
  "mlp.gate_proj.weight": (MLP, WIDTH),
  "mlp.up_proj.weight": (MLP, WIDTH),
  "mlp.down_proj.weight": (WIDTH, MLP),
}


def modules():
  """Tensors as MiMo-7B's checkpoint names them."""
  draws = np.random.default_rng(0)
  return {
    f"model.mtp_layers.{k}.{name}": draws.normal(0, 0.3, shape).astype("f4")
    for k in range(DEPTHS)
    for name, shape in LAYOUT.items()
  }


@pytest.fixture(scope="module")
def mimo(tmp_path_factory):
  """A whole checkpoint with its modules: (folder, tensors)."""
  folder = tmp_path_factory.mktemp("mimo")
  for path in FOLDER.glob("*"):
    if path.suffix != ".npz":
      shutil.copy(path, folder)
  tensors = load_file(FOLDER / "model.safetensors") | modules()
  save_file(tensors, folder / "model.safetensors")
  config = CONFIG | {
    "architectures": ["MiMoForCausalLM"],
    "model_type": "mimo",
    "attention_bias": True,
    "num_nextn_predict_layers": DEPTHS,
  }
  (folder / "config.json").write_text(json.dumps(config))
  return folder, tensors


@pytest.fixture(scope="module")
def target(mimo):
  model = decoder.build(hf.read_decoder_config(mimo[0]))
  return model, hf.load_params(mimo[0], model)


def rms(x, weight):
  mean = np.mean(x * x, axis=-1, keepdims=True)
  return x / np.sqrt(mean + CONFIG["rms_norm_eps"]) * weight


def turned(x):
  """Rotary positions of x [T, N, H]."""
  theta = CONFIG.get("rope_theta") or CONFIG["rope_parameters"]["rope_theta"]
  turn = theta ** -(np.arange(0, SIZE, 2) / SIZE)
  angles = np.arange(len(x))[:, None, None] * turn
  a, b = np.split(x, 2, axis=-1)
  cos, sin = np.cos(angles), np.sin(angles)
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def reference(w, hidden, embedded):
  """A module on one row: its states, and what the head reads."""
  x = np.concatenate(
    [
      rms(hidden, w["hidden_layernorm.weight"]),
      rms(embedded, w["token_layernorm.weight"]),
    ],
    axis=-1,
  )
  x = x @ w["input_proj.weight"].T
  normed, size = rms(x, w["input_layernorm.weight"]), len(x)
  q, k, v = (
    (
      normed @ w[f"self_attn.{n}_proj.weight"].T + w[f"self_attn.{n}_proj.bias"]
    ).reshape(size, -1, SIZE)
    for n in "qkv"
  )
  q, k = turned(q), np.repeat(turned(k), HEADS // KV, axis=1)
  v = np.repeat(v, HEADS // KV, axis=1)
  scores = np.einsum("tnh,snh->nts", q, k) / np.sqrt(SIZE)
  scores[:, ~np.tri(size, dtype=bool)] = -np.inf
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  mixed = np.einsum("nts,snh->tnh", weights, v).reshape(size, -1)
  x = x + mixed @ w["self_attn.o_proj.weight"].T
  normed = rms(x, w["post_attention_layernorm.weight"])
  gate = normed @ w["mlp.gate_proj.weight"].T
  up = normed @ w["mlp.up_proj.weight"].T
  x = x + (gate / (1 + np.exp(-gate)) * up) @ w["mlp.down_proj.weight"].T
  return x, rms(x, w["final_layernorm.weight"])


def test_a_checkpoint_with_modules_is_its_base_and_the_modules(mimo, target):
  """The base is Qwen 2's; each module is MiMo's, against numpy."""
  folder, tensors = mimo
  model, params = target
  plain = golden.load("qwen2")
  tokens = plain.tokens[:, :20]
  run = jax.jit(model, static_argnums=(2, 3))
  out = run(params, tokens, None, (model.config.layers,))
  same = jax.jit(plain.model, static_argnums=2)(plain.params, tokens, None)
  np.testing.assert_array_equal(out.logits, same.logits)

  opened = heads.open_head(folder, model, kind="mtp")
  own = opened.params(params)
  made = opened.model
  embed = tensors["model.embed_tokens.weight"]
  table = tensors.get("lm_head.weight", embed)

  @jax.jit
  def chain(own, params):
    hidden, found = made.fuse(own, params, out.features), []
    for depth in range(DEPTHS):
      hidden, _ = made.read(
        *(own, params, tokens[:, depth + 1 :], hidden[:, :-1]), depth=depth
      )
      found.append((hidden, made.logits(own, params, hidden, depth=depth)))
    return found

  for row in range(len(tokens)):
    hidden = np.asarray(out.features[row, :, 0], np.float64)
    for depth, (states, logits) in enumerate(chain(own, params)):
      start = f"model.mtp_layers.{depth}."
      weights = {
        name.removeprefix(start): value
        for name, value in tensors.items()
        if name.startswith(start)
      }
      hidden, read = reference(
        weights, hidden[:-1], embed[tokens[row, depth + 1 :]]
      )
      golden.close(states[row], hidden)
      golden.close(logits[row], read @ table.T)


def test_modules_of_their_own_folder_are_those_that_were_saved(
  tmp_path, target
):
  """In MiMo's layout, for any target; a reduced vocabulary with them."""
  model, params = target
  kept = np.arange(0, model.vocab_size, 3)
  config = mtp.small(model.config, depths=2, draft_vocab=len(kept))
  made = mtp.build(config, model)
  own = made.head.init(1)
  how = dict(target=model.config, tokenizer="abc")
  heads.save_head(tmp_path, "mtp", made, own, kept=kept, **how)
  names = load_file(tmp_path / "model.safetensors")
  assert "model.mtp_layers.1.input_proj.weight" in names and "d2t" in names
  opened = heads.open_head(tmp_path, model, kind="mtp", tokenizer="abc")
  assert opened.model.config == made.config
  wanted = made.complete(own, params, jnp.asarray(kept))
  for got, want, spec in zip(
    opened.params(params), wanted, made.shapes, strict=True
  ):
    assert got.shape == spec.shape
    np.testing.assert_array_equal(got, want)
  for changes in (dict(tokenizer="xyz"), dict(kind="eagle")):
    with pytest.raises(ValueError, match=f"{tmp_path}: config.json"):
      heads.open_head(
        tmp_path, model, **{"kind": "mtp", "tokenizer": "abc"} | changes
      )


@pytest.mark.parametrize(
  "change, words",
  [
    (lambda t: t.pop("model.mtp_layers.1.input_proj.weight"), "1 missing"),
    (
      lambda t: t.update({"model.mtp_layers.0.odd": np.zeros(3, "f4")}),
      "1 unexpected: model.mtp_layers.0.odd",
    ),
  ],
)
def test_tensors_are_exactly_the_modules(mimo, target, tmp_path, change, words):
  folder, tensors = mimo
  tensors = dict(tensors)
  change(tensors)
  shutil.copy(folder / "config.json", tmp_path)
  save_file(tensors, tmp_path / "model.safetensors")
  with pytest.raises(CheckpointError, match=words):
    heads.open_head(tmp_path, target[0], kind="mtp")


@pytest.mark.parametrize("said", [{}, {"num_nextn_predict_layers": 0}])
def test_a_model_without_modules_says_so(mimo, target, tmp_path, said):
  folder, _ = mimo
  config = json.loads((folder / "config.json").read_text())
  del config["num_nextn_predict_layers"]
  shutil.copy(folder / "model.safetensors", tmp_path)
  (tmp_path / "config.json").write_text(json.dumps(config | said))
  with pytest.raises(ValueError, match="carries no modules of multi-token"):
    heads.open_head(tmp_path, target[0], kind="mtp")
