"""Standard streams that are not there."""

import pytest

from specjax.cli import streams


def test_an_answer_that_nobody_can_read_is_an_error(monkeypatch):
  monkeypatch.setattr("sys.stdout", None)
  with pytest.raises(OSError, match="standard output: it is closed"):
    streams.say("the answer")
