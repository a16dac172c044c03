"""A vocabulary of sub-words from the texts of .jsonl files, as T5 has one.

  python -m specjax.training.subwords --data=pairs.jsonl --size=4096 \\
    --output=TOKENIZER

Unigram (Kudo 2018) on words that carry the blank before them, of text in
Unicode's NFKC, as SentencePiece makes it; the ids begin with padding, the end
of a text and the unknown. All texts of all fields are read. The folder is what
specjax-init takes as --tokenizer.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence

import tokenizers
from tokenizers import (
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
  trainers,
)

from specjax.training import texts

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"


def learned(lines: Iterable[str], size: int) -> tokenizers.Tokenizer:
  """A tokenizer whose vocabulary is that of the texts.

  Args:
    lines: texts, read once, in order: the same ones give the same vocabulary.
    size: how many tokens, the three special ones included.

  Raises:
    ValueError: it is too few for the characters of the texts.
  """
  if size < len((PAD, EOS, UNK)) + 1:
    raise ValueError(f"--size={size}: give 4 tokens at least")
  made = tokenizers.Tokenizer(models.Unigram())
  made.normalizer = normalizers.Sequence(
    [normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(r"\s+"), " ")]
  )
  made.pre_tokenizer = pre_tokenizers.Metaspace()
  made.decoder = decoders.Metaspace()
  trainer = trainers.UnigramTrainer(
    vocab_size=size,
    special_tokens=[PAD, EOS, UNK],
    unk_token=UNK,
    show_progress=False,
  )
  try:
    made.train_from_iterator(lines, trainer)
  except Exception as error:  # tokenizers raises no kind of its own
    raise ValueError(f"--size={size}: {error}; give more") from None
  end = (EOS, made.token_to_id(EOS))
  made.post_processor = processors.TemplateProcessing(
    single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[end]
  )
  return made


def texts_of(names: Sequence[str]) -> Iterator[str]:
  """All texts of the lines of .jsonl files.

  Raises:
    ValueError: a line is no JSON object; names the file and the line. Or there
      is no text in all of them.
    OSError: a file cannot be read.
  """
  found = False
  for name in names:
    for where, row in texts.json_lines(pathlib.Path(name)):
      if not isinstance(row, dict):
        raise ValueError(
          f"{where}: it is no JSON object; give"
          ' {"prompt": "…", "answer": "…"}'
        )
      for value in row.values():
        if isinstance(value, str) and value.strip():
          found = True
          yield value
  if not found:
    raise ValueError(
      f"--data={' --data='.join(names)}: no text in it; give lines such as"
      ' {"prompt": "…", "answer": "…"}'
    )


def save(made: tokenizers.Tokenizer, folder: pathlib.Path) -> None:
  """Writes tokenizer.json and tokenizer_config.json.

  Raises:
    FileExistsError: the folder has a tokenizer.
  """
  file = folder / "tokenizer.json"
  if file.exists():
    raise FileExistsError(f"{file} is there already; name another folder")
  folder.mkdir(parents=True, exist_ok=True)
  made.save(str(file))
  roles = {"pad_token": PAD, "eos_token": EOS, "unk_token": UNK}
  content = json.dumps(roles, indent=2) + "\n"
  (folder / "tokenizer_config.json").write_text(content)


def main(argv: Sequence[str] | None = None) -> int:
  """Writes the folder; gives the exit code."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--data", required=True, action="append")
  parser.add_argument("--size", type=int, default=4096, help="how many tokens")
  parser.add_argument("--output", required=True, help="the folder to write")
  s = parser.parse_args(argv)
  try:
    made = learned(list(texts_of(s.data)), s.size)
    save(made, pathlib.Path(s.output))
  except (OSError, ValueError) as error:
    print(f"subwords: error: {error}", file=sys.stderr)
    return 1
  count = made.get_vocab_size()
  fewer = f", for the texts have no more than that of --size={s.size}"
  print(f"{count} tokens in {s.output}{fewer if count < s.size else ''}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
