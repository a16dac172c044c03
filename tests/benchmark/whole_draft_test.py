"""A draft that borrows, written as a whole model, says what it said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import heads, pretrained
from specjax.benchmark import whole_draft
from tests.training import made

KEPT = np.arange(0, 120, 2, dtype=np.int32)


@pytest.mark.parametrize("ends", ["target", "head"])
@pytest.mark.parametrize("kept", [None, KEPT], ids=["all", "reduced"])
def test_the_whole_model_says_what_the_draft_says(tmp_path, ends, kept):
  objective = made.draft({"kl": 1.0}, kept=kept, layers=(0,), ends=ends)
  params = {n: jnp.asarray(x) for n, x in objective.init(0).items()}
  objective.save(params, tmp_path / "draft")
  target = made.target()
  head = heads.load_head(tmp_path / "draft", target, kind="draft_model")
  folder = whole_draft.cached(head, dtype="float32", cache=tmp_path / "cache")
  whole = pretrained.load(folder)
  tokens = jnp.asarray([[1, 2, 3, 4, 5, 6, 7, 8]], jnp.int32)
  run = jax.jit(lambda own, x: whole.model(own, x, None).logits)
  logits = run(whole.params, tokens)
  theirs = jax.jit(lambda own, x: head.model(own, target.params, x, None))
  drafted = theirs(head.params, tokens).logits
  ids = np.arange(made.V) if kept is None else kept
  np.testing.assert_allclose(logits[..., ids], drafted, atol=1e-5)
  guess = np.asarray(ids)[np.argmax(drafted, axis=-1)]
  np.testing.assert_array_equal(np.argmax(logits, axis=-1), guess)
  # Written once, and never half.
  stamp = (folder / "model.safetensors").stat().st_mtime_ns
  again = whole_draft.cached(head, dtype="float32", cache=tmp_path / "cache")
  assert again == folder
  assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
  assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]
