import pytest

from specjax.engine import sizes


@pytest.mark.parametrize(
  "text, count",
  [
    ("8GB", 8 * 10**9),
    ("8gb", 8 * 10**9),
    ("8 GB", 8 * 10**9),
    ("8GiB", 8 * 2**30),
    ("8G", 8 * 2**30),
    ("1.5GB", 1_500_000_000),
    ("500MB", 500_000_000),
    ("64kB", 64_000),
    ("1TiB", 2**40),
    ("4096", 4096),
    ("4096B", 4096),
    (4096, 4096),
  ],
)
def test_sizes_are_read(text, count):
  assert sizes.parse(text) == count


@pytest.mark.parametrize(
  "text",
  ["", "GB", "8 apples", "-8GB", "0", "0.1", 0, -1, True, None, 1.5, "1e9"]
  + ["9" * 40 + "GB", "8GB8GB", "nan", "inf", "٣GB"],
)
def test_what_is_no_size_is_refused_by_name(text):
  with pytest.raises(ValueError, match=r"^max_memory is .*8GB.*bytes$"):
    sizes.parse(text)


@pytest.mark.parametrize(
  "count, text",
  [
    (0, "0 kB"),
    (52_300, "52 kB"),
    (1_200_000, "1 MB"),
    (538_000_000, "0.54 GB"),
    (21_800_000_000, "21.8 GB"),
    (640 * 10**9, "640 GB"),
  ],
)
def test_sizes_are_shown(count, text):
  assert sizes.shown(count) == text
