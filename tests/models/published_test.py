"""Published config.json files are taken, with the published model's size.

`published/` holds them as copies vendored in public repositories have them:
Llama 3.1, Mistral v0.3 and Qwen3-32B tt-metal's model_params, gemma-3-1b-it
gemma-jax's models/README.md, the others quoted in tests and notes of public
code. Of gemma-2-9b's the last keys were cut off and left out here, and of
gemma-3-27b's what it says of images.

Counts are the totals of the published safetensors' headers, as the model
pages state them, of one copy where a head is tied: Qwen3-0.6B's file repeats
its embedding, so that its page says 751,632,384. Gemma-3-4b-it's page says
4,300,079,472, of which 419,816,304 are the image part's; the 27b's part is
wider by its own 5376 over the 4b's 2560, times 1152. transformers 5.24, which
builds each config on its "meta" device, counts the same.
"""

import json
import pathlib

import pytest

from specjax.models import config as config_lib
from specjax.models import decoder

PUBLISHED = pathlib.Path(__file__).parent / "published"
COUNTS = {
  "Llama-2-7b-hf": 6_738_415_616,
  "Llama-2-70b-hf": 68_976_648_192,
  "Llama-3.2-1B-Instruct": 1_235_814_400,
  "Llama-3.1-8B-Instruct": 8_030_261_248,
  "Llama-3.1-70B-Instruct": 70_553_706_496,
  "Mistral-7B-v0.1": 7_241_732_096,
  "Mistral-7B-Instruct-v0.3": 7_248_023_552,
  "Qwen2-7B-Instruct": 7_615_616_512,
  "Qwen2.5-0.5B": 494_032_768,
  "Qwen3-0.6B": 596_049_920,
  "Qwen3-32B": 32_762_123_264,
  "gemma-2-2b-it": 2_614_341_888,
  "gemma-2-9b": 9_241_705_984,
  "gemma-3-1b-it": 999_885_952,
  "gemma-3-4b-it": 4_300_079_472 - 419_816_304,
  "gemma-3-27b-it": 27_432_406_640 - (419_816_304 + 1152 * (5376 - 2560)),
  "gpt2": 124_439_808,
}


def published(name):
  raw = json.loads((PUBLISHED / f"{name}.json").read_text())
  return config_lib.from_hugging_face(raw)


def test_every_architecture_and_every_file_is_tried():
  files = {path.stem for path in PUBLISHED.glob("*.json")}
  assert files == set(COUNTS)
  tried = {published(name).architecture for name in COUNTS}
  # Never published (see presets_test.py), and Qwen 2's (see heads/mtp_test.py).
  others = {"ChinchillaForCausalLM", "MiMoForCausalLM"}
  # Those with an encoder: t5_family_test.py, and presets_test.py their counts.
  others |= {"T5ForConditionalGeneration", "MT5ForConditionalGeneration"}
  assert tried == set(config_lib.ARCHITECTURES) - others


@pytest.mark.parametrize("name", COUNTS)
def test_published_models_have_their_published_parameter_count(name):
  config = published(name)
  for scan_layers in (False, True):
    model = decoder.build(config, scan_layers=scan_layers)
    assert model.parameter_count == COUNTS[name]


def test_windows_and_rotations_are_the_published_ones():
  windows = {name: published(name).windows for name in COUNTS}
  assert windows["Mistral-7B-v0.1"] == (4096,) * 32
  assert windows["gemma-2-2b-it"] == (4096, 0) * 13
  one = (512,) * 5 + (0,)
  assert windows["gemma-3-1b-it"] == one * 4 + (512,) * 2
  four = (1024,) * 5 + (0,)
  assert windows["gemma-3-4b-it"] == four * 5 + (1024,) * 4
  for name in (
    "Mistral-7B-Instruct-v0.3",
    "Qwen2.5-0.5B",
    "Qwen3-0.6B",
    "gpt2",
  ):
    assert windows[name] == ()
  four = published("gemma-3-4b-it")
  assert (four.rope_theta, four.local_rope_theta) == (1e6, 1e4)
  assert four.rope_scaling == config_lib.LinearScaling(factor=8.0)
  assert published("gemma-3-1b-it").rope_scaling is None
  assert published("gpt2").rope_theta is None


def test_scales_and_caps_are_the_published_ones():
  two = published("gemma-2-2b-it")
  assert (two.attention_softcap, two.logit_softcap) == (50.0, 30.0)
  assert two.attention_scale == 1 / 16
  assert two.embed_scale == 48.0
  three = published("gemma-3-1b-it")
  assert (three.attention_softcap, three.logit_softcap) == (None, None)
  assert published("gpt2").d_ff == 3072
