"""The vocabulary: special ids, round trips, and sizes that do not fit."""

from __future__ import annotations

import io
import lzma
import pickle
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tests.shared_data import shared_data

from konvoi.data.subwords import FILE_NAME, Subwords, padded_size
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


def learnt_from_lines(lines: list[str], size: int) -> list[str]:
    """The pieces that SentencePiece's own trainer learns from the text itself."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=size,
        character_coverage=1.0,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    return all_pieces(Subwords(model.getvalue()))


def all_pieces(subwords: Subwords) -> list[str]:
    return subwords.pieces(range(subwords.size))


ODD_LINES = [
    "a <s> b </s> <pad>",
    "x<unk>y \u2581 \u2581a",
    "\u00a8 no\u3000yes so\u200bno",
    "tab\tbed \u00a0 end\r",
    "",
]


@pytest.mark.parametrize("order", [1, -1])
def test_counts_give_the_pieces_that_the_lines_give(tmp_path: Path, order: int) -> None:
    lines = LINES * 3 + ODD_LINES * 2
    counts = sorted(Counter(word for line in lines for word in line.split(" ")).items())
    found = Subwords.learn_from_counts(counts[::order], 80, tmp_path)
    assert all_pieces(found) == learnt_from_lines(lines, 80)


def test_counts_of_a_real_text_give_the_pieces_that_its_lines_give(tmp_path: Path) -> None:
    with lzma.open(shared_data("europarl/europarl-direct.de.xz"), "rt", encoding="utf-8", newline="\n") as stream:
        lines = [line.rstrip("\n") for line in islice(stream, 5000)]
    counts = Counter(word for line in lines for word in line.split(" "))
    assert max(counts.values()) > 1000
    assert all_pieces(Subwords.learn_from_counts(counts.items(), 3000, tmp_path)) == learnt_from_lines(lines, 3000)


def test_a_word_that_occurs_often_weighs_more(tmp_path: Path) -> None:
    # 4 special pieces, 5 single ones (the blank's mark, a, b, x, y), so one joint of two: that of the frequent word
    for often in ("ab", "xy"):
        counts = [(word, 9 if word == often else 1) for word in ("ab", "xy")]
        pieces = all_pieces(Subwords.learn_from_counts(counts, 10, tmp_path))
        assert [piece for piece in pieces if len(piece) == 2] == [often]


def test_what_looks_special_in_a_text_is_plain_text(tmp_path: Path) -> None:
    subwords = Subwords.learn([*LINES, "<s> </s> <pad> <unk> < > / p u n k"], 60, tmp_path)
    (ids,) = subwords.encode(["<s> <pad> </s>"])
    assert not {Subwords.PAD, Subwords.EOS, Subwords.BOS, Subwords.UNK} & set(ids)
    assert subwords.decode(ids) == "<s> <pad> </s>"


def test_without_text_there_is_no_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no training text"):
        Subwords.learn_from_counts([], 50, tmp_path)
    assert not list(tmp_path.iterdir())


def test_byte_fallback_leaves_nothing_unknown(tmp_path: Path) -> None:
    # 50 pieces and one for each of the 256 bytes
    subwords = Subwords.learn(LINES, 50 + 256, tmp_path, byte_fallback=True)
    (ids,) = subwords.encode(["the \u732b"])
    assert Subwords.UNK not in ids and subwords.decode(ids) == "the \u732b"


def test_another_process_gets_the_same_vocabulary(subwords: Subwords, folder: Path) -> None:
    copy = pickle.loads(pickle.dumps(subwords))
    assert copy.encode(LINES) == subwords.encode(LINES)
    assert copy.model_bytes == (folder / FILE_NAME).read_bytes()


def test_a_word_alone_has_the_ids_of_a_line_of_it(subwords: Subwords) -> None:
    for text in ("Katze", "", "a dog", "\u732b"):
        assert subwords.encode_word(text) == subwords.encode([text])[0]


def test_the_size_is_padded_to_a_multiple_of_eight(subwords: Subwords) -> None:
    # 7 x 8 = 56 >= 50
    assert subwords.padded_size == 56
    assert [padded_size(size) for size in (1, 8, 9, 32_768)] == [8, 8, 16, 32_768]


def test_the_reference_vocabulary_is_read() -> None:
    subwords = Subwords.load(shared_data("reference-vocabulary/m_common.model"))
    assert subwords.size == subwords.padded_size == 32_768
    sentences = [
        "Resumption of the session.",
        "Wiederaufnahme der Sitzungsperiode, \u00fcber die Br\u00fccke!",
        "12.5 %",
    ]
    for sentence, ids in zip(sentences, subwords.encode(sentences), strict=True):
        assert subwords.decode(ids) == sentence
        assert 0 < len(ids) < len(sentence) and Subwords.UNK not in ids


def test_the_list_of_pieces_given_as_a_vocabulary_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "mine.vocab"
    path.write_text("<pad>\t0\n</s>\t0\nen\t-0\ner\t-1.5\n")
    with pytest.raises(DataError, match="list of a vocabulary's pieces") as caught:
        Subwords.load(path)
    assert "mine.model" in caught.value.hint


def test_a_vocabulary_of_another_library_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"version": "1.0", "model": {"type": "BPE"}}')
    with pytest.raises(DataError, match="is JSON, not a SentencePiece vocabulary"):
        Subwords.load(path)


def test_other_special_ids_are_refused_with_the_way_to_learn_them_right(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, model_type="bpe", vocab_size=50, minloglevel=2
    )
    path = tmp_path / "theirs.model"
    path.write_bytes(model.getvalue())
    # SentencePiece's own choice: no padding, end 2, begin 1, unknown 0
    with pytest.raises(DataError, match=r"\(-1, 2, 1, 0\), not \(0, 1, 2, 3\)") as caught:
        Subwords.load(path)
    assert "--pad_id=0 --eos_id=1 --bos_id=2 --unk_id=3" in caught.value.hint


@pytest.mark.parametrize("content", [None, b"", b"this is no model"])
def test_a_missing_or_damaged_vocabulary_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / FILE_NAME
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="vocabulary"):
        Subwords.load(path)
