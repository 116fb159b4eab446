"""konvoi translate: one line in, one line out, in order and in bounded memory."""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

import typer

from konvoi.bundle.format import is_bundle, open_bundle
from konvoi.bundle.interfaces import Translator
from konvoi.bundle.sentences import join, split
from konvoi.commands.output import progress_display
from konvoi.config.sections import MAX_BEAM
from konvoi.data.text import MAX_LINE_BYTES, raw_lines
from konvoi.errors import DataError, UserError
from konvoi.stages import Report, silent

# Enough lines of like length for full batches; at a keyboard every line is answered at once.
CHUNK_LINES = 1024


def translate(
    path: Path,
    checkpoint: str,
    *,
    text: list[str],
    input_file: Path | None,
    output_file: Path | None,
    beam: int | None,
    num_best: int = 1,
    documents: bool = False,
    variant: str | None = None,
) -> None:
    if documents and num_best > 1:
        raise UserError("a document has one translation", hint="give either --documents or --num-best")
    for option, value in (("--beam", beam or 1), ("--num-best", num_best)):
        if value > MAX_BEAM:
            raise UserError(f"{option} {value} is too many", hint=f"at most {MAX_BEAM}; 4 or 5 is usual for --beam")
    with closing(open_any(path, variant, checkpoint)) as translator:
        answers = _Answers(translator, beam, num_best)
        is_keyboard = not text and input_file is None and sys.stdin.isatty()
        if is_keyboard:
            typer.echo("a sentence a line; Ctrl-D ends", err=True)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Whatever the locale says: a translation has letters that it may lack.
            sys.stdout.reconfigure(encoding="utf-8")
        lines = _lines(text, input_file)
        chunks = _chunks(lines, 1 if is_keyboard else CHUNK_LINES, at_paragraphs=documents and not is_keyboard)
        # Where the translations go to the terminal themselves, no bar is needed.
        with (
            progress_display() if input_file and output_file else nullcontext(silent) as report,
            _beside(output_file) if output_file else nullcontext(sys.stdout) as output,
        ):
            for chunk in _reported(chunks, report, input_file):
                output.writelines(f"{line}\n" for line in (answers.document(chunk) if documents else answers(chunk)))
                output.flush()


def open_any(path: Path, variant: str | None, checkpoint: str) -> Translator:
    """Of a bundle, or of a run, which alone needs torch."""
    if is_bundle(path):
        from konvoi.bundle.translator import open_translator

        return open_translator(open_bundle(path), variant)
    from konvoi.export.run_translator import open_run_translator

    if variant:
        raise UserError(f"{path} is a run: it has no variants", hint=f"konvoi export {path} --to DIR makes them")
    return open_run_translator(path, checkpoint)


class _Answers:
    """Lines of text for lines of text."""

    def __init__(self, translator: Translator, beam: int | None, num_best: int) -> None:
        self.translator, self.beam, self.num_best = translator, beam, num_best
        self.num_lines = 0

    def __call__(self, lines: list[str]) -> Iterator[str]:
        """A line each, or in Moses' form: number ||| translation ||| score."""
        found = self.translator.translate(lines, beam=self.beam, num_best=self.num_best)
        for number, translations in enumerate(found, start=self.num_lines):
            if self.num_best == 1:
                yield translations[0].text
            else:
                yield from (f"{number} ||| {one.text} ||| {one.score:.4f}" for one in translations)
        self.num_lines += len(lines)

    def document(self, lines: list[str]) -> list[str]:
        """Paragraphs, by their sentences, with all white space between them."""
        parts = split("\n".join(lines))
        found = self.translator.translate([part.sentence for part in parts], beam=self.beam)
        return join(parts, [translations[0].text for translations in found]).split("\n")


def _chunks(lines: Iterator[str], num_lines: int, *, at_paragraphs: bool) -> Iterator[list[str]]:
    while chunk := list(itertools.islice(lines, num_lines)):
        # A sentence may go over lines, but not over the end of a paragraph.
        while at_paragraphs and chunk[-1].strip() and len(chunk) < 2 * num_lines:
            if (line := next(lines, None)) is None:
                break
            chunk.append(line)
        yield chunk


def _reported(chunks: Iterator[list[str]], report: Report, input_file: Path | None) -> Iterator[list[str]]:
    # What is no file, as a pipe, can be read only once.
    is_counted = input_file and input_file.is_file() and report is not silent
    total = sum(1 for _ in raw_lines(input_file)) if input_file and is_counted else None
    num_done = 0
    for chunk in chunks:
        yield chunk
        num_done += len(chunk)
        report("translating", num_done, total)


def _lines(text: list[str], input_file: Path | None) -> Iterator[str]:
    if text:
        return (line for sentence in text for line in sentence.split("\n"))
    if input_file:
        return _decoded(raw_lines(input_file), str(input_file))
    return _decoded((raw.removesuffix(b"\n").removesuffix(b"\r") for raw in sys.stdin.buffer), "standard input")


def _decoded(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Not as a corpus is read: control characters, or a long line, are no reason to translate nothing."""
    for number, raw in enumerate(lines, start=1):
        try:
            if len(raw) > MAX_LINE_BYTES:
                problem = f"{name}: line {number} is longer than {MAX_LINE_BYTES:,} bytes"
                raise DataError(problem, hint="give one sentence or paragraph a line")
            yield raw.decode("utf-8")
        except UnicodeDecodeError:
            raise DataError(
                f"{name}: line {number} is not UTF-8", hint="convert it: iconv -f ISO-8859-1 -t UTF-8"
            ) from None


@contextmanager
def _beside(path: Path) -> Iterator[TextIO]:
    """Takes its name only when it is whole: a stopped translation leaves no half file behind."""
    if path.is_dir():
        raise UserError(f"{path} is a folder", hint="name a file for --output")
    # A link stays one; a pipe or device is written to as it is.
    path = path.resolve()
    is_special = path.exists() and not path.is_file()
    temporary = path if is_special else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        stream = temporary.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}", hint="choose another --output") from None
    try:
        with stream:
            yield stream
        temporary.replace(path)
    finally:
        if not is_special:
            temporary.unlink(missing_ok=True)
