"""What is refused before hours are spent on what it would show."""

import sys

import pytest

from specjax import pictures


@pytest.mark.parametrize("name", ["p.doc", "lab.txt", "png"])
def test_a_picture_of_no_format_is_refused_by_name(name):
  pytest.importorskip("matplotlib")
  with pytest.raises(ValueError, match=f"--plot={name} ends in no format"):
    pictures.check(name)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_formats_of_matplotlib_pass(tmp_path, ending):
  pytest.importorskip("matplotlib")
  pictures.check(tmp_path / f"p.{ending}")


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  assert not pictures.is_possible()
  with pytest.raises(
    ImportError, match=r"--plot=p.png needs .*specjax\[plot\]"
  ):
    pictures.check("p.png")
