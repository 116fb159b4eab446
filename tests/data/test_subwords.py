"""The vocabulary: special ids, round trips, and sizes that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from konvoi.data.subwords import FILE_NAME, Subwords
from konvoi.errors import DataError

LINES = ["the cat sees the dog", "die Katze sieht den Hund", "der Hund sieht die Katze", "a dog sees a cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vocabulary")


@pytest.fixture(scope="module")
def subwords(folder: Path) -> Subwords:
    return Subwords.learn(LINES, 50, folder)


def test_the_special_ids_are_those_of_the_reference_runs(subwords: Subwords) -> None:
    assert subwords.pieces([0, 1, 2, 3]) == ["<pad>", "</s>", "<s>", "<unk>"]
    assert (subwords.PAD, subwords.EOS, subwords.BOS, subwords.UNK) == (0, 1, 2, 3)
    assert subwords.size == 50


def test_text_survives_the_round_trip(subwords: Subwords) -> None:
    assert [subwords.decode(ids) for ids in subwords.encode(LINES)] == LINES


@given(st.lists(st.sampled_from(["the", "cat", "sees", "Hund", "Katze"]), min_size=1))
def test_any_words_of_known_letters_survive_the_round_trip(subwords: Subwords, words: list[str]) -> None:
    sentence = " ".join(words)
    assert subwords.decode(subwords.encode([sentence])[0]) == sentence


def test_the_end_is_added_only_when_asked_for(subwords: Subwords) -> None:
    plain, ended = subwords.encode(LINES), subwords.encode(LINES, with_eos=True)
    assert ended == [[*ids, Subwords.EOS] for ids in plain]


def test_special_ids_are_not_decoded(subwords: Subwords) -> None:
    ids = subwords.encode(["the cat"])[0]
    assert subwords.decode([Subwords.BOS, *ids, Subwords.EOS, Subwords.PAD]) == "the cat"


def test_many_lines_on_two_threads_give_what_one_line_gives(subwords: Subwords) -> None:
    assert subwords.encode(LINES * 500) == [subwords.encode([line])[0] for line in LINES] * 500


def test_learning_twice_gives_the_same_bytes_and_leaves_one_file(subwords: Subwords, folder: Path) -> None:
    first = (folder / FILE_NAME).read_bytes()
    Subwords.learn(LINES, 50, folder)
    assert (folder / FILE_NAME).read_bytes() == first
    assert [path.name for path in folder.iterdir()] == [FILE_NAME]


def test_a_loaded_vocabulary_encodes_alike(subwords: Subwords, folder: Path) -> None:
    assert Subwords.load(folder / FILE_NAME).encode(LINES) == subwords.encode(LINES)


def test_a_vocabulary_too_large_names_the_largest_that_fits(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a vocabulary of 8000 does not fit .*: at most \d+ pieces") as caught:
        Subwords.learn(LINES, 8000, tmp_path)
    largest = int(caught.value.hint.removeprefix("--set data.vocabulary_size="))
    assert Subwords.learn(LINES, largest, tmp_path).size == largest


def test_a_vocabulary_too_small_names_the_smallest_that_fits(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"at least \d+ pieces") as caught:
        Subwords.learn(LINES, 8, tmp_path)
    smallest = int(caught.value.hint.removeprefix("--set data.vocabulary_size="))
    assert Subwords.learn(LINES, smallest, tmp_path).size == smallest


@pytest.mark.parametrize("content", [None, b"", b"this is no model"])
def test_a_missing_or_damaged_vocabulary_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / FILE_NAME
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="vocabulary"):
        Subwords.load(path)
