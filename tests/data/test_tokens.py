"""Tokens on disk: what is written is read, and damage is noticed."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from konvoi.data.tokens import TokenFile, TokenWriter, lengths_path, tokens_path
from konvoi.errors import DataError

SENTENCES = [[5, 6, 1], [1], [7, 8, 9, 1]]


def write(prefix: Path, *chunks: list[list[int]], num_pieces: int = 100) -> TokenFile:
    with TokenWriter(prefix, num_pieces) as writer:
        for chunk in chunks:
            writer.write(chunk)
    return TokenFile(prefix)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.lists(st.integers(0, 99_999)), max_size=5), max_size=4))
def test_sentences_survive_the_round_trip(chunks: list[list[list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder) / "train.en", *chunks, num_pieces=100_000)
        assert [list(file[i]) for i in range(len(file))] == [sentence for chunk in chunks for sentence in chunk]


def test_lengths_say_where_sentences_lie(tmp_path: Path) -> None:
    file = write(tmp_path / "train.en", SENTENCES)
    assert file.lengths.tolist() == [3, 1, 4]
    assert file.lengths.dtype == np.uint16
    # 3 + 1 + 4
    assert (len(file), file.num_tokens) == (3, 8)
    assert file[-1].tolist() == [7, 8, 9, 1]
    with pytest.raises(IndexError):
        file[3]


@pytest.mark.parametrize(("num_pieces", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_two_bytes_a_token_as_long_as_the_vocabulary_allows(tmp_path: Path, num_pieces: int, dtype: type) -> None:
    largest = num_pieces - 1
    file = write(tmp_path / "train.en", [[largest]], num_pieces=num_pieces)
    assert file.dtype == dtype
    assert file[0].tolist() == [largest]


def test_sentences_are_read_in_any_order_over_many_blocks(tmp_path: Path) -> None:
    # sentence i is i % 7 + 1 times the number i; 1,000 sentences are 15 blocks of 64 and a rest
    sentences = [[i] * (i % 7 + 1) for i in range(1000)]
    file = write(tmp_path / "train.en", sentences[:300], sentences[300:], num_pieces=1000)
    wanted = [999, 0, 63, 64, 65, 127, 640, 64]
    assert file.read(np.array(wanted)).tolist() == [token for i in wanted for token in sentences[i]]
    assert all(file[i].tolist() == sentences[i] for i in range(1000))


def test_a_very_long_sentence_is_kept_whole(tmp_path: Path) -> None:
    file = write(tmp_path / "train.en", [[5], [7] * 70_000, [6]])
    assert file.lengths.dtype == np.uint32
    assert (len(file[1]), file[2].tolist()) == (70_000, [6])


def test_the_share_of_a_token(tmp_path: Path) -> None:
    file = write(tmp_path / "train.en", [[3, 5, 1], [3, 1]])
    # two of five
    assert file.share_of(3) == 0.4
    assert file.share_of(9) == 0.0


def test_sentences_that_lie_one_after_another_are_written_as_they_are(tmp_path: Path) -> None:
    prefix = tmp_path / "train.en"
    with TokenWriter(prefix, 100) as writer:
        writer.write([[7, 1]])
        writer.write_encoded(np.array([8, 1, 9, 9, 1], dtype=np.uint16), np.array([2, 3]))
    file = TokenFile(prefix)
    assert [file[i].tolist() for i in range(3)] == [[7, 1], [8, 1], [9, 9, 1]]


def test_a_pickle_carries_the_path_and_not_the_tokens(tmp_path: Path) -> None:
    file = write(tmp_path / "train.en", [[7] * 100_000])
    content = pickle.dumps(file)
    assert len(content) < 1000
    assert pickle.loads(content)[0].tolist() == [7] * 100_000


@pytest.mark.parametrize("path_of", [tokens_path, lengths_path])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_a_damaged_file_is_named(tmp_path: Path, path_of: object, damage: str) -> None:
    prefix = tmp_path / "train.en"
    write(prefix, SENTENCES)
    assert callable(path_of)
    path = path_of(prefix)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else path.read_bytes()[:-3])
    with pytest.raises(DataError, match=path.name) as caught:
        TokenFile(prefix)
    assert "prepare" in caught.value.hint


def test_a_writer_that_fails_leaves_nothing_to_open(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), TokenWriter(tmp_path / "train.en", 100) as writer:
        writer.write(SENTENCES)
        raise RuntimeError
    with pytest.raises(DataError, match="is missing"):
        TokenFile(tmp_path / "train.en")
