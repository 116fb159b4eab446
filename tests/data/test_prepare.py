"""From text to a prepared set: splits, leaks, reuse, and what is left behind when it fails."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from konvoi.commands.data import app
from konvoi.data import fingerprint, sift
from konvoi.data.prepare import Data, prepare
from konvoi.data.prepared import PreparedSet, prepared_sets
from konvoi.data.subwords import Subwords
from konvoi.data.text import Pair, read_tsv_pairs
from konvoi.errors import DataError, MachineError
from konvoi.fetch.get import get
from konvoi.fetch.sets import KNOWN_SETS

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


def make(data: Data, home: Path, from_folder: Path | None = None, num_processes: int | None = None) -> PreparedSet:
    return prepare(data, source="en", target="de", home=home, from_folder=from_folder, num_processes=num_processes)


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
    again = prepare(data, source="en", target="de", home=tmp_path, report=lambda stage, *_: stages.append(stage))
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
    assert len(names) == 1 + 3 * 4 + 2 * 2 + 1  # the vocabulary, tokens and lengths of 3 splits, text of 2, dropped/
    names.remove("dropped")
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_chunks_do_not_change_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = own(tmp_path, PAIRS)
    whole = decoded(make(data, tmp_path / "one"), "train")
    monkeypatch.setattr(sift, "CHUNK_PAIRS", 7)
    assert decoded(make(data, tmp_path / "two", num_processes=1), "train") == whole


def test_the_number_of_processes_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sift, "CHUNK_PAIRS", 20)
    data = own(tmp_path, [*PAIRS, *PAIRS[:30]], remove_near_duplicates=True)
    alone, together = (make(data, tmp_path / str(n), num_processes=n) for n in (1, 2))
    files = sorted(path.relative_to(alone.folder) for path in alone.folder.rglob("*") if path.is_file())
    assert len(files) > 17
    for file in files:
        if file.name != "info.json":
            assert (alone.folder / file).read_bytes() == (together.folder / file).read_bytes()
    different = {key for key in alone.info if alone.info[key] != together.info[key]} - {"made_at"}
    assert different == {"folder"}


def test_an_interrupted_preparation_goes_on_with_the_stage_it_was_in(tmp_path: Path) -> None:
    data = own(tmp_path, PAIRS)

    def stop(stage: str, *_: object) -> None:
        if stage == "encoding":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(data, source="en", target="de", home=tmp_path / "one", report=stop)
    stages: list[str] = []
    resumed = prepare(
        data, source="en", target="de", home=tmp_path / "one", report=lambda stage, *_: stages.append(stage)
    )
    assert {*stages} == {"encoding"}
    straight = make(data, tmp_path / "two")
    for path in straight.folder.glob("*.tokens"):
        assert (resumed.folder / path.name).read_bytes() == path.read_bytes()
    assert [path.name for path in (tmp_path / "one" / "data").iterdir()] == [resumed.folder.name]
    assert {path.name for path in resumed.folder.iterdir()} == {path.name for path in straight.folder.iterdir()}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up_is_explained_and_the_work_goes_on_when_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    many = [(f"{source} {number}", f"{target} {number}") for source, target in PAIRS for number in range(500)]
    data = own(tmp_path, many)
    (small_disk / "ballast").write_bytes(bytes(2_500_000))
    with pytest.raises(MachineError, match=r"no space left for .* MB are needed, .* MB were free") as caught:
        make(data, small_disk, num_processes=1)
    assert "goes on where it stopped" in caught.value.hint
    (small_disk / "ballast").unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert make(data, small_disk).info["pairs"]["train"] == 30_000 - 9


def test_a_few_broken_lines_are_dropped_and_named(tmp_path: Path) -> None:
    data = own(tmp_path, PAIRS * 4, remove_duplicates=False)
    assert data.train_source is not None
    lines = data.train_source.read_bytes().split(b"\n")
    lines[6], lines[9] = "Müll".encode("latin-1"), b"nul \0 byte"
    data.train_source.write_bytes(b"\n".join(lines))
    prepared = make(data, tmp_path)
    # two of 240 lines are fewer than one in a hundred
    assert prepared.info["cleaning"]["unreadable"] == 2
    examples = (prepared.folder / "dropped" / "unreadable.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in examples] == ["7", "10"]
    assert "0xfc" in examples[0]


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    data = own(tmp_path, PAIRS)
    assert data.train_source is not None
    data.train_source.write_bytes(data.train_source.read_text().encode("utf-16-le").replace(b"\n\0", b"\n"))
    with pytest.raises(
        DataError, match=r"60 of the first lines can't be read: .*train\.en: line 1 holds a NUL"
    ) as caught:
        make(data, tmp_path)
    assert "UTF-16" in caught.value.hint


def test_every_filter_is_counted_and_shown_with_what_it_left(tmp_path: Path) -> None:
    bad = [
        ("", "leer"),
        ("word " * 101, "Wort " * 101),
        ("one two three four five six seven", "eins"),
        ("just the same text", "Just the same text"),
        PAIRS[0],
        (PAIRS[1][0].upper() + " !", PAIRS[1][1] + " 12"),
    ]
    settings = {"remove_near_duplicates": True, "dev_pairs": 5, "test_pairs": 0}
    prepared = make(own(tmp_path, [*PAIRS, *bad], **settings), tmp_path)
    dropped = {row["filter"]: row["dropped"] for row in prepared.info["filters"]}
    assert dropped == {
        "read": 0,
        "empty": 1,
        "too_long": 1,
        "length_ratio": 1,
        "copy": 1,
        "duplicate": 1,
        "near_duplicate": 1,
        "held_out": 5,
    }
    # 66 read, less one at each filter, less 5 held out
    assert [row["pairs"] for row in prepared.info["filters"]] == [66, 65, 64, 63, 62, 61, 60, 55]
    last, read = prepared.info["filters"][-1], prepared.info["filters"][0]
    train = decoded(prepared, "train")
    assert last["words"] == {"en": sum(len(s.split()) for s, _ in train), "de": sum(len(t.split()) for _, t in train)}
    assert last["mb"]["de"] == pytest.approx(sum(len(t.encode()) + 1 for _, t in train) / 1e6)
    assert read["mb"]["en"] > last["mb"]["en"]
    row, source, target = (prepared.folder / "dropped" / "duplicate.tsv").read_text().rstrip("\n").split("\t")
    # the fifth after the 60
    assert (int(row), (source, target)) == (65, PAIRS[0])


def test_a_given_vocabulary_is_used_as_it_is(tmp_path: Path) -> None:
    learnt = make(own(tmp_path, PAIRS, vocabulary_size=61), tmp_path)
    file = learnt.folder / "vocabulary.model"
    # its own size decides, whatever the recipe says
    given = make(own(tmp_path, PAIRS[:50], vocabulary=file, vocabulary_size=9999), tmp_path)
    assert (given.folder / "vocabulary.model").read_bytes() == file.read_bytes()
    assert (given.info["vocabulary_size"], given.info["vocabulary_padded"]) == (61, 64)
    with pytest.raises(DataError, match="is no file"):
        make(own(tmp_path, PAIRS, vocabulary=tmp_path / "none.model"), tmp_path)


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_one_file_for_both_sides_gives_the_same_tokens(tmp_path: Path, form: str) -> None:
    lines = [f"{s}\t{t}" if form == "tsv" else json.dumps({"en": s, "de": t}) for s, t in PAIRS]
    (tmp_path / f"all.{form}").write_text("".join(f"{line}\n" for line in lines))
    sizes = {"vocabulary_size": 60, "dev_pairs": 5, "test_pairs": 4}
    one = make(Data(set="own", train_file=tmp_path / f"all.{form}", **sizes), tmp_path / "one")
    two = make(own(tmp_path, PAIRS), tmp_path / "two")
    assert (one.folder / "train.de.tokens").read_bytes() == (two.folder / "train.de.tokens").read_bytes()


def test_the_same_content_elsewhere_is_the_same_set(tmp_path: Path) -> None:
    first = make(own(tmp_path, PAIRS), tmp_path)
    (tmp_path / "moved").mkdir()
    data = own(tmp_path / "moved", PAIRS)
    assert data.train_source is not None
    renamed = data.train_source.rename(tmp_path / "moved" / "english.txt")
    assert make(data.model_copy(update={"train_source": renamed}), tmp_path).folder == first.folder


def test_a_large_file_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "MAX_UNREMEMBERED_BYTES", 10)
    file = tmp_path / "large"
    file.write_bytes(b"a" * 100)
    first = fingerprint.digest(file, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(fingerprint, "_hash", lambda path: pytest.fail("hashed again"))
        assert fingerprint.digest(file, tmp_path) == first
    file.write_bytes(b"b" * 101)
    assert fingerprint.digest(file, tmp_path) == hashlib.sha256(b"b" * 101).hexdigest() != first


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    data = own(tmp_path, PAIRS)
    folder = make(data, tmp_path).folder
    for path in folder.glob("*.*"):
        path.unlink()
    (folder / "thesis.doc").write_text("three years of work")
    with pytest.raises(DataError, match="is no prepared set"):
        make(data, tmp_path)
    assert (folder / "thesis.doc").read_text() == "three years of work"


@pytest.mark.parametrize(
    ("pairs", "settings", "problem"),
    [
        (PAIRS[:10], {}, "10 clean training pairs are too few to split off 9"),
        (PAIRS, {"vocabulary_size": 5000}, "at most"),
        (PAIRS, {"max_words": 1}, r"0 training pairs are left \(too_long 60\)"),
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
    with pytest.raises(DataError, match=r"train\.en") as caught:
        make(data, tmp_path)
    assert "konvoi data get multi30k-en-de" in caught.value.hint
    get(known, home=tmp_path, from_folder=multi30k)
    prepared = make(data, tmp_path)
    assert prepared.folder == make(data, tmp_path, from_folder=multi30k).folder
    turned = prepare(data, source="de", target="en", home=tmp_path)
    assert turned.text("dev") == prepared.text("dev")[::-1]


def test_a_set_with_a_lost_line_is_not_prepared(tmp_path: Path, multi30k: Path) -> None:
    (multi30k / "val.de").write_text("nur eine\n")
    with pytest.raises(DataError, match=r"val\.en has 5 lines but .*val\.de has 1"):
        make(Data(set="multi30k-en-de"), tmp_path, from_folder=multi30k)


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


def test_the_same_bytes_read_another_way_are_another_set(tmp_path: Path) -> None:
    tagged = [(f"<seg>{source}</seg>", f"<seg>{target}</seg>") for source, target in PAIRS]
    as_lines = own(tmp_path, tagged)
    assert as_lines.train_source is not None and as_lines.train_target is not None
    plain = make(as_lines, tmp_path)
    renamed = {
        key: path.rename(path.with_suffix(f".{key}.sgm"))
        for key, path in (("train_source", as_lines.train_source), ("train_target", as_lines.train_target))
    }
    segments = make(as_lines.model_copy(update=renamed), tmp_path)
    assert segments.folder != plain.folder
    assert {*decoded(segments, "train")} < {*PAIRS}


@pytest.mark.parametrize("language", ["de/x", "..", ""])
def test_a_language_that_is_no_file_name_is_refused_before_any_work(tmp_path: Path, language: str) -> None:
    with pytest.raises(DataError, match="is no language code"):
        prepare(own(tmp_path, PAIRS), source="en", target=language, home=tmp_path)


def test_a_home_that_is_a_file_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(MachineError, match="cannot write") as caught:
        make(own(tmp_path, PAIRS), tmp_path / "home")
    assert "KONVOI_HOME" in caught.value.hint


def test_a_set_of_another_version_hides_no_other(tmp_path: Path) -> None:
    good = make(own(tmp_path, PAIRS), tmp_path)
    old = tmp_path / "data" / "own-0123456789ab"
    old.mkdir()
    (old / "info.json").write_text(json.dumps({**good.info, "version": 1}))
    broken = tmp_path / "data" / "own-ba9876543210"
    broken.mkdir()
    (broken / "info.json").write_text("{")
    assert [one.folder for one in prepared_sets(tmp_path)] == [good.folder]
    with pytest.raises(DataError, match="another version"):
        PreparedSet.open(old)
