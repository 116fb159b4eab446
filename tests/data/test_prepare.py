"""From text to a prepared set: splits, leaks, reuse, and what is left behind when it fails."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from konvoi.commands.data import app
from konvoi.data import prepare as prepare_module
from konvoi.data.folder import whole_folder
from konvoi.data.get import get
from konvoi.data.prepare import Data, prepare
from konvoi.data.prepared import PreparedSet
from konvoi.data.sets import KNOWN_SETS
from konvoi.data.subwords import Subwords
from konvoi.data.text import Pair, read_tsv_pairs
from konvoi.errors import DataError, MachineError

SUBJECTS = [("the cat", "die Katze"), ("the dog", "der Hund"), ("my friend", "mein Freund"), ("Tom", "Tom")]
VERBS = [("sees", "sieht"), ("likes", "mag"), ("finds", "findet"), ("knows", "kennt"), ("loves", "liebt")]
OBJECTS = [("the house", "das Haus"), ("a book", "ein Buch"), ("this boy", "diesen Jungen")]
PAIRS = [
    (f"{subject} {verb} {thing}", f"{betreff} {tut} {ding}")
    for subject, betreff in SUBJECTS
    for verb, tut in VERBS
    for thing, ding in OBJECTS
]  # 4 x 5 x 3 = 60 pairs


def write_pairs(folder: Path, name: str, pairs: list[Pair]) -> tuple[Path, Path]:
    paths = folder / f"{name}.en", folder / f"{name}.de"
    for number, path in enumerate(paths):
        path.write_text("".join(f"{pair[number]}\n" for pair in pairs), encoding="utf-8")
    return paths


def own(folder: Path, pairs: list[Pair], **settings: object) -> Data:
    source, target = write_pairs(folder, "train", pairs)
    defaults = {"vocabulary_size": 60, "dev_pairs": 5, "test_pairs": 4}
    return Data.model_validate({"set": "own", "train_source": source, "train_target": target, **defaults, **settings})


def make(data: Data, home: Path, from_folder: Path | None = None) -> PreparedSet:
    return prepare(data, source="en", target="de", home=home, from_folder=from_folder)


def decoded(prepared: PreparedSet, split: str) -> list[Pair]:
    source, target = prepared.split(split)
    decode = prepared.subwords.decode
    return [(decode(source[i].tolist()), decode(target[i].tolist())) for i in range(len(source))]


def test_every_pair_lands_in_one_split(tmp_path: Path) -> None:
    prepared = make(own(tmp_path, PAIRS), tmp_path)
    # 60 pairs - 5 dev - 4 test = 51
    assert prepared.info["pairs"] == {"train": 51, "dev": 5, "test": 4}
    together = [pair for split in ("train", "dev", "test") for pair in decoded(prepared, split)]
    assert sorted(together) == sorted(PAIRS)


def test_every_stored_sentence_ends_with_eos(tmp_path: Path) -> None:
    for side in make(own(tmp_path, PAIRS), tmp_path).split("train"):
        assert {int(side[i][-1]) for i in range(len(side))} == {Subwords.EOS}


def test_a_sentence_with_two_translations_is_not_in_two_splits(tmp_path: Path) -> None:
    doubled = PAIRS + [(source, f"{target}, ja") for source, target in PAIRS]
    prepared = make(own(tmp_path, doubled), tmp_path)
    sources = {split: {source for source, _ in decoded(prepared, split)} for split in ("train", "dev", "test")}
    assert not sources["train"] & (sources["dev"] | sources["test"])
    assert not sources["dev"] & sources["test"]
    # 120 pairs; 9 sentences are held out, each with 1 translation kept and 1 that would leak: 120 - 9 - 9 = 102
    assert prepared.info["cleaning"]["leak"] == 9
    assert prepared.info["pairs"]["train"] == 102


def test_the_split_does_not_depend_on_the_order_of_the_lines(tmp_path: Path) -> None:
    (tmp_path / "turned").mkdir()
    forward = make(own(tmp_path, PAIRS), tmp_path)
    backward = make(own(tmp_path / "turned", PAIRS[::-1]), tmp_path)
    assert forward.folder != backward.folder
    assert sorted(forward.text("test")[0]) == sorted(backward.text("test")[0])


def test_dev_is_kept_exactly_and_its_sentences_leave_training(tmp_path: Path) -> None:
    odd = [("  the cat  sees a book ", ""), ("word " * 300, "x"), ("the cat sees a book", "die Katze sieht ein Buch")]
    source, target = write_pairs(tmp_path, "dev", odd)
    prepared = make(own(tmp_path, PAIRS, dev_source=source, dev_target=target, test_pairs=0), tmp_path)
    assert prepared.text("dev") == ([pair[0] for pair in odd], [pair[1] for pair in odd])
    # "the cat sees a book" is one of the 60
    assert prepared.info["pairs"] == {"train": 59, "dev": 3}
    assert prepared.info["cleaning"]["leak"] == 1
    with pytest.raises(DataError, match='has no split "test"'):
        prepared.text("test")


def test_the_vocabulary_never_sees_dev_or_test(tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path, "dev", [("§§§", "¶¶¶")])
    prepared = make(own(tmp_path, PAIRS, dev_source=source, dev_target=target), tmp_path)
    assert Subwords.UNK in prepared.split("dev")[0][0]


def test_lowercase_reaches_every_split(tmp_path: Path) -> None:
    prepared = make(own(tmp_path, PAIRS, lowercase=True), tmp_path)
    text = str([decoded(prepared, split) for split in ("train", "dev", "test")])
    assert text == text.lower()


def test_the_second_time_nothing_is_done(tmp_path: Path) -> None:
    data = own(tmp_path, PAIRS)
    first, stages = make(data, tmp_path), []
    again = prepare(data, source="en", target="de", home=tmp_path, report=lambda stage, _: stages.append(stage))
    assert (again.folder, again.info, stages) == (first.folder, first.info, [])


def test_another_setting_or_another_text_makes_another_set(tmp_path: Path) -> None:
    folders = {make(own(tmp_path, PAIRS), tmp_path).folder}
    folders.add(make(own(tmp_path, PAIRS, vocabulary_size=61), tmp_path).folder)
    folders.add(make(own(tmp_path, PAIRS[:-1]), tmp_path).folder)
    folders.add(prepare(own(tmp_path, PAIRS), source="en", target="nl", home=tmp_path).folder)
    assert len(folders) == 4


def test_the_same_text_gives_the_same_bytes(tmp_path: Path) -> None:
    data = own(tmp_path, PAIRS)
    one, two = make(data, tmp_path / "one").folder, make(data, tmp_path / "two").folder
    names = sorted(path.name for path in one.iterdir() if path.name != "info.json")
    assert len(names) == 1 + 3 * 4 + 2 * 2  # the vocabulary, tokens and offsets of 3 splits, text of 2
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_chunks_do_not_change_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = own(tmp_path, PAIRS)
    whole = decoded(make(data, tmp_path / "one"), "train")
    monkeypatch.setattr(prepare_module, "CHUNK_PAIRS", 7)
    assert decoded(make(data, tmp_path / "two"), "train") == whole


def test_a_full_disk_is_explained_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepare_module, "write_text", fail)
    with pytest.raises(MachineError, match=r"no space left for .* MB are needed, .* MB were free"):
        make(own(tmp_path, PAIRS), tmp_path)
    assert list((tmp_path / "data").iterdir()) == []


def test_what_a_killed_process_left_behind_is_removed(tmp_path: Path) -> None:
    # os._exit is like a kill: no cleaning up
    program = f"""
import os, pathlib
from konvoi.data.folder import whole_folder
with whole_folder(pathlib.Path({str(tmp_path / "other")!r}), needed_bytes=0):
    os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert [path.name.startswith(".other.") for path in tmp_path.iterdir()] == [True]
    with whole_folder(tmp_path / "final", needed_bytes=0):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@pytest.mark.parametrize(
    ("pairs", "settings", "problem"),
    [
        (PAIRS[:10], {}, "10 clean training pairs are too few to split off 9"),
        (PAIRS, {"vocabulary_size": 5000}, "at most"),
        (PAIRS, {"max_words": 1}, "0 clean training pairs"),
    ],
)
def test_text_that_does_not_suffice_is_an_error_with_a_remedy(
    tmp_path: Path, pairs: list[Pair], settings: dict[str, int], problem: str
) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        make(own(tmp_path, pairs, **settings), tmp_path)
    assert caught.value.hint
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"set": "own"}, "train_source, train_target: missing"),
        ({"set": "own", "train_source": "a", "train_target": "b", "dev_source": "c"}, "dev_target: missing"),
        ({"set": "demo-en-de", "train_source": "a"}, "train_source: own files make sense only"),
        ({"set": "demo-en"}, 'did you mean "demo-en-de"'),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Data.model_validate(settings)


def test_missing_own_files_are_named_all_at_once(tmp_path: Path) -> None:
    data = Data(set="own", train_source=tmp_path / "a", train_target=tmp_path / "b")
    with pytest.raises(DataError, match=r"data\.train_source: .*data\.train_target: "):
        make(data, tmp_path)


def test_languages_that_the_set_does_not_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="between en and de, not from en to fr"):
        prepare(Data(set="demo-en-de"), source="en", target="fr", home=tmp_path)


@pytest.fixture
def multi30k(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "files"
    folder.mkdir()
    write_pairs(folder, "train", PAIRS[10:])
    write_pairs(folder, "val", PAIRS[:5])
    write_pairs(folder, "test_2016_flickr", PAIRS[5:10])
    yield folder


def test_a_known_set_is_taken_over_and_then_prepared(tmp_path: Path, multi30k: Path) -> None:
    known, data = KNOWN_SETS["multi30k-en-de"], Data(set="multi30k-en-de", vocabulary_size=60)
    with pytest.raises(DataError, match=r"train\.en, train\.de, val\.en") as caught:
        make(data, tmp_path)
    assert "konvoi data get multi30k-en-de --from DIR" in caught.value.hint
    folder = get(known, home=tmp_path, from_folder=multi30k)
    assert json.loads((folder / "manifest.json").read_text())["lines"] == {"train": 50, "dev": 5, "test": 5}
    prepared = make(data, tmp_path)
    assert prepared.folder == make(data, tmp_path, from_folder=multi30k).folder
    turned = prepare(data, source="de", target="en", home=tmp_path)
    assert turned.text("dev") == prepared.text("dev")[::-1]


def test_a_set_with_a_lost_line_is_not_taken_over(tmp_path: Path, multi30k: Path) -> None:
    (multi30k / "val.de").write_text("nur eine\n")
    with pytest.raises(DataError, match=r"val\.en has 5 lines but .*val\.de has 1"):
        get(KNOWN_SETS["multi30k-en-de"], home=tmp_path, from_folder=multi30k)
    assert not (tmp_path / "sets").exists()


def test_the_embedded_set_splits_into_its_published_sizes(tmp_path: Path) -> None:
    known = KNOWN_SETS["demo-en-de"]
    prepared = make(Data(set=known.name, vocabulary_size=1000), tmp_path)
    assert prepared.info["pairs"] == {"train": known.train_pairs, "dev": 500, "test": 500}
    all_sources = {source for source, _ in read_tsv_pairs(known.embedded_path)}
    assert {*prepared.text("dev")[0], *prepared.text("test")[0]} <= all_sources
    assert "tatoeba.org" in (known.embedded_path.parent / "NOTICE").read_text()


def test_the_commands_speak_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KONVOI_HOME", str(tmp_path))
    source, target = map(str, write_pairs(tmp_path, "train", PAIRS))
    sizes = ["--vocabulary-size", "60", "--dev-pairs", "5", "--test-pairs", "4"]
    made = CliRunner().invoke(app, ["prepare", "--source", source, "--target", target, *sizes, "--json"])
    assert json.loads(made.stdout)["pairs"] == {"train": 51, "dev": 5, "test": 4}
    described = CliRunner().invoke(app, ["info", "own", "--json"])
    assert json.loads(described.stdout) == [json.loads(made.stdout)]
    listed = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    assert {row["name"]: row["here"] for row in listed} == {name: name == "demo-en-de" for name in KNOWN_SETS}


@pytest.mark.parametrize("arguments", [["list"], ["info"], ["prepare", "demo-en-de", "--vocabulary-size", "500"]])
def test_the_commands_print_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setenv("KONVOI_HOME", str(tmp_path))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "demo-en-de" in result.stdout
