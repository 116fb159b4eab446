"""Reads parallel text of every form, plain or packed, in bounded memory.

Raw lines are bytes, read fast by one process; decoding them can fail line by line and is the business of whoever
takes them: BadLine says what is wrong with one line. The strict readers turn it into an error that names the file,
the line and the remedy.
"""

from __future__ import annotations

import gzip
import html
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from konvoi.errors import DataError, MachineError, did_you_mean
from konvoi.fetch.sets import PACKED_SUFFIXES

Pair = tuple[str, str]

SGML_SUFFIXES = (".sgm", ".sgml", ".xml")
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
# The training files of IWSLT are named so: train.tags.de-en.de
TAGGED_PREFIX = "train.tags."
# A file without line ends would else be read into memory as a whole.
MAX_LINE_BYTES = 1 << 20
# No larger than the longest line, so that of the lines that end in a block only the first can be too long.
BLOCK_BYTES = 1 << 18
# One zstd block of 4 bytes can stand for 128 KiB: little input at a time bounds what a malicious file unpacks to.
ZSTD_INPUT_BYTES = 1 << 8
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

SEGMENT = re.compile(rb"<seg(?:\s[^>]*)?>(.*?)</seg\s*>", re.DOTALL | re.IGNORECASE)
SEGMENT_START = re.compile(rb"<seg(?:[\s>]|\Z)", re.IGNORECASE)
# As long as the longest thing that the end of a block may cut in two: "</seg  >".
SEGMENT_EDGE_BYTES = 16
ENTITY = re.compile(rb"&(?:amp|lt|gt|quot|apos|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});")
TALK_TAG = re.compile(rb"\s*</?(?:url|talkid|keywords|speaker|reviewer|translator|doc)\b")
TEXT_TAG = re.compile(rb"</?(?:title|description)>")


class BadLine(Exception):
    """What is wrong with a line, for a sentence that begins with the line's name; and in which of the files."""

    def __init__(self, problem: str, hint: str = "", side: int = 0) -> None:
        super().__init__(problem)
        self.problem, self.hint, self.side = problem, hint, side


def raw_lines(path: Path) -> Iterator[bytes]:
    """The sentences of a file as bytes, without line ends; only "\\n" (or "\\r\\n") ends a line.

    A line of more than MAX_LINE_BYTES comes out cut to one byte more, which decode_line refuses. SGML files give
    their segments, and IWSLT's training files what is spoken, the titles and the descriptions.
    """
    number = 0
    try:
        for sentences in _batches(path):
            yield from sentences
            number += len(sentences)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: damaged after line {number}: {error}",
            hint=f"copy or download {path.name} again; its size is {path.stat().st_size:,} bytes",
        ) from None
    if number == 0:
        what = "has no <seg>" if _is_sgml(path) else "is empty"
        raise DataError(f"{path} {what}", hint="give a file with one sentence a line, or in <seg> and </seg>")


def raw_rows(files: tuple[Path, ...]) -> Iterator[tuple[bytes, ...]]:
    """The raw lines of one file, or of two files side by side, which must have equally many."""
    if len(files) == 1:
        yield from zip(raw_lines(files[0]))
        return
    source_path, target_path = files
    sources, targets = raw_lines(source_path), raw_lines(target_path)
    for number, row in enumerate(itertools.zip_longest(sources, targets)):
        if None in row:
            num_more = 1 + _count(sources) + _count(targets)
            num_sources, num_targets = (number, number + num_more) if row[0] is None else (number + num_more, number)
            _raise_unequal(source_path, num_sources, target_path, num_targets)
        yield row


def decode_line(raw: bytes) -> str:
    """The text of a raw line."""
    if len(raw) > MAX_LINE_BYTES:
        raise BadLine(f"is longer than {MAX_LINE_BYTES:,} bytes", 'give one sentence a line, each ended by "\\n"')
    if b"\0" in raw:
        raise BadLine(
            "holds a NUL byte, so this is no UTF-8 text",
            f"if it is UTF-16: iconv -f UTF-16 -t UTF-8; if it is packed, name it {', '.join(PACKED_SUFFIXES)}",
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine(
            f"is not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start + 1}",
            "convert the file, for example: iconv -f ISO-8859-1 -t UTF-8",
        ) from None


def form_of(files: tuple[Path, ...]) -> str:
    """What a raw row of these files is: "lines" of two files, or a line of one, "tsv" or "jsonl"."""
    if len(files) == 2:
        return "lines"
    assert len(files) == 1, files
    return "jsonl" if _suffix(files[0]) in JSON_SUFFIXES else "tsv"


def reading_of(path: Path) -> str:
    """How a file's bytes become lines, which its name decides."""
    kind = "sgml" if _is_sgml(path) else "tagged" if _is_tagged(path) else "plain"
    return kind + (path.suffix if path.suffix in PACKED_SUFFIXES else "")


def pair_of(row: tuple[bytes, ...], form: str, languages: tuple[str, str]) -> Pair:
    """The source and target sentence of a raw row, as they stand; BadLine where there is none."""
    if form == "lines":
        return decode_line(row[0]), _decode_target(row[1])
    line = decode_line(row[0])
    return _pair_of_json(line, languages) if form == "jsonl" else _pair_of_columns(line)


def read_rows(files: tuple[Path, ...], languages: tuple[str, str]) -> Iterator[Pair]:
    """All pairs of one or two files; a bad line is an error."""
    form = form_of(files)
    for number, row in enumerate(raw_rows(files), start=1):
        try:
            yield pair_of(row, form, languages)
        except BadLine as bad:
            raise _located(bad, files[bad.side], number) from None


def read_pairs(source_path: Path, target_path: Path) -> Iterator[Pair]:
    """Line by line from two files, which must have equally many lines."""
    return read_rows((source_path, target_path), ("source", "target"))


def read_tsv_pairs(path: Path) -> Iterator[Pair]:
    """The first two columns of a tab-separated file."""
    return read_rows((path,), ("source", "target"))


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file."""
    for number, raw in enumerate(raw_lines(path), start=1):
        try:
            yield decode_line(raw)
        except BadLine as bad:
            raise _located(bad, path, number) from None


def _located(bad: BadLine, path: Path, number: int) -> DataError:
    # Markup puts several sentences on a line, or one on several.
    unit = "sentence" if _is_sgml(path) or _is_tagged(path) else "line"
    return DataError(f"{path}: {unit} {number} {bad.problem}", hint=bad.hint)


def _decode_target(raw: bytes) -> str:
    try:
        return decode_line(raw)
    except BadLine as bad:
        bad.side = 1
        raise


def _pair_of_columns(line: str) -> Pair:
    columns = line.split("\t", 2)
    if len(columns) < 2:
        raise BadLine("has no tab", "each line must hold the source sentence, a tab, and the target sentence")
    return columns[0], columns[1]


def _pair_of_json(line: str, languages: tuple[str, str]) -> Pair:
    """Of {"translation": {"en": ..., "de": ...}}, {"en": ..., "de": ...} or {"source": ..., "target": ...}."""
    source, target = languages
    example = f'each line must be like {{"{source}": "...", "{target}": "..."}}'
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"is no JSON: {error}", example) from None
    if isinstance(record, dict) and isinstance(record.get("translation"), dict):
        record = record["translation"]
    if not isinstance(record, dict):
        raise BadLine("is no JSON object", example)
    for keys in (languages, ("source", "target")):
        if all(isinstance(record.get(key), str) for key in keys):
            return _text_of_json(record[keys[0]]), _text_of_json(record[keys[1]])
    raise BadLine(f"lacks {_lacking(record, languages)}; its keys are: {', '.join(record) or 'none'}", example)


def _lacking(record: dict[str, Any], languages: tuple[str, str]) -> str:
    return " and ".join(f'a text "{language}"' for language in languages if not isinstance(record.get(language), str))


def _text_of_json(text: str) -> str:
    """JSON can spell what no line of text can hold: line ends, NUL, halves of characters."""
    if "\0" in text:
        raise BadLine("holds a NUL character", "remove \\u0000 from it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise BadLine(f"holds half a character: \\u{code:04x}", "write the character itself, in UTF-8") from None
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def _batches(path: Path) -> Iterator[list[bytes]]:
    """The sentences of a file, many at a time."""
    blocks = _without_mark(_blocks(path))
    if _is_sgml(path):
        yield from _segments(blocks)
    elif _is_tagged(path):
        yield from map(_spoken, _lines(blocks))
    else:
        yield from _lines(blocks)


def _lines(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Whole lines; what is left of a line that is too long has the right number, and is still too long."""
    rest = b""
    for block in blocks:
        text = rest + block
        *lines, rest = text.split(b"\n")
        rest = rest[: MAX_LINE_BYTES + 2]
        yield _finished(lines, may_have_returns=b"\r" in text)
    if rest:
        yield _finished([rest], may_have_returns=True)


def _finished(lines: list[bytes], may_have_returns: bool) -> list[bytes]:
    if may_have_returns:
        lines = [line.removesuffix(b"\r") for line in lines]
    if lines and len(lines[0]) > MAX_LINE_BYTES:
        lines[0] = lines[0][: MAX_LINE_BYTES + 1]
    return lines


def _segments(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """What stands between <seg ...> and </seg>, on one line each."""
    rest = b""
    for block in blocks:
        text, end = rest + block, 0
        segments = []
        for match in SEGMENT.finditer(text):
            segments.append(_plain_segment(match[1]))
            end = match.end()
        yield segments
        rest = _open_segment(text[end:])
    if SEGMENT_START.search(rest):
        raise EOFError("the last <seg> has no </seg>")


def _open_segment(text: bytes) -> bytes:
    """The part of the text that the next block may complete, cut where it is too long anyhow."""
    start = SEGMENT_START.search(text)
    text = text[start.start() :] if start else text[-SEGMENT_EDGE_BYTES:]
    if len(text) <= 2 * MAX_LINE_BYTES:
        return text
    return text[: 2 * MAX_LINE_BYTES - SEGMENT_EDGE_BYTES] + text[-SEGMENT_EDGE_BYTES:]


def _plain_segment(segment: bytes) -> bytes:
    text = ENTITY.sub(lambda match: html.unescape(match[0].decode("ascii")).encode(), segment)
    return b" ".join(text.split())[: MAX_LINE_BYTES + 1]


def _spoken(lines: list[bytes]) -> list[bytes]:
    """Without what IWSLT says about a talk; both languages have these lines at the same places."""
    return [TEXT_TAG.sub(b"", line).strip() for line in lines if not TALK_TAG.match(line)]


def _without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    yield next(blocks, b"").removeprefix(BYTE_ORDER_MARK)
    yield from blocks


def _blocks(path: Path) -> Iterator[bytes]:
    """The unpacked bytes of a file, some at a time."""
    if path.suffix == ".zst":
        yield from _zstd_blocks(path)
        return
    openers: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open}
    with _open(path, openers.get(path.suffix, _open_plain)) as stream:
        # read1 gives what comes before a damaged place; read would lose it.
        while block := stream.read1(BLOCK_BYTES):  # type: ignore[attr-defined]
            yield block


def _zstd_blocks(path: Path) -> Iterator[bytes]:
    """Not by zstandard's own reader, which takes a file that is cut short for a whole one (0.25)."""
    with _open(path, _open_plain) as packed:
        zstandard = _zstandard(path)
        frame = zstandard.ZstdDecompressor().decompressobj()
        is_whole = False
        try:
            while given := packed.read(ZSTD_INPUT_BYTES):
                while given:
                    if is_whole:
                        frame = zstandard.ZstdDecompressor().decompressobj()
                    if block := frame.decompress(given):
                        yield from _in_blocks(block)
                    is_whole, given = frame.eof, frame.unused_data
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from None
    if not is_whole:
        raise EOFError("the end of the packed data is missing")


def _in_blocks(text: bytes) -> Iterator[bytes]:
    for start in range(0, len(text), BLOCK_BYTES):
        yield text[start : start + BLOCK_BYTES]


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise MachineError(
            f"{path}: to unpack it, the package zstandard is needed",
            hint=f"pip install zstandard, or unpack it yourself: zstd -d {path.name}",
        ) from None
    return zstandard


def _open_plain(path: Path) -> BinaryIO:
    return path.open("rb")


def _open(path: Path, opener: Callable[[Path], Any]) -> BinaryIO:
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file", hint="name a text file inside it")
    try:
        return cast(BinaryIO, opener(path))
    except FileNotFoundError:
        siblings = [sibling.name for sibling in path.parent.glob("*")] if path.parent.is_dir() else []
        near = did_you_mean(path.name, siblings)
        packed = ", ".join(PACKED_SUFFIXES)
        raise DataError(f"{path} does not exist{near}", hint=f"check the path; {packed} files may be named") from None
    except PermissionError:
        raise DataError(f"{path} may not be read", hint=f"allow it: chmod u+r {path}") from None


def _suffix(path: Path) -> str:
    """The suffix below that of the packing: .sgm of newstest2014.sgm.gz"""
    name = path.with_suffix("") if path.suffix in PACKED_SUFFIXES else path
    return name.suffix.lower()


def _is_sgml(path: Path) -> bool:
    return _suffix(path) in SGML_SUFFIXES


def _is_tagged(path: Path) -> bool:
    return path.name.startswith(TAGGED_PREFIX)


def _count(lines: Iterator[bytes]) -> int:
    return sum(1 for _ in lines)


def _raise_unequal(source_path: Path, num_sources: int, target_path: Path, num_targets: int) -> NoReturn:
    raise DataError(
        f"{source_path} has {num_sources:,} lines but {target_path} has {num_targets:,}",
        hint="line n of one file must translate line n of the other; look for a lost or an extra line end",
    )
