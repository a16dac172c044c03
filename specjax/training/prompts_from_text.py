"""Prompts about this machine's own text: code to work on, texts to rewrite.

  python -m specjax.training.prompts_from_text --output=prompts.jsonl \\
    --code=1500 --rewrite=1500 --exclude=demo/held_out.jsonl

Code is Python's standard library: functions to explain, to document, to test,
to write from their docstring. Texts are paragraphs of its docstrings and of the
documentation in /usr/share/doc: to correct, to shorten, to put otherwise. The
same seed on the same Python and the same documentation gives the same prompts.
"""

import argparse
import ast
import gzip
import json
import pathlib
import random
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from specjax.jobs import prompts
from specjax.training import prompt_sources

DOCS = "/usr/share/doc"
_SKIPPED = {"test", "tests", "idlelib", "site-packages", "turtledemo"}
_READ = 400_000  # characters of one file
# Of prompts about one text so many are made at most.
_TRIES = 4


class Function(NamedTuple):
  """A function of somebody's source."""

  name: str
  source: str
  docstring: str

  @property
  def bare(self) -> str:
    """The source without its docstring."""
    quoted = r"\n[ \t]*[rR]?(\"\"\"|''')(.|\n)*?\1"
    return re.sub(quoted, "", self.source, count=1)

  @property
  def summary(self) -> str:
    """The docstring's first paragraph in one line."""
    return " ".join(self.docstring.split("\n\n")[0].split())


CODE = (
  "Explain what this code does:\n\n{source}",
  "Explain this function to a beginner, line by line:\n\n{bare}",
  "Add a docstring to this function:\n\n{bare}",
  "Add comments to this code:\n\n{bare}",
  "Rewrite this function with clearer variable names:\n\n{bare}",
  "Write this function again with type hints:\n\n{bare}",
  "Write a unit test for this function:\n\n{bare}",
  "Find possible bugs in this function and write it correctly:\n\n{bare}",
  "Rename the function `{name}` to `{name}_v2` in this code and write it"
  " again:\n\n{bare}",
  "Continue this function:\n\n{half}",
  "Write a Python function `{name}`: {summary}",
  "Write a Python function that does this: {summary}",
  "Write a function in JavaScript for this: {summary}",
  "How would you write a Python function for the following? {summary}",
)
REWRITE = (
  "Correct the spelling of this text:\n\n{wrong}",
  "Fix the typos in the following text and write it again:\n\n{wrong}",
  "Proofread this text and write the corrected version:\n\n{wrong}",
  "Rewrite this text in a more formal tone:\n\n{text}",
  "Rewrite this text so that it sounds friendlier:\n\n{text}",
  "Rewrite this text in simple English:\n\n{text}",
  "Rewrite the text below as an e-mail to a colleague:\n\n{text}",
  "Write this text again in the past tense:\n\n{text}",
  "Make this text shorter:\n\n{text}",
  "Summarize this text in one sentence:\n\n{text}",
  "Turn this text into a list of bullet points:\n\n{text}",
  "Paraphrase the following paragraph:\n\n{text}",
  "Explain this paragraph to a beginner:\n\n{text}",
  "Copy this text and put every sentence on a line of its own:\n\n{text}",
)


def functions(folder: str | pathlib.Path) -> tuple[list[Function], list[str]]:
  """Functions of the Python files below a folder, and their docstrings' texts.

  Args:
    folder: looked through, but for tests and installed packages.

  Returns:
    Functions of 60 to 600 characters, and paragraphs; both sorted, so that
    they do not depend on the order of files.
  """
  found, texts = set(), set()
  for path in pathlib.Path(folder).rglob("*.py"):
    if _SKIPPED & set(path.relative_to(folder).parts):
      continue
    try:
      source = path.read_text(encoding="utf-8")
      with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old escapes in strings
        tree, lines = ast.parse(source), source.splitlines()
    except (OSError, ValueError, SyntaxError):
      continue
    for node in ast.walk(tree):
      if not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
        continue
      docstring = ast.get_docstring(node) or ""
      texts.update(paragraphs(docstring))
      if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
        code = lines[node.lineno - 1 : node.end_lineno]
        code = _dedented(code, node.col_offset)
        if 60 < len(code) < 600:
          found.add(Function(node.name, code, docstring))
  return sorted(found), sorted(texts)


def documents(folder: str | pathlib.Path) -> list[str]:
  """Paragraphs of the README and other texts below a folder, sorted."""
  texts: set[str] = set()
  names = re.compile(r"(README|NEWS|FAQ|.*\.txt|.*\.md).*", re.I)
  for path in pathlib.Path(folder).rglob("*"):
    if not names.fullmatch(path.name) or not path.is_file():
      continue
    opened = gzip.open if path.suffix == ".gz" else open
    try:
      with opened(path, "rt", encoding="utf-8", errors="replace") as file:
        texts.update(paragraphs(file.read(_READ)))
    except (OSError, EOFError):
      continue
  return sorted(texts)


def paragraphs(text: str) -> Iterator[str]:
  """Those that are prose: whole sentences of 120 to 500 characters."""
  for part in re.split(r"\n\s*\n", text):
    flat = " ".join(part.split())
    if not 120 < len(flat) < 500 or not flat[0].isupper():
      continue
    prose = sum(c.isalpha() or c in " ,.'" for c in flat) / len(flat)
    if flat[-1] in ".!" and prose > 0.95:
      yield flat


def mistyped(text: str, rng: random.Random) -> str:
  """The text with a letter lost, swapped or doubled in every seventh word."""
  words = text.split(" ")
  for index, word in enumerate(words):
    if len(word) < 5 or rng.random() > 0.15:
      continue
    at, kind = rng.randrange(1, len(word) - 1), rng.randrange(3)
    middle = ("", word[at + 1] + word[at], word[at] * 2)[kind]
    words[index] = word[:at] + middle + word[at + 1 + (kind == 1) :]
  return " ".join(words)


def code_prompt(one: Function, rng: random.Random) -> str | None:
  """A prompt about a function; None where the drawn one would say nothing."""
  template = rng.choice(CODE)
  lines = one.bare.splitlines(keepends=True)
  if "{summary}" in template and not 30 < len(one.summary) < 200:
    return None
  if "{summary}" not in template and len(lines) < 3:
    return None
  return template.format(
    name=one.name,
    source=one.source,
    bare=one.bare,
    summary=one.summary,
    half="".join(lines[: (len(lines) + 1) // 2]).rstrip(),
  )


def rewrite_prompt(text: str, rng: random.Random) -> str:
  """A prompt about a paragraph."""
  return rng.choice(REWRITE).format(text=text, wrong=mistyped(text, rng))


def make(
  kind: str,
  about: Sequence,
  prompt: Callable[..., str | None],
  count: int,
  *,
  seed: int,
  held_out: Sequence[prompts.Row] = (),
) -> list[dict]:
  """Rows of a prompt file.

  Args:
    kind: begins their ids.
    about: what the prompts are about.
    prompt: makes one of a thing and a random.Random.
    count: how many, all different.
    seed: of order and choice.
    held_out: prompts that must not be among them.

  Raises:
    ValueError: there is too little to make so many.
  """
  rng = random.Random(f"{seed} {kind}")
  order = list(about)
  rng.shuffle(order)
  seen = {
    prompt_sources.normalised(prompt_sources.text_of(r)) for r in held_out
  }
  rows: list[dict] = []
  for thing in order * _TRIES:
    if len(rows) >= count:
      break
    text = prompt(thing, rng)
    says = prompt_sources.normalised(text or "")
    if text is None or says in seen:
      continue
    seen.add(says)
    chat = [{"role": "user", "content": text}]
    rows.append({"id": f"{kind}-{len(rows)}", "messages": chat})
  if len(rows) < count:
    raise ValueError(
      f"--{kind}={count}: there is text for {len(rows)} only; give at most that"
    )
  return rows


def main(argv: Sequence[str] | None = None) -> int:
  """Writes a prompt file; gives the exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--output", required=True, help="the .jsonl to write")
  parser.add_argument("--code", type=int, default=1000, help="how many of code")
  parser.add_argument("--rewrite", type=int, default=1000, help="and of texts")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--exclude", help="a .jsonl of held-out prompts")
  parser.add_argument("--docs", default=DOCS, help="a folder of texts")
  parser.add_argument(
    "--source",
    default=sysconfig.get_path("stdlib"),
    help="a folder of Python files; the standard library's if not given",
  )
  s = parser.parse_args(argv)
  try:
    held = ()
    if s.exclude:
      held = prompt_sources.read([s.exclude], chunk_chars=400).rows
    code, texts = functions(s.source)
    texts = sorted({*texts, *documents(s.docs)})
    how = dict(seed=s.seed, held_out=held)
    rows = make("code", code, code_prompt, s.code, **how)
    rows += make("rewrite", texts, rewrite_prompt, s.rewrite, **how)
    with open(s.output, "x", encoding="utf-8") as file:
      for row in rows:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
  except FileExistsError:
    print(f"{s.output} is there already; name another", file=sys.stderr)
    return 1
  except (OSError, ValueError) as error:
    print(f"prompts_from_text: error: {error}", file=sys.stderr)
    return 1
  print(
    f"{len(rows)} prompts in {s.output}, of {len(code)} functions and"
    f" {len(texts)} paragraphs"
  )
  return 0


def _dedented(lines: Sequence[str], indent: int) -> str:
  """Source of a nested function, moved to the left."""
  moved = [line if line[:indent].strip() else line[indent:] for line in lines]
  return "\n".join(moved)


if __name__ == "__main__":
  sys.exit(main())
