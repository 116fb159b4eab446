"""Reading parallel text: what comes through, and what each error says."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from konvoi.data.text import MAX_LINE_BYTES, read_lines, read_pairs, read_tsv_pairs
from konvoi.errors import DataError

WRITERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
SENTENCES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r\0\ufeff"))


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", WRITERS)
def test_plain_and_packed_files_give_the_same_lines(tmp_path: Path, suffix: str) -> None:
    content = "Grüße.\r\n\nletzte Zeile ohne Ende".encode()
    path = write(tmp_path / f"text.de{suffix}", WRITERS[suffix](content))
    assert list(read_lines(path)) == ["Grüße.", "", "letzte Zeile ohne Ende"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(st.lists(SENTENCES, min_size=1))
def test_only_the_newline_ends_a_line(tmp_path: Path, sentences: list[str]) -> None:
    # U+2028, form feed and their like stay inside: str.splitlines() would shift all lines behind them.
    path = write(tmp_path / "text", "".join(f"{sentence}\n" for sentence in sentences).encode())
    assert list(read_lines(path)) == sentences


def test_a_byte_order_mark_is_not_part_of_the_first_word(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path / "text", b"\xef\xbb\xbfHallo\n"))) == ["Hallo"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("text", b"", "is empty"),
        ("text", b"eins\nzw\0ei\n", "line 2 holds a NUL byte"),
        ("text", b"eins\nzwei\nGr\xfc\xdfe\n", "line 3 is not UTF-8: byte 0xfc at position 3"),
        ("text", b"x" * (MAX_LINE_BYTES + 1), "line 1 is longer than"),
        ("text.gz", b"no gzip at all", "damaged after line 0"),
        ("text.gz", gzip.compress(b"eins\n" * 1000, mtime=0)[:-12], "damaged after line"),
        ("text.xz", b"no xz at all", "damaged after line 0"),
        ("text.xz", lzma.compress(b"eins\n" * 1000)[:-20], "damaged after line"),
    ],
)
def test_a_bad_file_is_named_with_its_line_and_a_remedy(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=problem) as caught:
        list(read_lines(path))
    assert str(path) in caught.value.problem
    assert caught.value.hint


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path / "train.en.gz", gzip.compress(b"one\n"))
    with pytest.raises(DataError, match=r'does not exist, did you mean "train\.en\.gz"\?'):
        list(read_lines(tmp_path / "train.en"))


def test_a_folder_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize(("num_sources", "num_targets"), [(3, 5), (5, 3)])
def test_unequal_files_are_named_with_both_counts(tmp_path: Path, num_sources: int, num_targets: int) -> None:
    source = write(tmp_path / "a.en", b"x\n" * num_sources)
    target = write(tmp_path / "a.de", b"y\n" * num_targets)
    with pytest.raises(DataError, match=rf"a\.en has {num_sources} lines but .*a\.de has {num_targets}"):
        list(read_pairs(source, target))


def test_pairs_come_line_by_line(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", b"one\ntwo\n"), write(tmp_path / "a.de", b"eins\nzwei\n")
    assert list(read_pairs(source, target)) == [("one", "eins"), ("two", "zwei")]


def test_a_third_column_is_ignored_and_a_missing_one_named(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", b"one\teins\tby someone\ntwo zwei\n")
    pairs = read_tsv_pairs(path)
    assert next(pairs) == ("one", "eins")
    with pytest.raises(DataError, match="line 2 has no tab"):
        next(pairs)
