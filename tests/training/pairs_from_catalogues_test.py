"""Pairs of sentences from gettext catalogues, and what is held out of them."""

import json
import pathlib

import pytest

from specjax.training import pairs_from_catalogues as catalogues
from specjax.training import prompt_sources

polib = pytest.importorskip("polib")
LIMITS = catalogues.Limits()


def entry(source, answer, **how):
  return polib.POEntry(msgid=source, msgstr=answer, **how)


def save(folder, package, entries, ending="mo"):
  file = polib.POFile()
  file.metadata = {"Content-Type": "text/plain; charset=utf-8"}
  file.extend(entries)
  path = pathlib.Path(folder) / package / "usr/share/locale/de/LC_MESSAGES"
  path.mkdir(parents=True, exist_ok=True)
  path = path / f"{package}.{ending}"
  (file.save_as_mofile if ending == "mo" else file.save)(str(path))
  return path


@pytest.mark.parametrize(
  "text, kept",
  [
    ("_Open the selected file.", "Open the selected file."),
    ("&Open the\n  selected file", "Open the selected file"),
    ("Open ~File in the window", "Open File in the window"),
    ("Open the file", None),  # Three words.
    ("open the selected file", None),
    ("Open the file %s now", None),
    ("Open the <b>file</b> right now", None),
    ("Open the file_name right now", None),
    ("Open 12 34 56 78 99", None),
    ("OPEN THE FILE RIGHT NOW", None),
    ("Open " + "the very same " * 9, None),
  ],
)
def test_a_sentence_is_plain_words(text, kept):
  assert catalogues.sentence(text, LIMITS) == kept


@pytest.mark.parametrize("ending", ["mo", "po"])
def test_a_catalogues_sentences_are_read(tmp_path, ending):
  entries = [
    entry("_Save the open document.", "Das offene Dokument _speichern."),
    entry("Keep this as it is", "Keep this as it is"),
    entry("Delete all of these files", ""),
    polib.POEntry(
      msgid="One file was found here",
      msgid_plural="Many files were found here",
      msgstr_plural={0: "Eine Datei", 1: "Viele Dateien hier gefunden"},
    ),
  ]
  if ending == "po":
    entries.append(
      entry("Never use this one, please", "Das hier bitte nie", flags=["fuzzy"])
    )
  path = save(tmp_path, "some", entries, ending)
  found = list(catalogues.read(path, "some", LIMITS))
  assert sorted((p.source, p.answer, p.package) for p in found) == [
    ("Many files were found here", "Viele Dateien hier gefunden", "some"),
    ("Save the open document.", "Das offene Dokument speichern.", "some"),
  ]
  path.write_bytes(b"no catalogue")
  with pytest.raises(ValueError, match="no gettext catalogue"):
    list(catalogues.read(path, "some", LIMITS))


def pair(source, answer="Etwas ganz anderes ist das"):
  return catalogues.Pair(source=source, answer=answer, package="p")


def test_what_is_like_a_held_out_sentence_is_not_trained_on():
  words = "amber brook cedar delta ember frost grove haven ivory jolly".split()
  pairs = [
    pair(f"The {w} {w}ish {w}ed {n}", f"{w} {w}en {w}lich {n}")
    for w in words
    for n in range(3)
  ]
  pairs.append(pair("Nothing is like this one", "Das hier ist einmalig"))
  pairs = catalogues.distinct([*pairs, *pairs])
  assert len(pairs) == 31
  train, held = catalogues.split(pairs, 4)
  assert len(held) == 4
  said = lambda p: {w for w in words if f" {w} " in p.source}
  taken = set().union(*map(said, held))
  assert len(taken) == len([p for p in held if said(p)])  # One of those alike.
  assert not taken & set().union(*map(said, train))
  # By a hash of the words: more packages change nothing.
  more = catalogues.distinct([*pairs, pair("THE AMBER amberish - ambered 1!")])
  assert catalogues.split(more, 4)[1] == held
  with pytest.raises(ValueError, match="--held_out=40: there are 31 pairs"):
    catalogues.split(pairs, 40)


def test_the_command_writes_files_once(tmp_path, capsys):
  numbers = "one two three four five six seven eight nine ten".split()
  entries = [
    entry(f"Use {n} {n}ish thing of {n}", f"Alle {n} {n}en {n}n")
    for n in numbers
  ]
  save(tmp_path / "debs", "some", entries)
  flags = [f"--folder={tmp_path}/debs", f"--output={tmp_path}/out"]
  assert catalogues.main([*flags, "--held_out=2", "--sentences=1"]) == 0
  assert "8 pairs to train on and 2 held out" in capsys.readouterr().out
  lines = {
    path.stem: [json.loads(line) for line in path.read_text().splitlines()]
    for path in (tmp_path / "out").iterdir()
  }
  assert {k: len(v) for k, v in lines.items()} == {
    "train": 8, "held_out": 2, "prompts": 8, "sentences": 1,
  }  # fmt: skip
  assert lines["sentences"][0]["id"] == "some-1"
  assert lines["sentences"][0]["prompt"] == lines["held_out"][0]["prompt"]
  assert catalogues.main(flags) == 1
  assert "error" in capsys.readouterr().err
  assert catalogues.main([*flags, f"--folder={tmp_path}/out"]) == 1
  assert "no catalogue of de in it" in capsys.readouterr().err


def test_the_shipped_sentences_are_no_two_alike():
  rows = prompt_sources.read(["demo/held_out_translate.jsonl"], chunk_chars=400)
  assert len(rows.rows) == 100 and not rows.bad
  both = [pair(row.prompt, row.prompt) for row in rows.rows]
  train, held = catalogues.split(both, 99)
  assert len(held) == 99 and len(train) == 1


@pytest.mark.parametrize(
  "flags, words",
  [
    (["--folder=no/such"], "--folder=no/such: no such folder"),
    (["--held_out=-3"], "--held_out=-3: give 1 or more"),
    (["--sentences=0"], "--sentences=0: give 1 or more"),
    (["--least=9", "--most=3"], "--least=9 --most=3: no sentence has both"),
  ],
)
def test_flags_that_cannot_be_are_named(tmp_path, flags, words, capsys):
  folder = [f"--folder={tmp_path}", f"--output={tmp_path}/out"]
  assert catalogues.main([*folder, *flags]) == 1
  assert words in capsys.readouterr().err
  assert not (tmp_path / "out").exists()


def test_nothing_is_written_beside_files_of_another_run(tmp_path, capsys):
  (tmp_path / "held_out.jsonl").write_text("mine")
  flags = [f"--folder={tmp_path}", f"--output={tmp_path}"]
  assert catalogues.main(flags) == 1
  assert "held_out.jsonl is there already" in capsys.readouterr().err
  assert [path.name for path in tmp_path.iterdir()] == ["held_out.jsonl"]
