"""Reading parallel text: every form, plain and packed, and what each error says."""

from __future__ import annotations

import gzip
import html
import json
import lzma
import pickle
import random
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.shared_data import shared_data

from konvoi.data.text import (
    BLOCK_BYTES,
    MAX_LINE_BYTES,
    BadLine,
    decode_line,
    form_of,
    pair_of,
    raw_lines,
    raw_rows,
    read_lines,
    read_pairs,
    read_rows,
    read_tsv_pairs,
)
from konvoi.errors import DataError, MachineError

WRITERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}
PACKED = [suffix for suffix in WRITERS if suffix]
# They pack badly, so that what is lost of a packed file leaves many whole lines before it.
RANDOM_LINES = b"".join(random.Random(number).randbytes(30).hex().encode() + b"\n" for number in range(20_000))
LANGUAGES = ("en", "de")
SENTENCES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r\0\ufeff"))
MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# Lines


@pytest.mark.parametrize("suffix", WRITERS)
def test_plain_and_packed_files_give_the_same_lines(tmp_path: Path, suffix: str) -> None:
    content = "Grüße.\r\n\nletzte Zeile ohne Ende".encode()
    path = write(tmp_path / f"text.de{suffix}", WRITERS[suffix](content))
    assert list(read_lines(path)) == ["Grüße.", "", "letzte Zeile ohne Ende"]


@pytest.mark.parametrize("suffix", WRITERS)
def test_lines_over_many_blocks_come_whole_and_in_order(tmp_path: Path, suffix: str) -> None:
    # 200,000 lines of 7 bytes or more: more than 5 blocks, whose ends fall anywhere in a line.
    lines = [f"line {number}".encode() for number in range(200_000)]
    path = write(tmp_path / f"text{suffix}", WRITERS[suffix](b"\r\n".join(lines) + b"\r\n"))
    assert sum(map(len, lines)) > 5 * BLOCK_BYTES
    assert list(raw_lines(path)) == lines


def test_a_line_end_cut_in_two_by_a_block_is_still_a_line_end(tmp_path: Path) -> None:
    path = write(tmp_path / "text", b"x" * (BLOCK_BYTES - 1) + b"\r\nnext\n")
    assert [len(line) for line in raw_lines(path)] == [BLOCK_BYTES - 1, 4]


@MANY
@given(st.lists(SENTENCES, min_size=1))
def test_only_the_newline_ends_a_line(tmp_path: Path, sentences: list[str]) -> None:
    # U+2028, form feed and their like stay inside: str.splitlines() would shift all lines behind them.
    path = write(tmp_path / "text", "".join(f"{sentence}\n" for sentence in sentences).encode())
    assert list(read_lines(path)) == sentences


def test_a_line_separator_inside_a_line_stays_there(tmp_path: Path) -> None:
    path = write(tmp_path / "text", "eins\u2028zwei\n\x0cdrei\x85\n".encode())
    assert list(read_lines(path)) == ["eins\u2028zwei", "\x0cdrei\x85"]


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_byte_order_mark_is_not_part_of_the_first_word(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"text{suffix}", WRITERS[suffix](b"\xef\xbb\xbfHallo\n\xef\xbb\xbfWelt\n"))
    # Only at the start of a file is it no text.
    assert list(read_lines(path)) == ["Hallo", "\ufeffWelt"]


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_a_long_line_is_cut_and_the_lines_after_it_keep_their_numbers(
    tmp_path: Path, suffix: str, line_end: bytes
) -> None:
    content = line_end.join([b"eins", b"x" * 3_000_000, b"drei", b"vier"])
    lines = list(raw_lines(write(tmp_path / f"text{suffix}", WRITERS[suffix](content))))
    assert [len(line) for line in lines] == [4, MAX_LINE_BYTES + 1, 4, 4]
    assert lines[2:] == [b"drei", b"vier"]


@pytest.mark.parametrize("line_end", [b"", b"\n", b"\r\n"])
def test_the_longest_line_is_read_and_one_byte_more_is_not(tmp_path: Path, line_end: bytes) -> None:
    longest = b"a\n" + b"x" * MAX_LINE_BYTES
    assert len(list(read_lines(write(tmp_path / "fits", longest + line_end)))) == 2
    with pytest.raises(DataError, match="line 2 is longer than 1,048,576 bytes"):
        list(read_lines(write(tmp_path / "too-long", longest + b"x" + line_end)))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_file_without_line_ends_does_not_fill_the_memory(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"text{suffix}", WRITERS[suffix](b"x" * 100_000_000))
    tracemalloc.start()
    lengths = [len(line) for line in raw_lines(path)]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert lengths == [MAX_LINE_BYTES + 1]
    assert peak_bytes < 50_000_000


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("text", b"", "is empty"),
        ("text.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("text.zst", zstandard.compress(b""), "is empty"),
        ("text", b"eins\nzw\0ei\n", "line 2 holds a NUL byte"),
        ("text", "eins".encode("utf-16"), "line 1 holds a NUL byte"),
        ("text", b"eins\nzwei\nGr\xfc\xdfe\n", "line 3 is not UTF-8: byte 0xfc at position 3"),
        ("text", b"x" * (MAX_LINE_BYTES + 1), "line 1 is longer than"),
        ("text.gz", b"no gzip at all", "damaged after line 0"),
        ("text.xz", b"no xz at all", "damaged after line 0"),
        ("text.zst", b"no zstd at all", "damaged after line 0"),
        ("text.zst", zstandard.compress(b"eins\n") + b"behind the end", "damaged after line 1"),
        ("text.sgm", b"<doc>eins</doc>\n", "has no <seg>"),
        ("text.sgm", b"<seg>eins</seg><seg>zwei", "damaged after line 1: the last <seg> has no </seg>"),
        ("text.sgm", b"<seg>eins</seg><seg>zw\xfc</seg>", "sentence 2 is not UTF-8"),
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


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("num_lost", [1, 12, 10_000])
def test_a_packed_file_that_is_cut_short_is_damaged_and_not_just_shorter(
    tmp_path: Path, suffix: str, num_lost: int
) -> None:
    packed = WRITERS[suffix](RANDOM_LINES)
    path = write(tmp_path / f"text{suffix}", packed[:-num_lost])
    lines: list[bytes] = []
    with pytest.raises(DataError, match=r"text\.\w+: damaged after line \d+: ") as caught:
        lines.extend(raw_lines(path))
    assert f"after line {len(lines)}:" in caught.value.problem
    assert f"its size is {len(packed) - num_lost:,} bytes" in caught.value.hint


@pytest.mark.parametrize("suffix", PACKED)
def test_lines_before_the_damage_come_out(tmp_path: Path, suffix: str) -> None:
    # 5000 lines of 61 bytes are little more than one block, of which the half is there.
    content = RANDOM_LINES[: 5000 * 61]
    packed = WRITERS[suffix](content)
    lines = raw_lines(write(tmp_path / f"text{suffix}", packed[: len(packed) // 2]))
    assert [next(lines) for _ in range(1000)] == content.split(b"\n")[:1000]


def test_a_zstd_file_of_several_frames_is_read_to_its_end(tmp_path: Path) -> None:
    frames = b"".join(zstandard.compress(f"Zeile {number}\n".encode()) for number in range(1000))
    lines = list(read_lines(write(tmp_path / "text.zst", frames)))
    assert lines == [f"Zeile {number}" for number in range(1000)]


def test_without_the_package_a_zstd_file_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "text.zst", zstandard.compress(b"eins\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MachineError, match="the package zstandard is needed") as caught:
        list(read_lines(path))
    assert "pip install zstandard" in caught.value.hint


@pytest.mark.parametrize("name", ["train.en", "train.en.zst"])
def test_a_missing_file_suggests_its_neighbour(tmp_path: Path, name: str) -> None:
    write(tmp_path / "train.en.gz", gzip.compress(b"one\n"))
    with pytest.raises(DataError, match=r'does not exist, did you mean "train\.en\.gz"\?'):
        list(read_lines(tmp_path / name))


def test_a_folder_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        list(read_lines(tmp_path))


# SGML and IWSLT


NEWSTEST = """<!DOCTYPE refset SYSTEM "ftp://example.org/mteval.dtd">
<refset setid="newstest2014" srclang="any" trglang="en">
<doc sysid="ref" docid="bbc.381790" genre="news" origlang="en">
<hl>
<seg id="1">Orlando Bloom &amp; Miranda Kerr</seg>
</hl>
<p>
<seg id="2">&quot;Yes&quot; &#8211; 1 &lt; 2 &#x26; 3 &gt; 2</seg><SEG ID="3">&amp;lt; stays</SEG>
<seg id="4">
  over
  lines
</seg>
<seg></seg>
<segment>no</segment>
</p>
</doc>
</refset>
"""
SEGMENTS = ["Orlando Bloom & Miranda Kerr", '"Yes" – 1 < 2 & 3 > 2', "&lt; stays", "over lines", ""]  # noqa: RUF001


@pytest.mark.parametrize("name", ["test.sgm", "test.sgml", "test.XML", "test.sgm.gz", "test.sgm.zst"])
def test_sgml_gives_its_segments_in_the_order_of_the_file(tmp_path: Path, name: str) -> None:
    packing = WRITERS.get(Path(name).suffix, bytes)
    assert list(read_lines(write(tmp_path / name, packing(NEWSTEST.encode())))) == SEGMENTS


@MANY
@given(st.lists(SENTENCES, min_size=1), st.sampled_from(["", "\n", " x\r\n"]))
def test_what_is_escaped_into_sgml_comes_out_of_it(tmp_path: Path, sentences: list[str], between: str) -> None:
    text = between.join(f'<seg id="{i}">{html.escape(sentence)}</seg>' for i, sentence in enumerate(sentences))
    # White space of ASCII is collapsed, because a segment may be spread over lines.
    expected = [b" ".join(sentence.encode().split()).decode() for sentence in sentences]
    assert list(read_lines(write(tmp_path / "x.sgm", text.encode()))) == expected


def test_segments_over_many_blocks_come_whole(tmp_path: Path) -> None:
    sentences = [f"This is segment number {number}." for number in range(30_000)]
    text = "\n".join(f'<seg id="{i}"> {sentence} </seg>' for i, sentence in enumerate(sentences))
    assert len(text) > 5 * BLOCK_BYTES
    assert list(read_lines(write(tmp_path / "x.sgm", text.encode()))) == sentences


@pytest.mark.parametrize("num_padding", range(BLOCK_BYTES - 30, BLOCK_BYTES))
def test_a_tag_cut_in_two_by_a_block_is_still_a_tag(tmp_path: Path, num_padding: int) -> None:
    text = b" " * num_padding + b"<seg id='1'>eins</seg>\n<seg>zwei</seg>"
    assert list(raw_lines(write(tmp_path / "x.sgm", text))) == [b"eins", b"zwei"]


def test_a_segment_that_is_too_long_is_cut_and_those_after_it_are_read(tmp_path: Path) -> None:
    text = b"<seg>eins</seg><seg>" + b"x" * 5_000_000 + b"</seg><seg>drei</seg>"
    assert [len(line) for line in raw_lines(write(tmp_path / "x.sgm", text))] == [4, MAX_LINE_BYTES + 1, 4]


@pytest.mark.parametrize("num_letters_ahead", range(8))
def test_the_end_of_a_segment_that_is_too_long_may_be_cut_in_two(tmp_path: Path, num_letters_ahead: int) -> None:
    opening = b"<seg>" + b"x" * (12 * BLOCK_BYTES - len("<seg>") - num_letters_ahead)
    lines = list(raw_lines(write(tmp_path / "x.sgm", opening + b"</seg><seg>drei</seg>")))
    assert [len(line) for line in lines] == [MAX_LINE_BYTES + 1, 4]


TALK = """<url>http://www.ted.com/talks/lang/{0}/x.html</url>
<keywords>talks, design</keywords>
<speaker>Jane Doe</speaker>
<talkid>{1}</talkid>
<title>Title {0}</title>
<description>TED Talk: {0} & more</description>
<reviewer href="http://example.org/1">A</reviewer>
<translator>B</translator>
 First {0} sentence.
 <i>Second</i> {0} sentence.
"""


def test_iwslt_gives_titles_descriptions_and_what_is_spoken_on_both_sides(tmp_path: Path) -> None:
    for language, talk in (("de", "1"), ("en", "1")):
        write(tmp_path / f"train.tags.de-en.{language}", (TALK.format(language, talk) * 2).encode())
    pairs = list(read_pairs(tmp_path / "train.tags.de-en.de", tmp_path / "train.tags.de-en.en"))
    assert pairs[:4] == [
        ("Title de", "Title en"),
        ("TED Talk: de & more", "TED Talk: en & more"),
        ("First de sentence.", "First en sentence."),
        ("<i>Second</i> de sentence.", "<i>Second</i> en sentence."),
    ]
    assert pairs[4:] == pairs[:4]


def test_tags_are_text_in_a_file_of_another_name(tmp_path: Path) -> None:
    lines = list(read_lines(write(tmp_path / "train.de", TALK.encode())))
    assert len(lines) == 10


# Pairs


@pytest.mark.parametrize(("num_sources", "num_targets"), [(3, 5), (5, 3), (1, 2), (2, 1)])
def test_unequal_files_are_named_with_both_counts(tmp_path: Path, num_sources: int, num_targets: int) -> None:
    source = write(tmp_path / "a.en", b"x\n" * num_sources)
    target = write(tmp_path / "a.de", b"y\n" * num_targets)
    with pytest.raises(DataError, match=rf"a\.en has {num_sources} lines but .*a\.de has {num_targets}$"):
        list(read_pairs(source, target))


def test_pairs_come_line_by_line(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", b"one\ntwo\n"), write(tmp_path / "a.de", b"eins\nzwei\n")
    assert list(read_pairs(source, target)) == [("one", "eins"), ("two", "zwei")]
    assert list(raw_rows((source, target))) == [(b"one", b"eins"), (b"two", b"zwei")]


def test_the_file_with_the_bad_line_is_named(tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", b"one\ntwo\n"), write(tmp_path / "a.de", b"eins\nzw\xf6i\n")
    with pytest.raises(DataError, match=r"a\.de: line 2 is not UTF-8: byte 0xf6"):
        list(read_pairs(source, target))
    with pytest.raises(DataError, match=r"a\.de: line 2 is not UTF-8: byte 0xf6"):
        list(read_pairs(target, source))


def test_a_third_column_is_ignored_and_a_missing_one_named(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", b"one\teins\tby someone\twho\ntwo zwei\n")
    pairs = read_tsv_pairs(path)
    assert next(pairs) == ("one", "eins")
    with pytest.raises(DataError, match="line 2 has no tab"):
        next(pairs)


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (("a.en", "a.de"), "lines"),
        (("a.jsonl.gz", "b.jsonl.gz"), "lines"),
        (("a.tsv",), "tsv"),
        (("a.tsv.gz",), "tsv"),
        (("a.txt",), "tsv"),
        (("a.jsonl",), "jsonl"),
        (("a.JSONL.zst",), "jsonl"),
    ],
)
def test_the_form_follows_from_the_names(names: tuple[str, ...], form: str) -> None:
    assert form_of(tuple(map(Path, names))) == form


@pytest.mark.parametrize("name", ["x.tsv.gz", "x.tsv.xz", "x.txt.zst", "x.txt"])
def test_one_file_of_columns_may_be_packed(tmp_path: Path, name: str) -> None:
    packing = WRITERS.get(Path(name).suffix, bytes)
    path = write(tmp_path / name, packing(b"one\teins\r\ntwo\tzwei\r\n"))
    assert list(read_rows((path,), LANGUAGES)) == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(
    "record",
    [
        {"translation": {"en": "one", "de": "eins", "fr": "un"}},
        {"en": "one", "de": "eins"},
        {"source": "one", "target": "eins"},
        {"id": 7, "translation": "machine", "de": "eins", "en": "one"},
    ],
)
@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_json_lines_of_each_kind_give_the_pair(tmp_path: Path, record: dict[str, object], suffix: str) -> None:
    path = write(tmp_path / f"x.jsonl{suffix}", WRITERS[suffix](f"{json.dumps(record)}\n".encode() * 2))
    assert list(read_rows((path,), LANGUAGES)) == [("one", "eins")] * 2


def test_the_languages_say_which_side_is_the_source() -> None:
    row = (b'{"en": "one", "de": "eins"}',)
    assert pair_of(row, "jsonl", ("de", "en")) == ("eins", "one")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "is no JSON: "),
        (b"[" * 100_000, "is no JSON: "),
        (b'["one", "eins"]', "is no JSON object"),
        (b'{"en": "one", "fr": "un"}', 'lacks a text "de"; its keys are: en, fr'),
        (b'{"translation": {"fr": "un"}}', 'lacks a text "en" and a text "de"; its keys are: fr'),
        (b'{"en": "one", "de": 1}', 'lacks a text "de"; its keys are: en, de'),
        (b"{}", "its keys are: none"),
        (b'{"en": "o\\u0000ne", "de": "eins"}', "holds a NUL character"),
        (b'{"en": "one", "de": "\\ud800"}', r"holds half a character: \\ud800"),
    ],
)
def test_a_bad_json_line_says_what_is_wrong(tmp_path: Path, line: bytes, problem: str) -> None:
    path = write(tmp_path / "x.jsonl", b'{"en": "one", "de": "eins"}\n' + line)
    with pytest.raises(DataError, match=f"line 2 {problem}" if problem.startswith("is") else problem) as caught:
        list(read_rows((path,), LANGUAGES))
    assert "line 2 " in caught.value.problem
    assert caught.value.hint


def test_a_line_end_inside_json_becomes_a_blank() -> None:
    # Or the sentence would be two lines of every text file that is made from it.
    row = (b'{"en": "one\\r\\ntwo\\nthree", "de": "eins"}',)
    assert pair_of(row, "jsonl", LANGUAGES) == ("one two three", "eins")


@pytest.mark.parametrize("raw", [b"\xff", b"a\0b", b"x" * (MAX_LINE_BYTES + 1)])
def test_a_bad_line_can_come_from_another_process(raw: bytes) -> None:
    with pytest.raises(BadLine) as caught:
        pair_of((b"good", raw), "lines", LANGUAGES)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.problem, again.hint, again.side) == (caught.value.problem, caught.value.hint, 1)


@given(st.binary(max_size=50))
def test_a_line_is_decoded_exactly_or_refused(raw: bytes) -> None:
    try:
        assert decode_line(raw).encode() == raw
    except BadLine as bad:
        assert b"\0" in raw or raw.decode("utf-8", "ignore").encode() != raw
        assert bad.hint


# Real corpora


def test_the_lines_of_europarl_are_counted_right() -> None:
    files = shared_data("europarl/europarl-direct.en.xz"), shared_data("europarl/europarl-direct.de.xz")
    assert sum(1 for _ in raw_rows(files)) == 692_034


def test_tatoeba_is_read_as_columns(tmp_path: Path) -> None:
    with zipfile.ZipFile(shared_data("tatoeba-en-de/deu-eng.zip")) as archive:
        archive.extract("deu.txt", tmp_path)
    pairs = list(read_rows((tmp_path / "deu.txt",), LANGUAGES))
    assert len(pairs) == 169_813
    assert len({source for source, _ in pairs}) == 135_534
