"""Checks of sharded loads from safetensors; sharded_test runs them."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import numpy as safetensors

import specjax
from specjax.checkpoints import hf, ranges
from tests.checkpoints.eight_devices import (
  GPT2,
  LLAMA,
  PADDED,
  SPLITS,
  STACKS,
  build,
  expected,
  made,
  place,
  process_of,
  refused,
  same,
  same_files,
  share,
)
from tests.text import tokenizers_made


def check_every_split_holds_the_same_numbers_and_reads_each_once(root):
  for name, config in (("llama", LLAMA), ("gpt2", GPT2)):
    folder = made(root / name, config)
    for scan in (False, True):
      wanted = expected(folder, config, scan=scan)
      for strategy, mesh in [*SPLITS, *[(STACKS, "data:2,model:4")] * scan]:
        model = build(config, place(strategy, mesh), scan=scan)
        traffic = ranges.Traffic()
        params = hf.load_params(folder, model, traffic=traffic)
        same(params, wanted, model)
        assert traffic.nbytes == sum(value.nbytes for value in wanted), strategy


def check_numbers_are_cast_shard_by_shard(root):
  folder = made(root / "llama", LLAMA)
  wanted = expected(folder, LLAMA, dtype=jnp.bfloat16)
  for strategy, mesh in SPLITS[:3]:
    model = build(LLAMA, place(strategy, mesh), dtype=jnp.bfloat16)
    same(hf.load_params(folder, model), wanted, model)


def check_a_process_reads_the_bytes_of_its_shards_and_no_others(root):
  folder = made(root / "llama", LLAMA)
  for scan in (False, True):
    wanted = expected(folder, LLAMA, scan=scan)
    total = sum(value.nbytes for value in wanted)
    for strategy, mesh in SPLITS:
      model = build(LLAMA, place(strategy, mesh), scan=scan)
      for devices in (jax.devices()[:4], jax.devices()[4:]):
        traffic = ranges.Traffic()
        with process_of(devices) as parts:
          hf.load_params(folder, model, traffic=traffic)
        assert traffic.nbytes == share(model, devices), (strategy, mesh)
        if (strategy, mesh) == ("tensor", "model:8"):
          assert traffic.nbytes < 0.53 * total  # norms and some biases
        for arrays, value, sharding in zip(
          parts, wanted, model.shardings, strict=True
        ):
          index = sharding.devices_indices_map(value.shape)
          assert {a.device for a in arrays} == set(devices)
          for array in arrays:
            np.testing.assert_array_equal(array, value[index[array.device]])


def check_a_tied_head_in_the_file_is_compared_in_shares(root):
  config = LLAMA | {"tie_word_embeddings": True}
  folder = made(root / "tied", config)
  path = folder / "model.safetensors"
  values = safetensors.load_file(path)
  embed = values["model.embed_tokens.weight"]
  safetensors.save_file(values | {"lm_head.weight": embed}, path)
  model = build(config, place("tensor", "model:8"))
  for process in (0, 1):
    traffic = ranges.Traffic()
    with (
      mock.patch.object(jax, "process_index", lambda process=process: process),
      mock.patch.object(jax, "process_count", lambda: 2),
      process_of(jax.devices()[:4]),
    ):
      hf.load_params(folder, model, traffic=traffic)
    own = share(model, jax.devices()[:4])
    assert traffic.nbytes == own + embed.nbytes  # half of each of two


def check_heads_are_padded_while_they_are_read_and_cut_when_saved(root):
  for config, name, changes, ways in PADDED:
    config = config | changes
    folder = made(root / name, config)
    for scan in (False, True):
      wanted = expected(folder, config, scan=scan, ways=ways)
      for strategy, mesh in (("tensor", f"model:{ways}"), ("fsdp", "data:2")):
        model = build(config, place(strategy, mesh), scan=scan, ways=ways)
        assert model.config.heads_in_file is not None
        params = hf.load_params(folder, model)
        same(params, wanted, model)
      back = root / f"{name}_{scan}_back"
      hf.save_params(back, model, params, config=config)
      same_files(back, folder)


def check_sharded_arrays_are_gathered_into_the_same_file(root):
  folder = made(root / "gpt2", GPT2)
  for scan in (False, True):
    model = build(GPT2, place("fsdp", "data:2,model:4"), scan=scan)
    params = hf.load_params(folder, model)
    back = root / f"gathered_{scan}"
    hf.save_params(back, model, params, config=GPT2)
    same_files(back, folder)


def check_a_truncated_file_is_named_under_shardings_too(root):
  folder = made(root / "truncated", LLAMA)
  path = folder / "model.safetensors"
  content = path.read_bytes()
  path.write_bytes(content[: len(content) // 2])
  model = build(LLAMA, place("tensor", "model:8"))
  refused(hf.load_params, folder, model, "truncated or damaged")


def check_a_loaded_model_is_split_as_its_strategy_says(root):
  folder = made(root / "whole", LLAMA | {"num_key_value_heads": 4})
  tokenizers_made.folder(folder, tokenizers_made.byte_level())
  config = hf.read_config(folder)
  first = specjax.load(
    folder, mesh="data:2,model:4", strategy="fsdp", scan_layers=True
  )
  same(first.params, expected(folder, config, scan=True), first.model)
  assert first.traffic.nbytes == sum(value.nbytes for value in first.params)
  first.save(root / "whole_orbax", format="orbax")
  second = specjax.load(root / "whole_orbax", mesh="model:8", pad_heads=True)
  same(second.params, expected(folder, config, ways=8), second.model)
  second.save(root / "whole_back")
  same_files(root / "whole_back", folder)
