"""What the fuzz tests share: how a command may answer whatever it is given.

Examples are derived from the tests' own code (derandomize), so a run is the
same every time; to look further, raise `max_examples` by hand.
"""

import contextlib
import io
import pathlib

import hypothesis
from hypothesis import strategies as st


def settings(max_examples: int):
  return hypothesis.settings(
    max_examples=max_examples,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
  )


def answer(
  main, program: str, *flags: str, rows: bool = False
) -> tuple[int, str]:
  """Runs a command in this process: (exit code, its line of error).

  An error is one line, the last one, that begins with the program's name. A
  traceback would be an exception here, and fail the test. A job of `rows` that
  has answered every one of them with an error says that in its summary.
  """
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    code = main([program, *flags])
  lines = err.getvalue().splitlines()
  errors = [line for line in lines if line.startswith(f"{program}: error: ")]
  assert code in (0, 1, 2), (code, lines)
  assert "Traceback" not in err.getvalue()
  if code == 0:
    assert not errors, errors
    return code, ""
  if rows and not errors:
    assert code == 1 and any("of them errors" in line for line in lines), lines
    return code, ""
  assert len(errors) == 1 and errors[0] == lines[-1], lines
  assert len(errors[0]) < 2000, errors[0]
  return code, errors[0]


def content(folder: pathlib.Path) -> dict[str, bytes]:
  """Every file below a folder."""
  return {
    path.relative_to(folder).as_posix(): path.read_bytes()
    for path in folder.rglob("*")
    if path.is_file()
  }


# Numbers at which lengths, offsets and sizes go wrong.
EDGES = st.one_of(
  st.integers(-2, 300),
  st.sampled_from(
    [2**k + d for k in (8, 16, 31, 32, 62, 63, 64) for d in (-1, 0)]
  ),
  st.integers(-(2**70), 2**70),
)
JSON = st.recursive(
  st.one_of(
    st.none(),
    st.booleans(),
    EDGES,
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "0", "silu", "float32", "None", "\ud800", "a\nb"]),
  ),
  lambda inner: st.one_of(
    st.lists(inner, max_size=3),
    st.dictionaries(st.text(max_size=5), inner, max_size=3),
  ),
  max_leaves=6,
)


@st.composite
def damaged(draw, data: bytes, header: int) -> bytes:
  """A file's bytes, spoiled: most of the time within its header.

  Args:
    draw: hypothesis'.
    data: the whole file.
    header: bytes of its header.
  """
  kind = draw(st.sampled_from(["cut", "flip", "number", "insert", "delete"]))
  places = st.one_of(
    st.integers(0, header - 1),
    st.integers(0, min(64, header - 1)),
    st.integers(0, len(data) - 1),
  )
  at = draw(places)
  if kind == "cut":
    return data[:at]
  if kind == "flip":
    changed = bytearray(data)
    for place in draw(st.lists(places, min_size=1, max_size=4)):
      changed[place] = draw(st.integers(0, 255))
    return bytes(changed)
  if kind == "number":
    width = draw(st.sampled_from([4, 8]))
    number = draw(EDGES) % 256**width
    return data[:at] + number.to_bytes(width, "little") + data[at + width :]
  if kind == "insert":
    return data[:at] + draw(st.binary(min_size=1, max_size=9)) + data[at:]
  return data[:at] + data[at + draw(st.integers(1, 40)) :]
