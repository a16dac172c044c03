import pytest

from specjax.jobs import shards


def test_shards_share_out_every_row_once():
  rows = list(range(10))
  parts = [shards.part(rows, i, 3) for i in range(3)]
  assert parts[0] == [0, 3, 6, 9]
  assert sorted(sum(parts, [])) == rows


def test_a_job_alone_has_all_rows():
  assert shards.part([1, 2], None, None) == [1, 2]


def test_a_shard_without_a_row_is_refused():
  with pytest.raises(ValueError, match="--shard_index=2 of --num_shards=3"):
    shards.part([1, 2], 2, 3)
